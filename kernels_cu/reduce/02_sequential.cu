// Sequential addresses: the lower half of the threads adds the upper half, until one is left.
//
// Before: the working threads were spread over all warps, so every warp stayed busy for ever fewer sums.
// Now: they are the first ones: whole warps work or rest, no lane stands beside its neighbours' branch, and no remainder is taken.
// A block owns THREADS elements; in each round thread t adds slot t + distance to slot t, if t is below the distance, which halves.
// Limited now by: a barrier and a trip through shared memory in each round; and one element a thread.

#include "types.cuh"

static_assert((THREADS & (THREADS - 1)) == 0 && THREADS <= 1024, "THREADS is a power of 2, at most 1024");

__device__ __forceinline__ float block_sum(float value) {
    __shared__ float slots[THREADS];
    slots[threadIdx.x] = value;
    __syncthreads();  // every thread's element is there before another adds it
    for (int distance = THREADS / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) slots[threadIdx.x] += slots[threadIdx.x + distance];
        __syncthreads();  // this round's sums are there before the next round adds them
    }
    return slots[0];
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
