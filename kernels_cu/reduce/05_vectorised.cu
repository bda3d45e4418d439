// Vectorised: the widest loads, LOADS of them under way before the first is added.
//
// Before: each thread asked for four bytes at a time and waited.
// Now: LOADS packs of VEC elements are asked for together, and each place in them is added into an accumulator of its own, so that
// neither loads nor additions wait for each other; fewer terms in a row also make the sum more exact.
// A block owns chunks of LOADS * THREADS packs: chunk block, then block + GRID, …; what does not fill a pack is left to the first block.
// Limited now by: the second launch, which begins when the first has ended.

#include "reduce.cuh"
#include "stream.cuh"

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
    float sums[VEC] = {};
    const int packs = N / VEC, step = gridDim.x * LOADS * THREADS;
    for (long long first = blockIdx.x * LOADS * THREADS + threadIdx.x; first < packs; first += step) {
        Pack<element, VEC> held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l)
            held[l] = first + l * THREADS < packs ? read<HINT, VEC>(x + (first + l * THREADS) * VEC) : zeros<VEC>();
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float e[VEC];
            unpack(e, held[l]);
#pragma unroll
            for (int i = 0; i < VEC; ++i) sums[i] += e[i];
        }
    }
    const int rest = packs * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < N) sums[0] += to_float(x[rest]);
#pragma unroll
    for (int i = 1; i < VEC; ++i) sums[0] += sums[i];
    const float sum = block_sum(sums[0]);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) reduce_last(const float* partial, element* total, int count) {
    float sum = 0.0f;
    for (int n = threadIdx.x; n < count; n += THREADS) sum += partial[n];
    sum = block_sum(sum);
    if (threadIdx.x == 0) total[0] = convert<element>(sum);
}
