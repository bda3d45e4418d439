// Cluster: the blocks of a cluster share a row, and exchange means and deviations through each other's shared memory.
//
// Before: a row had to fit one multiprocessor, and the longest that did left it alone with its block.
// Now: each block keeps a part of the row in registers.  Every warp sends the mean and the squared deviations of its own elements to every
// block of the cluster; when all have come each warp joins them by Chan's formula, in the same order everywhere.
// A cluster of CLUSTER blocks owns a row, LANES threads of each; lane t of the row's CLUSTER * LANES holds packs t, t + CLUSTER * LANES, …
// Limited now by: memory, one read and one write, at any length; a cluster's blocks load, compute and store in step.

#include "distributed.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

// How many columns a warp of the row has: of each round of its threads 32 packs, and what the last round leaves it.
__device__ __forceinline__ int columns_of(int warp, int N) {
    const int packs = N / VEC;
    return (packs / (CLUSTER * LANES) * 32 + min(max(packs % (CLUSTER * LANES) - warp * 32, 0), 32)) * VEC;
}

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS)
    layernorm(const element* x, const element* w, const element* b, element* y, int M, int N, long long stride_x, long long stride_y,
              float eps) {
    __shared__ float means[SLOTS], squares[SLOTS];
    __shared__ unsigned long long arrived;
    const int rank = cluster_rank(), row = blockIdx.x / CLUSTER, t = rank * LANES + threadIdx.x;
    x += row * stride_x, y += row * stride_y;
    if (threadIdx.x == 0) expect_values(&arrived, 2 * SLOTS * sizeof(float));
    __syncthreads();           // the mbarrier is ready
    cluster_arrive_relaxed();  // this block runs, so that others may write into its shared memory; they wait for that below

    Pack<element, VEC> held[VECS], weights[VECS], biases[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * CLUSTER * LANES + t) * VEC;
        held[v] = n < N ? read<HINT, VEC>(x + n) : zeros<VEC>();
    }
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * CLUSTER * LANES + t) * VEC;
        if (EARLY && n < N) weights[v] = read<0, VEC>(w + n), biases[v] = read<0, VEC>(b + n);
    }
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += e[i];
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = rank * WARPS + warp;
    float mean = reduce_lanes<32>(sum, Add{}) / max(columns_of(slot, N), 1);
    forget(held);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
        if ((v * CLUSTER * LANES + t) * VEC < N) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) square += (e[i] - mean) * (e[i] - mean);
        }
    }
    square = reduce_lanes<32>(square, Add{});
    cluster_wait();  // every block of the cluster runs
    if (lane < CLUSTER) {
        send(&means[slot], lane, mean, &arrived);
        send(&squares[slot], lane, square, &arrived);
    }
    mbarrier_wait(shared_address(&arrived), 0);  // every warp of the row has sent its moments here; then nobody writes here any more
    sum = square = 0.0f;
#pragma unroll
    for (int first = 0; first < SLOTS; first += 32) {
        if (first + lane < SLOTS) sum += columns_of(first + lane, N) * means[first + lane];
    }
    mean = reduce_lanes<32>(sum, Add{}) / N;
#pragma unroll
    for (int first = 0; first < SLOTS; first += 32) {
        if (first + lane < SLOTS) {
            const float distance = means[first + lane] - mean;
            square += squares[first + lane] + columns_of(first + lane, N) * distance * distance;
        }
    }
    const float factor = rsqrtf(reduce_lanes<32>(square, Add{}) / N + eps);
    forget(held);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * CLUSTER * LANES + t) * VEC;
        if (n < N) {
            float e[VEC], f[VEC], g[VEC];
            unpack(e, held[v]);
            unpack(f, EARLY ? weights[v] : read<0, VEC>(w + n));
            unpack(g, EARLY ? biases[v] : read<0, VEC>(b + n));
#pragma unroll
            for (int i = 0; i < VEC; ++i) e[i] = (e[i] - mean) * factor * f[i] + g[i];
            write<HINT>(y + n, pack<element, VEC>(e));
        }
    }
}
