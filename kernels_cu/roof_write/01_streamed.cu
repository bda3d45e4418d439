// Write a matrix, the outer product of a and b: from registers to DRAM, with next to nothing to read.
//
// A thread owns VEC neighbouring columns and their part of b, a block THREADS threads: a row is written by all blocks together, side by
// side, and all go down the rows in step.  What is written is marked as the first that L2 gives up.
// Limited now by: how fast memory takes what is written; this is its roof.

#include "stamp.cuh"
#include "hints.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) roof_write(const float* A, const float* B, float* Y, unsigned long long* stamps,
                                                                 int H, int W) {
    const Stamp start = stamp_now();
    const int w = (blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (w < W) {
        float b[VEC], product[VEC];
        load_once<VEC>(b, B + w);
        float* to = Y + w;
#pragma unroll UNROLL
        for (int h = 0; h < H; ++h, to += W) {
            const float a = A[h];
#pragma unroll
            for (int i = 0; i < VEC; ++i) product[i] = a * b[i];
            store_once<VEC>(to, product);
        }
    }
    __syncthreads();  // hazard: the clock must not stop while a warp still writes
    const Stamp end = stamp_now();
    if (threadIdx.x == 0) store_stamps(stamps, start, end);
}
