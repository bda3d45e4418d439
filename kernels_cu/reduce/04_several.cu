// Several elements a thread: each adds its share in a register before the tree begins.
//
// Before: every element paid for a part of a tree, and there were as many partial sums as blocks of elements.
// Now: GRID blocks stride over everything; the tree is built once a block, and a second launch of one block adds what they leave.
// A block owns the elements block * THREADS + t, then as many further on as all blocks together hold, and so on.
// Limited now by: four bytes a load, each waited for before the next is asked for; and by the second launch.

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
    float sum = 0.0f;
    for (long long n = blockIdx.x * THREADS + threadIdx.x; n < N; n += gridDim.x * THREADS) sum += to_float(x[n]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) reduce_last(const float* partial, element* total, int count) {
    float sum = 0.0f;
    for (int n = threadIdx.x; n < count; n += THREADS) sum += partial[n];
    sum = block_sum(sum);
    if (threadIdx.x == 0) total[0] = convert<element>(sum);
}
