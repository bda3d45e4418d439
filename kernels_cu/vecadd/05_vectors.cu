// Vectors: one instruction moves VEC neighbouring floats a lane.
//
// Before: every load and store moved four bytes a lane, and a warp four sectors.
// Now: a lane takes VEC floats at once, up to the sixteen bytes that an instruction can move: as many bytes under way with a
// fraction of the instructions, of the addresses, and of the requests that the load pipe handles.
// A block owns tiles of LOADS * THREADS vectors of C; a thread has one in every THREADS. The floats behind the last whole vector
// are left to the first threads of the grid. With a GRID, so many blocks walk over all tiles; without, there is a block a tile.
// Limited now by: blocks that stay, each with tiles of its own (see step 6).

#include "vec.cuh"

constexpr int TILE = LOADS * THREADS;  // vectors

static_assert(VEC == 1 || VEC == 2 || VEC == 4, "VEC: an instruction moves one, two or four floats");

// 1: registers for all the loads; without it the compiler holds them down until the warps are full, and some loads wait
extern "C" __global__ void __launch_bounds__(THREADS, 1)
vecadd(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
    const unsigned vectors = N / VEC, stride = gridDim.x * TILE;
#pragma unroll 1
    for (unsigned start = blockIdx.x * TILE; start < vectors; start += stride) {
        float a[LOADS][VEC], b[LOADS][VEC];
        if (start + TILE <= vectors) {
#pragma unroll
            for (int k = 0; k < LOADS; ++k) {
                const unsigned i = (start + k * THREADS + threadIdx.x) * VEC;
                load<VEC>(a[k], A + i);
                load<VEC>(b[k], B + i);
            }
#pragma unroll
            for (int k = 0; k < LOADS; ++k) {
#pragma unroll
                for (int v = 0; v < VEC; ++v) a[k][v] += b[k][v];
                store<VEC>(C + (start + k * THREADS + threadIdx.x) * VEC, a[k]);
            }
        } else {
            // the last tile, with vectors past the end
            for (unsigned i = start + threadIdx.x; i < vectors; i += THREADS) {
                load<VEC>(a[0], A + i * VEC);
                load<VEC>(b[0], B + i * VEC);
#pragma unroll
                for (int v = 0; v < VEC; ++v) a[0][v] += b[0][v];
                store<VEC>(C + i * VEC, a[0]);
            }
        }
    }
    const unsigned rest = vectors * VEC + blockIdx.x * THREADS + threadIdx.x;
    if (rest < N) C[rest] = A[rest] + B[rest];
}
