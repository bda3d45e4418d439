// Cluster: the blocks that share a row are a cluster, and send their keys through shared memory.
//
// Before: keys and counter went through L2, one after the other.
// Now: each warp sends its key into the first block of the cluster, which waits until all have come; the others end at once.
// A cluster of CLUSTER blocks owns a row, LANES threads of each; lane t of the row's CLUSTER * LANES takes packs t, t + CLUSTER * LANES, …
// Limited now by: memory for many rows; for a single one the latency of one load, one barrier and one launch.

#include "distributed.cuh"
#include "keys.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

extern "C" __global__ void __launch_bounds__(LANES) argmax(const element* x, long long* index, int M, int N, long long stride_x) {
    __shared__ unsigned long long slots[SLOTS], arrived;
    const int rank = cluster_rank(), row = blockIdx.x / CLUSTER, t = rank * LANES + threadIdx.x;
    x += row * stride_x;
    if (threadIdx.x == 0 && rank == 0) expect_values(&arrived, sizeof(slots));
    __syncwarp();              // the mbarrier is ready for the warp that waits at it
    cluster_arrive_relaxed();  // this block runs, so that others may write into its shared memory; they wait for that below

    Best best{t * VEC};
    for (int first = t * VEC; first < N; first += LOADS * CLUSTER * LANES * VEC) {
        Pack<element, VEC> held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int n = first + l * CLUSTER * LANES * VEC;
            if (n < N) held[l] = read<HINT, VEC>(x + n);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float e[VEC];
            unpack(e, held[l]);
            if (first + l * CLUSTER * LANES * VEC < N) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) best.take(e[i], first + l * CLUSTER * LANES * VEC + i);
            }
        }
    }
    const unsigned long long own = largest_of_warp(t * VEC < N ? best.key() : 0);
    cluster_wait();  // every block of the cluster runs
    if (threadIdx.x % 32 == 0) send(&slots[rank * WARPS + threadIdx.x / 32], 0, own, &arrived);
    if (rank > 0 || threadIdx.x >= 32) return;
    mbarrier_wait(shared_address(&arrived), 0);  // every warp of the row has sent its key
    const unsigned long long largest = reduce_slots<SLOTS>(slots, LargerKey{});
    if (threadIdx.x == 0) index[row] = place_of(largest);
}
