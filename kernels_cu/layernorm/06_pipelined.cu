// Pipelined: blocks stay and keep weights and biases, and the copy engine brings their next rows meanwhile.
//
// Before: a block asked for its row, waited, computed and wrote, and fetched weights and biases again for every row.
// Now: a cluster takes row after row, always the same columns of each, whose weights it may KEEP.  One thread of each block keeps STAGES
// bulk copies under way, each a block's share of a row; the threads take a share into registers as soon as it is there, and when the
// barrier of the reduction says that all have, its room is filled anew.
// A cluster of CLUSTER blocks owns rows cluster, cluster + GRID, …; block `rank` of it an equal share of their packs, LANES threads to a
// share.
// Limited now by: memory, one read and one write.

#include "bulk.cuh"
#include "distributed.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

// How many columns a warp of the cluster has: of each round of LANES packs 32, and what the last round leaves it.
__device__ __forceinline__ int columns_of(int slot, int packs, int share) {
    const int rank = slot / WARPS, warp = slot % WARPS, theirs = min(max(packs - rank * share, 0), share);
    return (theirs / LANES * 32 + min(max(theirs % LANES - warp * 32, 0), 32)) * VEC;
}

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS)
    layernorm(const element* x, const element* w, const element* b, element* y, int M, int N, long long stride_x, long long stride_y,
              float eps) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ float means[2][SLOTS], squares[2][SLOTS];
    __shared__ unsigned long long full[STAGES];
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, clusters = gridDim.x / CLUSTER, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    const int slot = rank * WARPS + warp, own = max(columns_of(slot, packs, share), 1);
    x += rank * share * VEC, y += rank * share * VEC, w += rank * share * VEC, b += rank * share * VEC;

    const unsigned barriers = shared_address(full);

    // Thread 0 asks for this block's share of a row.
    const auto ask = [&](int row, int stage) {
        if (row >= M || mine == 0) return;
        mbarrier_expect(barriers + 8 * stage, mine * 16);
        bulk_load(shared_address(room) + stage * share * 16, x + row * stride_x, mine * 16, barriers + 8 * stage);
    };
    int row = blockIdx.x / CLUSTER;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(barriers + 8 * stage, 1);
        fence_mbarrier_init();
        for (int stage = 0; stage < STAGES; ++stage) ask(row + stage * clusters, stage);
    }
    Pack<element, VEC> weights[VECS], biases[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int place = v * LANES + threadIdx.x;
        if (KEEP && place < mine) weights[v] = read<0, VEC>(w + place * VEC), biases[v] = read<0, VEC>(b + place * VEC);
    }
    if constexpr (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();  // every block of the cluster runs; this one's barriers are ready
    } else {
        __syncthreads();  // the barriers are ready
    }
    for (int i = 0; row < M; ++i, row += clusters) {
        const int stage = i % STAGES, half = i % 2;
        if (mine > 0) mbarrier_wait(barriers + 8 * stage, i / STAGES % 2);
        Pack<element, VEC> held[VECS];
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            const int place = v * LANES + threadIdx.x;
            held[v] = place < mine ? reinterpret_cast<const Pack<element, VEC>*>(room)[stage * share + place] : zeros<VEC>();
            float e[VEC];
            unpack(e, held[v]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) sum += e[k];
        }
        float mean = reduce_lanes<32>(sum, Add{}) / own;
        forget(held);
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            float e[VEC];
            unpack(e, held[v]);
            if (v * LANES + threadIdx.x < mine) {
#pragma unroll
                for (int k = 0; k < VEC; ++k) square += (e[k] - mean) * (e[k] - mean);
            }
        }
        square = reduce_lanes<32>(square, Add{});
        if constexpr (CLUSTER > 1) {
            if (lane < CLUSTER) {
                store_remote(&means[half][slot], lane, mean);
                store_remote(&squares[half][slot], lane, square);
            }
            cluster_arrive();
            cluster_wait();  // every warp's moments are here, and every thread of this block holds its packs
        } else {
            if (lane == 0) means[half][warp] = mean, squares[half][warp] = square;
            __syncthreads();  // every warp's moments are there, and every thread holds its packs
        }
        if (threadIdx.x == 0) ask(row + STAGES * clusters, stage);
        // the other half of the slots is written next, so no barrier follows their reading
        sum = square = 0.0f;
#pragma unroll
        for (int first = 0; first < SLOTS; first += 32) {
            if (first + lane < SLOTS) sum += columns_of(first + lane, packs, share) * means[half][first + lane];
        }
        mean = reduce_lanes<32>(sum, Add{}) / N;
#pragma unroll
        for (int first = 0; first < SLOTS; first += 32) {
            if (first + lane < SLOTS) {
                const float distance = means[half][first + lane] - mean;
                square += squares[half][first + lane] + columns_of(first + lane, packs, share) * distance * distance;
            }
        }
        const float factor = rsqrtf(reduce_lanes<32>(square, Add{}) / N + eps);
        forget(held);
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            const int place = v * LANES + threadIdx.x;
            if (place < mine) {
                float e[VEC], f[VEC], g[VEC];
                unpack(e, held[v]);
                unpack(f, KEEP ? weights[v] : read<0, VEC>(w + place * VEC));
                unpack(g, KEEP ? biases[v] : read<0, VEC>(b + place * VEC));
#pragma unroll
                for (int k = 0; k < VEC; ++k) e[k] = (e[k] - mean) * factor * f[k] + g[k];
                write<HINT>(y + row * stride_y + place * VEC, pack<element, VEC>(e));
            }
        }
    }
}
