// Read a matrix and add up its columns, R times over: from DRAM, or from L2 where it fits.
//
// A thread owns VEC neighbouring columns, a block THREADS threads: a row is read by all blocks together, side by side, and all go down
// the rows in step.  UNROLL loads of a thread are under way before the first is added.  Nothing is kept in L1; what is read once only
// (R is 1) is the first that L2 gives up.  Every pass starts its sums afresh, so that the result is that of one pass.
// Limited now by: what the level that holds the matrix delivers, to multiprocessors that have equal shares and get them at unequal speeds.

#include "hints.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) roof_read(const float* X, float* S, int H, int W, int R) {
    const int w = (blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (w < W) {
        float sum[VEC], v[UNROLL][VEC];
        const long long row = W;
#pragma unroll 1
        for (int pass = 0; pass < R; ++pass) {
            const float* from = X + w;
#pragma unroll
            for (int i = 0; i < VEC; ++i) sum[i] = 0;
#pragma unroll 1
            for (int h = UNROLL; h <= H; h += UNROLL, from += UNROLL * row) {
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    if constexpr (ONCE) load_once<VEC>(v[u], from + u * row);
                    else load_past_l1<VEC>(v[u], from + u * row);
                }
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                    for (int i = 0; i < VEC; ++i) sum[i] += v[u][i];
            }
#pragma unroll 1
            for (int h = H / UNROLL * UNROLL; h < H; ++h, from += row) {
                load_past_l1<VEC>(v[0], from);
#pragma unroll
                for (int i = 0; i < VEC; ++i) sum[i] += v[0][i];
            }
        }
        store_once<VEC>(S + w, sum);
    }
}
