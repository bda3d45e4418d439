// Cluster: the blocks of a cluster share a row, and exchange their sums through each other's shared memory.
//
// Before: a row had to fit one multiprocessor, and the longest that did left it alone with its block.
// Now: each block keeps a part of the row in registers.  Every warp sends its sum to every block of the cluster; when all have come each
// warp adds them up, in the same order everywhere.
// A cluster of CLUSTER blocks owns a row, LANES threads of each; lane t of the row's CLUSTER * LANES holds packs t, t + CLUSTER * LANES, …
// Limited now by: memory, one read and one write, at any length; a cluster's blocks load, compute and store in step.

#include "distributed.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS) rmsnorm(const element* x, const element* w, element* y, int M, int N,
                                                                    long long stride_x, long long stride_y, float eps) {
    __shared__ float slots[SLOTS];
    __shared__ unsigned long long arrived;
    const int rank = cluster_rank(), row = blockIdx.x / CLUSTER, t = rank * LANES + threadIdx.x;
    x += row * stride_x, y += row * stride_y;
    if (threadIdx.x == 0) expect_values(&arrived, SLOTS * sizeof(float));
    __syncthreads();           // the mbarrier is ready
    cluster_arrive_relaxed();  // this block runs, so that others may write into its shared memory; they wait for that below

    Pack<element, VEC> held[VECS], weights[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * CLUSTER * LANES + t) * VEC;
        held[v] = n < N ? read<HINT, VEC>(x + n) : zeros<VEC>();
    }
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * CLUSTER * LANES + t) * VEC;
        if (EARLY && n < N) weights[v] = read<0, VEC>(w + n);
    }
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += e[i] * e[i];
    }
    sum = reduce_lanes<32>(sum, Add{});
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    cluster_wait();  // every block of the cluster runs
    if (lane < CLUSTER) send(&slots[rank * WARPS + warp], lane, sum, &arrived);
    mbarrier_wait(shared_address(&arrived), 0);  // every warp of the row has sent its sum here; then nobody writes here any more
    const float factor = rsqrtf(reduce_slots<SLOTS>(slots, Add{}) / N + eps);
    forget(held);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * CLUSTER * LANES + t) * VEC;
        if (n < N) {
            float e[VEC], f[VEC];
            unpack(e, held[v]);
            unpack(f, EARLY ? weights[v] : read<0, VEC>(w + n));
#pragma unroll
            for (int i = 0; i < VEC; ++i) e[i] *= factor * f[i];
            write<HINT>(y + n, pack<element, VEC>(e));
        }
    }
}
