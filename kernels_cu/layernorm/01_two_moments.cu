// Two moments: sum and sum of squares in one pass; the variance is the difference of two means.
//
// A block owns a row; its threads stride over the columns twice: moments, result.
// Fails where the mean is large beside the deviation: mean(x^2) and mean(x)^2 agree in their leading digits, which cancel, and what is left
// of the variance is rounding, negative even.
// Limited now by: that; and by two reads of the row, one element at a time.

#include "reduce.cuh"
#include "types.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS)
    layernorm(const element* x, const element* w, const element* b, element* y, int M, int N, long long stride_x, long long stride_y,
              float eps) {
    __shared__ float sums[WARPS], squares[WARPS];
    x += blockIdx.x * stride_x, y += blockIdx.x * stride_y;

    float sum = 0.0f, square = 0.0f;
    for (int n = threadIdx.x; n < N; n += THREADS) {
        const float e = to_float(x[n]);
        sum += e, square += e * e;
    }
    sum = reduce_lanes<32>(sum, Add{});
    square = reduce_lanes<32>(square, Add{});
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum, squares[threadIdx.x / 32] = square;
    __syncthreads();  // every warp's moments are there before any reads them
    const float mean = reduce_slots<WARPS>(sums, Add{}) / N;
    const float variance = reduce_slots<WARPS>(squares, Add{}) / N - mean * mean;
    const float factor = rsqrtf(variance + eps);

    for (int n = threadIdx.x; n < N; n += THREADS)
        y[n] = convert<element>((to_float(x[n]) - mean) * factor * to_float(w[n]) + to_float(b[n]));
}
