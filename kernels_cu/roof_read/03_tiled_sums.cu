// Read a matrix from DRAM and add up its columns, a block a tile: each block does its part and ends.
//
// Before: blocks stayed, each with an equal share of the columns; multiprocessors are not equally near to memory, and the last to end set
// the time.
// Now: whichever multiprocessor has room takes the next tile, so that all end together; and tiles start in the order of memory, so that
// what is read at one moment lies close together.
// A block owns a tile of ROWS rows by THREADS * VEC columns, a thread VEC neighbouring columns of it: all its loads are under way before
// the first is added, and its sums join those of other blocks in L2.
// Limited now by: what DRAM delivers; this is its roof.

#include "hints.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) roof_read(const float* X, float* S, int H, int W) {
    const int strips = (W + THREADS * VEC - 1) / (THREADS * VEC);
    const int w = (blockIdx.x % strips * THREADS + threadIdx.x) * VEC, first = blockIdx.x / strips * ROWS;
    if (w >= W) return;
    float v[ROWS][VEC], sum[VEC] = {};
    const float* from = X + static_cast<long long>(first) * W + w;
    if (first + ROWS <= H) {
#pragma unroll
        for (int h = 0; h < ROWS; ++h) load_once<VEC>(v[h], from + static_cast<long long>(h) * W);
#pragma unroll
        for (int h = 0; h < ROWS; ++h)
#pragma unroll
            for (int i = 0; i < VEC; ++i) sum[i] += v[h][i];
    } else {
#pragma unroll 1
        for (int h = first; h < H; ++h, from += W) {
            load_once<VEC>(v[0], from);
#pragma unroll
            for (int i = 0; i < VEC; ++i) sum[i] += v[0][i];
        }
    }
#pragma unroll
    for (int i = 0; i < VEC; ++i) atomicAdd(S + w + i, sum[i]);
}
