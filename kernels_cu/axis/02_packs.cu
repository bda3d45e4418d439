// Packs: as many threads as a row has work for, the widest loads, LOADS of them under way together.
//
// Before: one element a load, and a whole block for a row of any length.
// Now: short rows share a block, down to a lane each; each thread asks for LOADS packs of VEC elements before it joins the first.
// A block owns ROWS rows, LANES threads each; lane t of a row takes packs t, t + LANES, …; a row within a warp needs no barrier.
// Limited now by: memory for many rows; a few long ones leave most multiprocessors idle.

#include "operation.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES > 32 ? LANES / 32 : 1;

static_assert(LANES % 32 == 0 || (LANES < 32 && (LANES & (LANES - 1)) == 0), "LANES is a power of 2 up to 32, or whole warps");
static_assert(LANES <= 32 || ROWS == 1, "a row of several warps has a block for itself");
static_assert(LANES * ROWS % 32 == 0 && LANES * ROWS <= 1024, "a block is a number of whole warps, at most 1024 threads");

extern "C" __global__ void __launch_bounds__(LANES* ROWS) axis(const element* x, element* y, int M, int N, long long stride_x) {
    __shared__ float slots[WARPS];
    const Operation join;
    const int t = threadIdx.x % LANES, row = blockIdx.x * ROWS + threadIdx.x / LANES;
    const int columns = row < M ? N : 0;  // lanes of rows past the end stay for the shuffles
    x += row * stride_x;
    float value = Operation::neutral();
    for (int first = t * VEC; first < columns; first += LOADS * LANES * VEC) {
        Pack<element, VEC> held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int n = first + l * LANES * VEC;
            if (n < columns) held[l] = read<HINT, VEC>(x + n);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float e[VEC];
            unpack(e, held[l]);
            if (first + l * LANES * VEC < columns) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) value = join(value, e[i]);
            }
        }
    }
    value = reduce_lanes<(LANES < 32 ? LANES : 32)>(value, join);
    if constexpr (WARPS > 1) {
        if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
        __syncthreads();  // every warp's value is there before any reads them
        value = reduce_slots<WARPS>(slots, join);
    }
    if (t == 0 && row < M) y[row] = convert<element>(finish(value, N));
}
