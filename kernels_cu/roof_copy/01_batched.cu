// Copy a matrix: as many bytes read as written.
//
// A thread owns VEC neighbouring columns, a block THREADS threads: a row is copied by all blocks together, side by side, and all go down
// the rows in step.  UNROLL loads of a thread are under way before the first is stored: memory turns from reading to writing less often.
// Limited now by: multiprocessors that have equal shares and reach memory at unequal speeds; the last one sets the time.

#include "hints.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) roof_copy(const float* X, float* Y, int H, int W) {
    const int w = (blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (w < W) {
        float v[UNROLL][VEC];
        const long long row = W;
        const float* from = X + w;
        float* to = Y + w;
#pragma unroll 1
        for (int h = UNROLL; h <= H; h += UNROLL, from += UNROLL * row, to += UNROLL * row) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) load_once<VEC>(v[u], from + u * row);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) store_once<VEC>(to + u * row, v[u]);
        }
#pragma unroll 1
        for (int h = H / UNROLL * UNROLL; h < H; ++h, from += row, to += row) {
            load_once<VEC>(v[0], from);
            store_once<VEC>(to, v[0]);
        }
    }
}
