// Interleaved: a tree in shared memory, in which every second, fourth, eighth thread adds its neighbour's sum.
//
// Each thread brings one element; a block leaves one partial sum, and the next launch does the same with the partial sums until one is
// left.
// A block owns THREADS elements; in round r thread t adds slot t + 2^r to slot t, if t is a multiple of 2^(r + 1).
// Limited now by: the remainder that picks the threads, and warps in which ever fewer lanes work: a branch that diverges in every round.

#include "types.cuh"

static_assert((THREADS & (THREADS - 1)) == 0 && THREADS <= 1024, "THREADS is a power of 2, at most 1024");

__device__ __forceinline__ float block_sum(float value) {
    __shared__ float slots[THREADS];
    slots[threadIdx.x] = value;
    __syncthreads();  // every thread's element is there before a neighbour adds it
    for (int distance = 1; distance < THREADS; distance *= 2) {
        if (threadIdx.x % (2 * distance) == 0) slots[threadIdx.x] += slots[threadIdx.x + distance];
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
