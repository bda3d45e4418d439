// Slabs: blocks stack up over the columns; each joins a slab of rows, and the last one of a column joins the slabs.
//
// Before: a column was one thread's.
// Now: a thread takes VEC neighbouring columns in one load and LOADS rows at once; DEEP rows of threads in a block and SLABS blocks above
// each other share the height.  They meet in shared memory, then in global memory, where who comes last joins what all left, in their
// order.
// A block owns WIDE * VEC columns and every SLABS-th group of DEEP rows; thread (down, across) takes rows down, down + DEEP * SLABS, …
// Limited now by: memory.

#include "operation.cuh"
#include "stream.cuh"

static_assert(WIDE * DEEP <= 1024 && WIDE * DEEP % 32 == 0, "a block is a number of whole warps, at most 1024 threads");

extern "C" __global__ void __launch_bounds__(WIDE* DEEP) axis(const element* x, float* partial, unsigned* arrived, element* y, int M, int N,
                                                              long long stride_x) {
    __shared__ float slots[DEEP][WIDE * VEC];
    __shared__ bool last;
    const Operation join;
    const int tile = blockIdx.x / SLABS, slab = blockIdx.x % SLABS, across = threadIdx.x % WIDE, down = threadIdx.x / WIDE;
    const int n = (tile * WIDE + across) * VEC, step = DEEP * SLABS;

    float values[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) values[i] = Operation::neutral();
    if (n < N) {
        for (int first = slab * DEEP + down; first < M; first += LOADS * step) {
            Pack<element, VEC> held[LOADS];
#pragma unroll
            for (int l = 0; l < LOADS; ++l) {
                if (first + l * step < M) held[l] = read<HINT, VEC>(x + (first + l * step) * stride_x + n);
            }
#pragma unroll
            for (int l = 0; l < LOADS; ++l) {
                float e[VEC];
                unpack(e, held[l]);
                if (first + l * step < M) {
#pragma unroll
                    for (int i = 0; i < VEC; ++i) values[i] = join(values[i], e[i]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < VEC; ++i) slots[down][across * VEC + i] = values[i];
    __syncthreads();  // every thread's values are there before others join them
    float* mine = partial + static_cast<long long>(blockIdx.x) * WIDE * VEC;
    for (int column = threadIdx.x; column < WIDE * VEC; column += WIDE * DEEP) {
        float value = slots[0][column];
#pragma unroll
        for (int d = 1; d < DEEP; ++d) value = join(value, slots[d][column]);
        mine[column] = value;
    }
    __threadfence();
    __syncthreads();  // all of the block's values are written, and seen, before it counts itself in
    if (threadIdx.x == 0) last = atomicInc(arrived + tile, SLABS - 1) == SLABS - 1;  // wraps to zero, as the next launch needs it
    __syncthreads();  // all threads know whether theirs is the tile's last block
    if (!last) return;
    __threadfence();  // what the other blocks left is read after they counted themselves in
    const float* all = partial + static_cast<long long>(tile) * SLABS * WIDE * VEC;
    for (int column = threadIdx.x; column < WIDE * VEC; column += WIDE * DEEP) {
        float value = Operation::neutral();
        for (int s = 0; s < SLABS; ++s) value = join(value, __ldcg(all + s * WIDE * VEC + column));
        if (tile * WIDE * VEC + column < N) y[tile * WIDE * VEC + column] = convert<element>(finish(value, M));
    }
}
