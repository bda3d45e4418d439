// Kept: clusters stay, and weights and biases with them in shared memory.
//
// Before: every row brought its weights and biases from L2 again, three reads there for one of memory: all that L2 gives.
// Now: a cluster takes row after row, always the same columns of each; their weights and biases are copied to shared memory once.  So that
// loads, sums, exchanges and writes still overlap, the threads of a block are GROUPS groups that share nothing but the weights: each waits
// for its own rows, exchanges its own moments and asks for its next row as soon as it has read the last.
// A cluster of CLUSTER blocks owns rows cluster, cluster + clusters, …, its groups take turns; block `rank` has an equal share of a row's
// packs, LANES threads to a share.  Shared memory holds the weights, the biases and a share a group.
// Moments go to every block of the cluster and into one of two halves by turns; a group sends into a half again when all blocks have said
// that theirs is read.
// Limited now by: memory, one read and one write.

#include "bulk.cuh"
#include "distributed.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER, ROUNDS = (SLOTS + 31) / 32;

static_assert(LANES % 32 == 0 && GROUPS * LANES <= 1024, "LANES is a number of whole warps; the groups have at most 1024 threads");
static_assert(CLUSTER <= 16 && GROUPS <= 15, "CLUSTER at most 16, GROUPS at most 15: each has a named barrier");

// How many columns a warp of the cluster has: of each round of LANES packs 32, and what the last round leaves it.
__device__ __forceinline__ int columns_of(int slot, int packs, int share) {
    const int rank = slot / WARPS, warp = slot % WARPS, theirs = min(max(packs - rank * share, 0), share);
    return (theirs / LANES * 32 + min(max(theirs % LANES - warp * 32, 0), 32)) * VEC;
}

extern "C" __global__ void __launch_bounds__(GROUPS* LANES, 1)
    layernorm(const element* x, const element* w, const element* b, element* y, int M, int N, long long stride_x, long long stride_y,
              float eps) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ float means[GROUPS][2][SLOTS], squares[GROUPS][2][SLOTS];
    __shared__ unsigned long long full[GROUPS], arrived[GROUPS][2], read_out[GROUPS][2], kept;
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, clusters = gridDim.x / CLUSTER;
    const int group = threadIdx.x / LANES, t = threadIdx.x % LANES, warp = t / 32, lane = t % 32, slot = rank * WARPS + warp;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    const Pack<element, VEC>*weights = reinterpret_cast<const Pack<element, VEC>*>(room), *biases = weights + share;
    const Pack<element, VEC>* held = weights + (2 + group) * share;
    x += rank * share * VEC, y += rank * share * VEC;

    // The first thread of a group asks for its block's share of a row.
    const auto ask = [&](int row) {
        if (row >= M || mine == 0) return;
        mbarrier_expect(shared_address(full + group), mine * 16);
        bulk_load(shared_address(held), x + row * stride_x, mine * 16, shared_address(full + group));
    };
    int row = blockIdx.x / CLUSTER + group * clusters;
    if (t == 0) {
        mbarrier_init(shared_address(full + group), 1);
        for (int half = 0; half < 2; ++half) {
            mbarrier_init(shared_address(&read_out[group][half]), CLUSTER);
            expect_values(&arrived[group][half], 2 * SLOTS * sizeof(float));
        }
        ask(row);
    }
    if (threadIdx.x == 0) {
        mbarrier_init(shared_address(&kept), 1);
        fence_mbarrier_init();
        if (mine > 0) {
            mbarrier_expect(shared_address(&kept), 2 * mine * 16);
            bulk_load(shared_address(weights), w + rank * share * VEC, mine * 16, shared_address(&kept));
            bulk_load(shared_address(biases), b + rank * share * VEC, mine * 16, shared_address(&kept));
        }
    }
    __syncthreads();  // the barriers are ready
    if constexpr (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();  // every block of the cluster runs, so that others may write into its shared memory
    }
    const float own = max(columns_of(slot, packs, share), 1);
    const float count = max((mine - t + LANES - 1) / LANES, 0) * VEC, inverse = 1.0f / fmaxf(count, 1.0f);
    float columns[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) columns[r] = 32 * r + lane < SLOTS ? columns_of(32 * r + lane, packs, share) : 0;
    if (mine > 0) mbarrier_wait(shared_address(&kept), 0);

    for (int i = 0; row < M; ++i, row += GROUPS * clusters) {
        const int half = i % 2;
        float *const theirs = means[group][half], *const deviations = squares[group][half];
        if (mine > 0) mbarrier_wait(shared_address(full + group), half);
        // moments in one pass, from a pivot: see the step before
        float pivot = 0.0f, sum = 0.0f, square = 0.0f, e[VEC];
        if (count > 0.0f) unpack(e, held[t]);
#pragma unroll
        for (int k = 0; k < VEC; ++k) pivot += count > 0.0f ? e[k] * (1.0f / VEC) : 0.0f;
#pragma unroll 2
        for (int place = t; place < mine; place += LANES) {
            unpack(e, held[place]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const float distance = e[k] - pivot;
                sum += distance, square += distance * distance;
            }
        }
        const float above = sum * inverse, mean = reduce_lanes<32>(count * (pivot + above), Add{}) / own, from_mean = pivot + above - mean;
        square = square < -minus_infinity() ? fmaxf(square - above * sum, 0.0f) : square;
        square = reduce_lanes<32>(square + count * from_mean * from_mean, Add{});
        if constexpr (CLUSTER > 1) {
            const unsigned barrier = shared_address(&arrived[group][half]);
            if (i >= 2) mbarrier_wait_cluster(shared_address(&read_out[group][half]), (i / 2 - 1) % 2);  // what was there has been read
            if (lane < CLUSTER) {
                send(theirs + slot, lane, mean, &arrived[group][half]);
                send(deviations + slot, lane, square, &arrived[group][half]);
            }
            mbarrier_wait_cluster(barrier, i / 2 % 2);  // every warp's moments of this row are here
            if (t == 0) mbarrier_expect(barrier, 2 * SLOTS * sizeof(float));
        } else {
            if (lane == 0) theirs[warp] = mean, deviations[warp] = square;
            named_barrier_wait(1 + group, LANES);  // every warp's moments are there before any reads them
        }
        sum = square = 0.0f;
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            if (32 * r + lane < SLOTS) sum += columns[r] * theirs[32 * r + lane];
        }
        const float middle = reduce_lanes<32>(sum, Add{}) / N;
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            if (32 * r + lane < SLOTS) {
                const float distance = theirs[32 * r + lane] - middle;
                square += deviations[32 * r + lane] + columns[r] * distance * distance;
            }
        }
        const float factor = rsqrtf(reduce_lanes<32>(square, Add{}) / N + eps), shift = -middle * factor;
#pragma unroll 2
        for (int place = t; place < mine; place += LANES) {
            float f[VEC], g[VEC];
            unpack(e, held[place]);
            unpack(f, weights[place]);
            unpack(g, biases[place]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) e[k] = fmaf(fmaf(e[k], factor, shift), f[k], g[k]);
            write<0>(y + row * stride_y + place * VEC, pack<element, VEC>(e));
        }
        named_barrier_wait(1 + group, LANES);  // every thread has read its packs and the moments before their room is filled anew
        if (CLUSTER > 1 && t < CLUSTER && row + 2 * GROUPS * clusters < M)
            mbarrier_arrive_at(shared_address(&read_out[group][half]), t);  // who is told runs: it waits for this before its row after next
        if (t == 0) ask(row + GROUPS * clusters);
    }
}
