// A block a row: each row's sum, mean or maximum along the last axis.
//
// A block owns a row; its threads stride over the columns, one element a load, and meet in two steps: lanes of a warp, then warps.
// Limited now by: one element a load; and by short rows, which leave most threads of their block idle.

#include "operation.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS) axis(const element* x, element* y, int M, int N, long long stride_x) {
    __shared__ float slots[WARPS];
    const Operation join;
    x += blockIdx.x * stride_x;
    float value = Operation::neutral();
    for (int n = threadIdx.x; n < N; n += THREADS) value = join(value, to_float(x[n]));
    value = reduce_lanes<32>(value, join);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    __syncthreads();  // every warp's value is there before any reads them
    value = reduce_slots<WARPS>(slots, join);
    if (threadIdx.x == 0) y[blockIdx.x] = convert<element>(finish(value, N));
}
