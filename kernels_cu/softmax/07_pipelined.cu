// Pipelined: blocks stay, and the copy engine brings their next rows while they work on this one.
//
// Before: a block asked for its row, waited, computed and wrote; only other blocks kept memory busy meanwhile.
// Now: a cluster takes row after row.  One thread of each block keeps STAGES bulk copies under way, each a block's share of a row; the
// threads take a share into registers as soon as it is there, and when the barrier of the reduction says that all have, its room is filled
// anew.  Loads no longer wait for arithmetic, nor for registers.
// A cluster of CLUSTER blocks owns rows cluster, cluster + GRID, …; block `rank` of it an equal share of their packs, LANES threads to a
// share.
// Limited now by: memory, one read and one write.

#include "bulk.cuh"
#include "distributed.cuh"
#include "exponential.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS) softmax(const element* x, element* y, int M, int N, long long stride_x,
                                                                    long long stride_y) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ float maxima[2][SLOTS], sums[2][SLOTS];
    __shared__ unsigned long long full[STAGES];
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, clusters = gridDim.x / CLUSTER, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    x += rank * share * VEC, y += rank * share * VEC;

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
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            const int pack = v * LANES + threadIdx.x;
            held[v] = pack < mine ? reinterpret_cast<const Pack<element, VEC>*>(room)[stage * share + pack] : lowest<VEC>();
        }
        float largest = minus_infinity(), sum = 0.0f;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            float e[VEC];
            unpack(e, held[v]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) largest = fmaxf(largest, e[k]);
        }
        largest = reduce_lanes<32>(largest, Larger{});
        forget(held);
        float shift = shift_of(largest);
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            float e[VEC];
            unpack(e, held[v]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) sum += exponential(e[k] - shift);
        }
        sum = reduce_lanes<32>(sum, Add{});
        if constexpr (CLUSTER > 1) {
            if (lane < CLUSTER) {
                store_remote(&maxima[half][rank * WARPS + warp], lane, largest);
                store_remote(&sums[half][rank * WARPS + warp], lane, sum);
            }
            cluster_arrive();
            cluster_wait();  // every warp's pair is here, and every thread of this block holds its packs
        } else {
            if (lane == 0) maxima[half][warp] = largest, sums[half][warp] = sum;
            __syncthreads();  // every warp's pair is there, and every thread holds its packs
        }
        if (threadIdx.x == 0) ask(row + STAGES * clusters, stage);
        shift = shift_of(reduce_slots<SLOTS>(maxima[half], Larger{}));  // the other half is written next, so no barrier follows
        sum = 0.0f;
#pragma unroll
        for (int first = 0; first < SLOTS; first += 32) {
            if (first + lane < SLOTS) sum += sums[half][first + lane] * exponential(maxima[half][first + lane] - shift);
        }
        const float factor = 1.0f / reduce_lanes<32>(sum, Add{});
        forget(held);
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            const int pack_of_row = v * LANES + threadIdx.x;
            float e[VEC];
            unpack(e, held[v]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) e[k] = exponential(e[k] - shift) * factor;
            if (pack_of_row < mine) write<HINT>(y + row * stride_y + pack_of_row * VEC, pack<element, VEC>(e));
        }
    }
}
