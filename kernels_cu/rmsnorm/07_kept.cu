// Kept: clusters stay, and weights with them in shared memory.
//
// Before: every row brought its weights from L2 again, two reads there for one of memory.
// Now: a cluster takes row after row, always the same columns of each; their weights are copied to shared memory once.  So that
// loads, sums, exchanges and writes still overlap, the threads of a block are GROUPS groups that share nothing but the weights: each waits
// for its own rows, exchanges its own sums and asks for its next row as soon as it has read the last.
// A cluster of CLUSTER blocks owns rows cluster, cluster + clusters, …, its groups take turns; block `rank` has an equal share of a row's
// packs, LANES threads to a share.  Shared memory holds the weights and a share a group.
// Sums go to every block of the cluster and into one of two halves by turns; a group sends into a half again when all blocks have said
// that theirs is read.
// Limited now by: memory, one read and one write.

#include "bulk.cuh"
#include "distributed.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && GROUPS * LANES <= 1024, "LANES is a number of whole warps; the groups have at most 1024 threads");
static_assert(CLUSTER <= 16 && GROUPS <= 15, "CLUSTER at most 16, GROUPS at most 15: each has a named barrier");

extern "C" __global__ void __launch_bounds__(GROUPS* LANES, 1)
    rmsnorm(const element* x, const element* w, element* y, int M, int N, long long stride_x, long long stride_y, float eps) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ float sums[GROUPS][2][SLOTS];
    __shared__ unsigned long long full[GROUPS], arrived[GROUPS][2], read_out[GROUPS][2], kept;
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, clusters = gridDim.x / CLUSTER;
    const int group = threadIdx.x / LANES, t = threadIdx.x % LANES, warp = t / 32, lane = t % 32, slot = rank * WARPS + warp;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    const Pack<element, VEC>*weights = reinterpret_cast<const Pack<element, VEC>*>(room), *held = weights + (1 + group) * share;
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
            expect_values(&arrived[group][half], SLOTS * sizeof(float));
        }
        ask(row);
    }
    if (threadIdx.x == 0) {
        mbarrier_init(shared_address(&kept), 1);
        fence_mbarrier_init();
        if (mine > 0) {
            mbarrier_expect(shared_address(&kept), mine * 16);
            bulk_load(shared_address(weights), w + rank * share * VEC, mine * 16, shared_address(&kept));
        }
    }
    __syncthreads();  // the barriers are ready
    if constexpr (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();  // every block of the cluster runs, so that others may write into its shared memory
    }
    if (mine > 0) mbarrier_wait(shared_address(&kept), 0);

    for (int i = 0; row < M; ++i, row += GROUPS * clusters) {
        const int half = i % 2;
        float* const theirs = sums[group][half];
        if (mine > 0) mbarrier_wait(shared_address(full + group), half);
        float sum = 0.0f;
#pragma unroll 2
        for (int place = t; place < mine; place += LANES) {
            float e[VEC];
            unpack(e, held[place]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) sum += e[k] * e[k];
        }
        sum = reduce_lanes<32>(sum, Add{});
        if constexpr (CLUSTER > 1) {
            const unsigned barrier = shared_address(&arrived[group][half]);
            if (i >= 2) mbarrier_wait_cluster(shared_address(&read_out[group][half]), (i / 2 - 1) % 2);  // what was there has been read
            if (lane < CLUSTER) send(theirs + slot, lane, sum, &arrived[group][half]);
            mbarrier_wait_cluster(barrier, i / 2 % 2);  // every warp's sum of this row is here
            if (t == 0) mbarrier_expect(barrier, SLOTS * sizeof(float));
        } else {
            if (lane == 0) theirs[warp] = sum;
            named_barrier_wait(1 + group, LANES);  // every warp's sum is there before any reads them
        }
        const float factor = rsqrtf(reduce_slots<SLOTS>(theirs, Add{}) / N + eps);
#pragma unroll 2
        for (int place = t; place < mine; place += LANES) {
            float e[VEC], f[VEC];
            unpack(e, held[place]);
            unpack(f, weights[place]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) e[k] *= factor * f[k];
            write<1>(y + row * stride_y + place * VEC, pack<element, VEC>(e));
        }
        named_barrier_wait(1 + group, LANES);  // every thread has read its packs and the sums before their room is filled anew
        if (CLUSTER > 1 && t < CLUSTER && row + 2 * GROUPS * clusters < M)
            mbarrier_arrive_at(shared_address(&read_out[group][half]), t);  // who is told runs: it waits for this before its row after next
        if (t == 0) ask(row + GROUPS * clusters);
    }
}
