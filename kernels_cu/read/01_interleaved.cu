// Reading as fast as memory gives: all threads together sweep x, P times over, with several wide loads in flight each.
//
// A block's threads read neighbouring vectors of 16 bytes, then jump past what all other blocks read; where x ends they go on at its
// start, so that no pass ends with threads that wait.  Where a pass is a whole number of jumps, a thread reads the same vectors in every
// pass: what one multiprocessor reads is then its own part of x, which stays in L1 where it fits and CACHE lets it.  UNROLL loads are
// issued before the first is used.  A row of x has 64 floats and the jumps are whole rows, so a thread stays in one column of vectors;
// the block adds up its columns in shared memory and then, with atomics, into `sums`.
// CACHE picks the kind of load; load_vector in probe.cuh names them.
// Limited now by: the bandwidth of the level that holds x.

#include "probe.cuh"

constexpr int ROW = 16;  // vectors

static_assert(THREADS % ROW == 0 && THREADS >= 64, "THREADS must be a multiple of a row's 16 vectors, at least 64");

extern "C" __global__ void __launch_bounds__(THREADS) read(const float4* x, float* sums, int R, int P) {
    __shared__ float4 parts[THREADS];
    const unsigned vectors = R * ROW, all_threads = gridDim.x * THREADS, jump = all_threads % vectors;
    const unsigned first = blockIdx.x * THREADS + threadIdx.x;
    const long long all = static_cast<long long>(vectors) * P;
    int left = first < all ? static_cast<int>((all - first - 1) / all_threads) + 1 : 0;  // vectors of this thread, of all passes
    unsigned at = first % vectors;
    const auto next = [&] {
        const float4 v = load_vector<CACHE>(x + at);
        at += jump;
        if (at >= vectors) at -= vectors;
        return v;
    };
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    const auto add = [&](const float4& v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; };
#pragma unroll 1
    for (; left >= UNROLL; left -= UNROLL) {
        float4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = next();
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) add(v[u]);
    }
#pragma unroll 1
    for (; left > 0; --left) add(next());
    parts[threadIdx.x] = sum;
    __syncthreads();  // every thread's part is there before columns are added up
    if (threadIdx.x >= 64) return;
    float column = 0.0f;
    for (int i = threadIdx.x / 4; i < THREADS; i += ROW) column += reinterpret_cast<const float*>(&parts[i])[threadIdx.x % 4];
    atomicAdd(&sums[threadIdx.x], column);
}
