// Shuffles: lanes of a warp add each other's registers; shared memory carries one sum a warp.
//
// Before: each round went through shared memory and waited for the whole block.
// Now: five rounds of a warp are five shuffles, without memory and without a barrier; one barrier lets each warp read the others' sums.
// A block owns THREADS elements; a warp reduces its lanes', and then the sums of all warps.
// Limited now by: one element a thread: too few bytes are under way, and the tree's fixed cost falls on every element.

#include "reduce.cuh"
#include "types.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

__device__ __forceinline__ float block_sum(float value) {
    __shared__ float slots[WARPS];
    value = reduce_lanes<32>(value, Add{});
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    __syncthreads();  // every warp's sum is there before any reads them
    return reduce_slots<WARPS>(slots, Add{});
}

extern "C" __global__ void __launch_bounds__(THREADS) reduce(const element* x, float* partial, int N) {
    const int n = blockIdx.x * THREADS + threadIdx.x;
    const float sum = block_sum(n < N ? to_float(x[n]) : 0.0f);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) reduce_again(const float* partial, float* fewer, element* total, int count) {
    const int n = blockIdx.x * THREADS + threadIdx.x;
    const float sum = block_sum(n < count ? partial[n] : 0.0f);
    if (threadIdx.x > 0) return;
    if (gridDim.x == 1) total[0] = convert<element>(sum);
    else fewer[blockIdx.x] = sum;
}
