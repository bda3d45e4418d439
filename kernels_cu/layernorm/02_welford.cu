// Welford: mean and squared deviation kept up to date element by element, so that nothing large cancels.
//
// Before: the variance was the difference of two large numbers.
// Now: each element moves the mean by its share and adds its deviation from old and new mean (Welford, "Note on a method for calculating
// corrected sums of squares and products"); partial results join by Chan's formula, across lanes and warps.
// A block owns a row; its threads stride over the columns twice, several elements a load: moments, result.
// Limited now by: a division and a chain of dependent operations for every element; and by the second read.

#include "moments.cuh"
#include "types.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS)
    layernorm(const element* x, const element* w, const element* b, element* y, int M, int N, long long stride_x, long long stride_y,
              float eps) {
    __shared__ Moments slots[WARPS];
    x += blockIdx.x * stride_x, y += blockIdx.x * stride_y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    Moments own{0.0f, 0.0f, 0.0f};
    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float e[VEC];
        load<VEC>(e, x + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float before = e[i] - own.mean;
            own.count += 1.0f;
            own.mean += before / own.count;
            own.squares += before * (e[i] - own.mean);
        }
    }
    own = join_lanes(own);
    if (lane == 0) slots[warp] = own;
    __syncthreads();  // every warp's moments are there before any reads them
    const Moments all = join_lanes(lane < WARPS ? slots[lane] : Moments{0.0f, 0.0f, 0.0f});
    const float factor = rsqrtf(all.squares / N + eps);

    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float e[VEC], f[VEC], g[VEC];
        load<VEC>(e, x + n);
        load<VEC>(f, w + n);
        load<VEC>(g, b + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) e[i] = (e[i] - all.mean) * factor * f[i] + g[i];
        store<VEC>(y + n, e);
    }
}
