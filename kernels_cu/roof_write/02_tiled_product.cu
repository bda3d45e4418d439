// Write the outer product of a and b, a block a tile: each block does its part and ends.
//
// Before: blocks stayed, each with an equal share of the columns; multiprocessors are not equally near to memory, and the last to end set
// the time.
// Now: whichever multiprocessor has room takes the next tile, so that all end together; and tiles start in the order of memory, so that
// what is written at one moment lies close together.
// A block owns a tile of ROWS rows by THREADS * VEC columns, a thread VEC neighbouring columns of it and their part of b, which all blocks
// of a strip read, from L2.
// Limited now by: how fast memory takes what is written; this is its roof.

#include "hints.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) roof_write(const float* A, const float* B, float* Y, int H, int W) {
    const int strips = (W + THREADS * VEC - 1) / (THREADS * VEC);
    const int w = (blockIdx.x % strips * THREADS + threadIdx.x) * VEC, first = blockIdx.x / strips * ROWS;
    if (w >= W) return;
    float a[ROWS], b[VEC], product[VEC];
    load_past_l1<VEC>(b, B + w);
#pragma unroll
    for (int h = 0; h < ROWS; ++h) a[h] = first + h < H ? A[first + h] : 0;
    float* to = Y + static_cast<long long>(first) * W + w;
#pragma unroll
    for (int h = 0; h < ROWS; ++h, to += W) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) product[i] = a[h] * b[i];
        if (first + h < H) store_once<VEC>(to, product);
    }
}
