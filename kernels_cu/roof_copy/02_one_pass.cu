// Copy a matrix, a block a tile: each block does its part and ends.
//
// Before: blocks stayed, each with an equal share of the columns; multiprocessors are not equally near to memory, and the last to end set
// the time.
// Now: whichever multiprocessor has room takes the next tile, so that all end together; and tiles start in the order of memory, so that
// what is read and written at one moment lies close together.
// A block owns a tile of ROWS rows by THREADS * VEC columns, a thread VEC neighbouring columns of it: all its loads, then all its stores.
// Limited now by: how fast memory gives and takes in turns; this is its roof.

#include "hints.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) roof_copy(const float* X, float* Y, int H, int W) {
    const int strips = (W + THREADS * VEC - 1) / (THREADS * VEC);
    const int w = (blockIdx.x % strips * THREADS + threadIdx.x) * VEC, first = blockIdx.x / strips * ROWS;
    if (w >= W) return;
    float v[ROWS][VEC];
    const long long start = static_cast<long long>(first) * W + w;
#pragma unroll
    for (int h = 0; h < ROWS; ++h)
        if (first + h < H) load_once<VEC>(v[h], X + start + static_cast<long long>(h) * W);
#pragma unroll
    for (int h = 0; h < ROWS; ++h)
        if (first + h < H) store_once<VEC>(Y + start + static_cast<long long>(h) * W, v[h]);
}
