// Slabs: blocks stack up over the columns; each joins a slab of rows, and the last one of a column joins the slabs.
//
// Before: a column was one thread's.
// Now: a thread takes VEC neighbouring columns in one load and LOADS rows at once; DEEP rows of threads in a block and SLABS blocks above
// each other share the height.  Threads above each other meet by shuffles where they share a warp, then in shared memory, then in global
// memory, where the block that comes last joins what all left, in their order and with all its threads.
// A block owns WIDE * VEC columns and every SLABS-th group of DEEP rows; thread (down, across) takes rows down, down + DEEP * SLABS, …
// Limited now by: memory; where columns are few, by the last block's work at the end.

#include "operation.cuh"
#include "stream.cuh"

constexpr int COLUMNS = WIDE * VEC, GROUPS = WIDE < 32 ? WIDE * DEEP / 32 : DEEP;

static_assert(WIDE * DEEP <= 1024 && WIDE * DEEP % 32 == 0, "a block is a number of whole warps, at most 1024 threads");
static_assert((WIDE & (WIDE - 1)) == 0, "WIDE is a power of 2: lanes above each other join by shuffles");

// Join what lies in a column's LOADS rows from `from` on, `stride` elements apart; in as many of them as there are, if not WHOLE.
// By pairs, so that fewer additions meet a sum that has grown: PyTorch's error, where one after the other has twice that.
template <bool WHOLE>
__device__ __forceinline__ void join_rows(float (&values)[VEC], const element* from, long long stride, int rows) {
    const Operation join;
    Pack<element, VEC> held[LOADS];
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
        if (WHOLE || l < rows) held[l] = read<HINT, VEC>(from + l * stride);
    }
    float e[LOADS][VEC];
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
        unpack(e[l], held[l]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) e[l][i] = WHOLE || l < rows ? e[l][i] : Operation::neutral();
    }
#pragma unroll
    for (int half = LOADS / 2; half > 0; half /= 2) {
#pragma unroll
        for (int l = 0; l < half; ++l) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) e[l][i] = join(e[l][i], e[l + half][i]);
        }
    }
#pragma unroll
    for (int i = 0; i < VEC; ++i) values[i] = join(values[i], e[0][i]);
}

// Leave what the threads of each group have joined in its row of slots.
__device__ __forceinline__ void join_groups(float (&values)[VEC], float (*slots)[COLUMNS]) {
    const Operation join;
#pragma unroll
    for (int distance = 16; distance >= WIDE; distance /= 2) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) values[i] = join(values[i], __shfl_xor_sync(0xffffffffu, values[i], distance));
    }
    if (WIDE < 32 && threadIdx.x % 32 >= WIDE) return;
#pragma unroll
    for (int i = 0; i < VEC; ++i) slots[threadIdx.x / (WIDE < 32 ? 32 : WIDE)][threadIdx.x % WIDE * VEC + i] = values[i];
}

// What the groups have left of a column.
__device__ __forceinline__ float join_slots(int column, const float (*slots)[COLUMNS]) {
    float value = slots[0][column];
#pragma unroll 8
    for (int group = 1; group < GROUPS; ++group) value = Operation{}(value, slots[group][column]);
    return value;
}

extern "C" __global__ void __launch_bounds__(WIDE* DEEP) axis(const element* x, float* partial, unsigned* arrived, element* y, int M, int N,
                                                              long long stride_x) {
    __shared__ __align__(16) float slots[GROUPS][COLUMNS];
    __shared__ bool last;
    const Operation join;
    const int tile = blockIdx.x / SLABS, slab = blockIdx.x % SLABS, across = threadIdx.x % WIDE, down = threadIdx.x / WIDE;
    const int n = (tile * WIDE + across) * VEC, step = DEEP * SLABS;

    float values[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) values[i] = Operation::neutral();
    if (n < N) {
        const element* from = x + n;
        int row = slab * DEEP + down;
        for (; row + (LOADS - 1) * step < M; row += LOADS * step) join_rows<true>(values, from + row * stride_x, step * stride_x, LOADS);
        if (row < M) join_rows<false>(values, from + row * stride_x, step * stride_x, (M - row + step - 1) / step);
    }
    join_groups(values, slots);
    __syncthreads();  // every group's values are there before others join them
    if constexpr (SLABS > 1) {
        float* all = partial + static_cast<long long>(tile) * SLABS * COLUMNS;
        for (int column = threadIdx.x; column < COLUMNS; column += WIDE * DEEP) all[slab * COLUMNS + column] = join_slots(column, slots);
        __threadfence();
        __syncthreads();  // all of the block's values are written, and seen, before it counts itself in
        if (threadIdx.x == 0) {
            last = atomicInc(arrived + tile, SLABS - 1) == SLABS - 1;  // wraps to zero, as the next launch needs it
            __threadfence();  // what the other blocks left is read after they counted themselves in
        }
        __syncthreads();  // all threads know whether theirs is the tile's last block, and the slots are free
        if (!last) return;
#pragma unroll
        for (int i = 0; i < VEC; ++i) values[i] = Operation::neutral();
        for (int s = down; s < SLABS; s += DEEP) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) values[i] = join(values[i], __ldcg(all + s * COLUMNS + across * VEC + i));
        }
        join_groups(values, slots);
        __syncthreads();  // every group's values are there before others join them
    }
    for (int column = threadIdx.x; column < COLUMNS; column += WIDE * DEEP) {
        if (tile * COLUMNS + column < N) y[tile * COLUMNS + column] = convert<element>(finish(join_slots(column, slots), M));
    }
}
