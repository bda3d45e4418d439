// Read a matrix from shared memory and add up its columns, R times over.
//
// Before: every byte came from DRAM or L2.
// Now: a block copies its part to shared memory once, before the clock starts, and reads it there.
// A block owns THREADS * 4 columns, a thread four of them: the lanes of a warp read neighbouring vectors of 16 bytes, a row after the
// other, so that no bank is asked twice in a pass.  UNROLL loads of a thread are under way before the first is added.
// Limited now by: what the banks of shared memory deliver; this is its roof.

#include "ptx.cuh"
#include "stamp.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) roof_read(const float* X, float* S, unsigned long long* stamps,
                                                                   int H, int W, int R) {
    extern __shared__ __align__(16) float part[];
    const int first = blockIdx.x * THREADS * 4, mine = threadIdx.x * 4;
    for (int h = 0; h < H; ++h)
        for (int w = threadIdx.x; w < THREADS * 4; w += THREADS)
            part[h * THREADS * 4 + w] = first + w < W ? X[static_cast<long long>(h) * W + first + w] : 0;
    const unsigned column = shared_address(part + mine);
    float sum[4] = {0, 0, 0, 0}, v[UNROLL][4];
    __syncthreads();  // hazard: what other threads copied is read below, and the clock must not start before all is there
    const Stamp start = stamp_now();
#pragma unroll 1
    for (int pass = 0; pass < R; ++pass) {
        unsigned from = column;
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = 0;
#pragma unroll 2
        for (int h = UNROLL; h <= H; h += UNROLL, from += UNROLL * THREADS * 16) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) load_shared(v[u], from + u * THREADS * 16);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[i] += v[u][i];
        }
#pragma unroll 1
        for (int h = H / UNROLL * UNROLL; h < H; ++h, from += THREADS * 16) {
            load_shared(v[0], from);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] += v[0][i];
        }
    }
    __syncthreads();  // hazard: the clock must not stop while a warp still reads
    const Stamp end = stamp_now();
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (first + mine + i < W) S[first + mine + i] = sum[i];
    if (threadIdx.x == 0) store_stamps(stamps, start, end);
}
