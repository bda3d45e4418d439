// Cluster: the blocks of a cluster share a row, and exchange their pairs through each other's shared memory.
//
// Before: a row had to fit one multiprocessor, and the longest that did left it alone with its block.
// Now: each block keeps a part of the row in registers.  Every warp sends its maximum and its sum to every block of the cluster; when all
// have come each warp joins them, so nobody waits twice.
// A cluster of CLUSTER blocks owns a row, LANES threads of each; lane t of the row's CLUSTER * LANES holds packs t, t + CLUSTER * LANES, …
// Limited now by: memory, one read and one write, at any length; a cluster's blocks load, compute and store in step.

#include "distributed.cuh"
#include "exponential.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS) softmax(const element* x, element* y, int M, int N, long long stride_x,
                                                                    long long stride_y) {
    __shared__ float maxima[SLOTS], sums[SLOTS];
    __shared__ unsigned long long arrived;
    const int rank = cluster_rank(), row = blockIdx.x / CLUSTER, t = rank * LANES + threadIdx.x;
    x += row * stride_x, y += row * stride_y;
    if (threadIdx.x == 0) expect_values(&arrived, 2 * SLOTS * sizeof(float));
    __syncthreads();           // the mbarrier is ready
    cluster_arrive_relaxed();  // this block runs, so that others may write into its shared memory; they wait for that below

    Pack<element, VEC> held[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * CLUSTER * LANES + t) * VEC;
        held[v] = n < N ? read<HINT, VEC>(x + n) : lowest<VEC>();
    }
    float largest = minus_infinity(), sum = 0.0f;
    if constexpr (sizeof(held[0]) % 4 == 0) {  // two at a time, as they lie
        Pack<element, VEC> tops = held[0];
        float top[VEC];
#pragma unroll
        for (int v = 1; v < VECS; ++v) tops = larger(tops, held[v]);
        unpack(top, tops);
#pragma unroll
        for (int i = 0; i < VEC; ++i) largest = fmaxf(largest, top[i]);
    } else {
#pragma unroll
        for (int v = 0; v < VECS; ++v) largest = fmaxf(largest, to_float(held[v].at[0]));
    }
    largest = reduce_lanes<32>(largest, Larger{});
    forget(held);
    float shift = shift_of(largest);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += exponential(e[i] - shift);
    }
    sum = reduce_lanes<32>(sum, Add{});
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    cluster_wait();  // every block of the cluster runs
    if (lane < CLUSTER) {
        send(&maxima[rank * WARPS + warp], lane, largest, &arrived);
        send(&sums[rank * WARPS + warp], lane, sum, &arrived);
    }
    mbarrier_wait(shared_address(&arrived), 0);  // every warp of the row has sent its pair here; then nobody writes here any more
    shift = shift_of(reduce_slots<SLOTS>(maxima, Larger{}));
    sum = 0.0f;
#pragma unroll
    for (int first = 0; first < SLOTS; first += 32) {
        if (first + lane < SLOTS) sum += sums[first + lane] * exponential(maxima[first + lane] - shift);
    }
    const float factor = 1.0f / reduce_lanes<32>(sum, Add{});
    forget(held);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * CLUSTER * LANES + t) * VEC;
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) e[i] = exponential(e[i] - shift) * factor;
        if (n < N) write<HINT>(y + n, pack<element, VEC>(e));
    }
}
