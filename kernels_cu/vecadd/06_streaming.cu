// Streaming: the caches are told that every element is used once.
//
// Before: each sector read was kept in L1 and L2 in case somebody asked for it again, and pushed out sums that were still on
// their way to memory.
// Now: loads leave no copy in L1 and are the first to go from L2, and so are the stores. A block takes one tile and ends: the
// device starts blocks in their order, so what is read and written at one moment lies close together.
// A block owns a tile of LOADS * THREADS vectors of sixteen bytes of C (with a GRID, so many blocks walk over all tiles); a thread
// has one vector in every THREADS. The floats behind the last whole vector are left to the first threads of the grid.
// Limited now by: the memory itself, which has to turn round between reads and writes.

#include "cache_hints.cuh"

constexpr int VEC = 4, TILE = LOADS * THREADS;  // floats of a vector, vectors of a tile

static_assert(READ >= 0 && READ <= 3, "READ: a way to load, see cache_hints.cuh");
static_assert(WRITE >= 0 && WRITE <= 2, "WRITE: a way to store, see cache_hints.cuh");

__device__ __forceinline__ float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// 1: registers for all the loads; without it the compiler holds them down until the warps are full, and some loads wait
extern "C" __global__ void __launch_bounds__(THREADS, 1)
vecadd(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
    const float4 *A4 = reinterpret_cast<const float4*>(A), *B4 = reinterpret_cast<const float4*>(B);
    float4* C4 = reinterpret_cast<float4*>(C);
    const unsigned vectors = N / VEC, stride = gridDim.x * TILE;
#pragma unroll 1
    for (unsigned start = blockIdx.x * TILE; start < vectors; start += stride) {
        const unsigned first = start + threadIdx.x;
        float4 a[LOADS], b[LOADS];
        if (start + TILE <= vectors) {
#pragma unroll
            for (int k = 0; k < LOADS; ++k) {
                a[k] = load_hinted<READ>(A4 + first + k * THREADS);
                b[k] = load_hinted<READ>(B4 + first + k * THREADS);
            }
#pragma unroll
            for (int k = 0; k < LOADS; ++k) store_hinted<WRITE>(C4 + first + k * THREADS, sum(a[k], b[k]));
        } else {
            // the last tile, with vectors past the end
            for (unsigned i = first; i < vectors; i += THREADS)
                store_hinted<WRITE>(C4 + i, sum(load_hinted<READ>(A4 + i), load_hinted<READ>(B4 + i)));
        }
    }
    const unsigned rest = vectors * VEC + blockIdx.x * THREADS + threadIdx.x;
    if (rest < N) C[rest] = A[rest] + B[rest];
}
