// Slices: blocks that run at one time read the same few slices of x, as tiles of a matrix are read by many blocks.
//
// Before: at one moment every block read a part of its own; each line left L2 once a pass, for one multiprocessor.
// Now: x is dealt into slices of about ROWS rows, tile by tile like cards, and a block takes every gridDim-th slice of all P passes.
// There are fewer slices than blocks, so several multiprocessors ask for a line at about the same time, and what fetches it, between the
// halves of L2 as well, can serve them together.  A multiprocessor asks for each line as often as before: no byte comes from L1, which
// .cg goes past, as long as its own blocks read different slices.
// A slice is tiles of THREADS vectors, as many tiles apart as there are slices; a thread stays in one column of vectors.
// Limited now by: the way from L2 to the multiprocessors.

#include "probe.cuh"

constexpr int ROW = 16;  // vectors

static_assert(THREADS % ROW == 0 && THREADS >= 64, "THREADS must be a multiple of a row's 16 vectors, at least 64");

extern "C" __global__ void __launch_bounds__(THREADS, 1) read(const float4* x, float* sums, int R, int P) {
    __shared__ float4 parts[THREADS];
    const unsigned vectors = R * ROW, slices = max(1, R / ROWS), jump = slices * THREADS;
    const long long all = static_cast<long long>(slices) * P;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    const auto add = [&](const float4& v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; };
#pragma unroll 1
    for (long long n = blockIdx.x; n < all; n += gridDim.x) {
        unsigned at = n % slices * THREADS + threadIdx.x;
#pragma unroll 1
        for (; at + (UNROLL - 1) * jump < vectors; at += UNROLL * jump) {
            float4 v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = load_vector<1>(x + at + u * jump);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) add(v[u]);
        }
#pragma unroll 1
        for (; at < vectors; at += jump) add(load_vector<1>(x + at));
    }
    parts[threadIdx.x] = sum;
    __syncthreads();  // every thread's part is there before columns are added up
    if (threadIdx.x >= 64) return;
    float column = 0.0f;
    for (int i = threadIdx.x / 4; i < THREADS; i += ROW) column += reinterpret_cast<const float*>(&parts[i])[threadIdx.x % 4];
    atomicAdd(&sums[threadIdx.x], column);
}
