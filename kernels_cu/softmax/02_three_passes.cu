// Three passes: the row's maximum first, so that no power is larger than 1.
//
// Before: powers overflowed, or all vanished.
// Now: e^(x - max) over its sum, the same value in exact arithmetic, where the largest power is 1: the sum is at least 1.
// A block owns a row; its threads stride over the columns three times: maximum, sum, result.
// Limited now by: memory, three reads and a write where one of each would do; short rows are still in cache for the second and third.

#include "exponential.cuh"
#include "reduce.cuh"
#include "types.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const element* x, element* y, int M, int N, long long stride_x,
                                                              long long stride_y) {
    __shared__ float maxima[WARPS], sums[WARPS];
    const element* row = x + blockIdx.x * stride_x;
    element* out = y + blockIdx.x * stride_y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    float largest = minus_infinity();
    for (int n = threadIdx.x; n < N; n += THREADS) largest = fmaxf(largest, to_float(row[n]));
    largest = reduce_lanes<32>(largest, Larger{});
    if (lane == 0) maxima[warp] = largest;
    __syncthreads();  // every warp's maximum is there before any reads them
    const float shift = shift_of(reduce_slots<WARPS>(maxima, Larger{}));

    float sum = 0.0f;
    for (int n = threadIdx.x; n < N; n += THREADS) sum += exponential(to_float(row[n]) - shift);
    sum = reduce_lanes<32>(sum, Add{});
    if (lane == 0) sums[warp] = sum;
    __syncthreads();  // and every warp's sum
    const float factor = 1.0f / reduce_slots<WARPS>(sums, Add{});

    for (int n = threadIdx.x; n < N; n += THREADS) out[n] = convert<element>(exponential(to_float(row[n]) - shift) * factor);
}
