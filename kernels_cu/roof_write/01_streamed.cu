// Write a matrix, the outer product of a and b: from registers to DRAM, with next to nothing to read.
//
// A thread owns VEC neighbouring columns and their part of b, a block THREADS threads: a row is written by all blocks together, side by
// side, and all go down the rows in step.  What is written is marked as the first that L2 gives up.
// Limited now by: multiprocessors that have equal shares and reach memory at unequal speeds; the last one sets the time.

#include "hints.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) roof_write(const float* A, const float* B, float* Y, int H, int W) {
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
}
