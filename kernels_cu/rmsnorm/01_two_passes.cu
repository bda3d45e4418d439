// Two passes: the mean of the squares, then every element over its root, times its weight.
//
// A block owns a row; its threads stride over the columns twice, one element a load.
// Squares of floats overflow from about 1.8e19 on, as they do in NumPy's float32: such a row becomes 0.
// Limited now by: two reads of the row, one element at a time.

#include "reduce.cuh"
#include "types.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS) rmsnorm(const element* x, const element* w, element* y, int M, int N,
                                                              long long stride_x, long long stride_y, float eps) {
    __shared__ float slots[WARPS];
    x += blockIdx.x * stride_x, y += blockIdx.x * stride_y;

    float sum = 0.0f;
    for (int n = threadIdx.x; n < N; n += THREADS) {
        const float e = to_float(x[n]);
        sum += e * e;
    }
    sum = reduce_lanes<32>(sum, Add{});
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = sum;
    __syncthreads();  // every warp's sum is there before any reads them
    const float factor = rsqrtf(reduce_slots<WARPS>(slots, Add{}) / N + eps);

    for (int n = threadIdx.x; n < N; n += THREADS) y[n] = convert<element>(to_float(x[n]) * factor * to_float(w[n]));
}
