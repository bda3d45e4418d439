// Unshifted: e^x over the sum of e^x, as the formula is written.
//
// A block owns a row; its threads stride over the columns twice, to add up the powers and to write each over the sum.
// Fails where the formula does: e^x of a float is infinite from 88.8 on, and zero for a whole row of large negative numbers.
// Limited now by: two passes over the row, one element a load; and by its range (see step 2).

#include "exponential.cuh"
#include "reduce.cuh"
#include "types.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const element* x, element* y, int M, int N, long long stride_x,
                                                              long long stride_y) {
    __shared__ float slots[WARPS];
    const element* row = x + blockIdx.x * stride_x;
    element* out = y + blockIdx.x * stride_y;

    float sum = 0.0f;
    for (int n = threadIdx.x; n < N; n += THREADS) sum += exponential(to_float(row[n]));
    sum = reduce_lanes<32>(sum, Add{});
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = sum;
    __syncthreads();  // every warp's sum is there before any reads them
    const float factor = 1.0f / reduce_slots<WARPS>(slots, Add{});

    for (int n = threadIdx.x; n < N; n += THREADS) out[n] = convert<element>(exponential(to_float(row[n])) * factor);
}
