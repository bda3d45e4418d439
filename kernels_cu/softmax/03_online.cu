// Online: maximum and sum in one pass, the sum rescaled whenever a larger element turns up.
//
// Before: the sum had to wait for the maximum, a pass of its own.
// Now: a sum relative to the largest so far becomes one relative to a larger by one multiplication (Milakov and Gimelshein, "Online
// normalizer calculation for softmax"); partial pairs join the same way, so one reduction brings both across the block.
// A block owns a row; its threads stride over the columns twice, several elements a load: pair, result.
// Limited now by: memory still, two reads and a write; rows longer than the caches read everything twice.

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

    float largest = minus_infinity(), sum = 0.0f;
    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float v[VEC], before = largest;
        load<VEC>(v, row + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) largest = fmaxf(largest, v[i]);
        const float shift = shift_of(largest);
        sum *= exponential(before - shift);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += exponential(v[i] - shift);
    }
    const float warp_largest = reduce_lanes<32>(largest, Larger{});
    sum = reduce_lanes<32>(sum * exponential(largest - shift_of(warp_largest)), Add{});
    if (lane == 0) maxima[warp] = warp_largest, sums[warp] = sum;
    __syncthreads();  // every warp's pair is there before any reads them
    const float shift = shift_of(reduce_slots<WARPS>(maxima, Larger{}));
    const float rescaled = lane < WARPS ? sums[lane] * exponential(maxima[lane] - shift) : 0.0f;
    const float factor = 1.0f / reduce_lanes<32>(rescaled, Add{});

    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float v[VEC];
        load<VEC>(v, row + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) v[i] = exponential(v[i] - shift) * factor;
        store<VEC>(out + n, v);
    }
}
