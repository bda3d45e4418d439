// Last block: whoever ends last adds what all blocks left, in their order.
//
// Before: atomic additions came in any order, and needed a fill.
// Now: a block writes its sum, makes it seen, and counts itself in; the one that counts last finds all sums written and adds them in the
// order of the blocks: one launch, and the same bits every time.  The counter wraps to zero by itself, as the next launch needs it.
// A block owns chunks of LOADS * THREADS packs: chunk block, then block + grid, …; what does not fill a pack is left to the first block.
// Limited now by: memory's rate; and at its ends, by filling the device and by the last block's few microseconds.

#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

__device__ __forceinline__ float block_sum(float value, float* slots) {
    value = reduce_lanes<32>(value, Add{});
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    __syncthreads();  // every warp's sum is there before any reads them
    return reduce_slots<WARPS>(slots, Add{});
}

extern "C" __global__ void __launch_bounds__(THREADS) reduce(const element* x, float* partial, unsigned* arrived, element* total, int N) {
    __shared__ float slots[WARPS], last_slots[WARPS];
    __shared__ bool last;
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
    float sum = block_sum(sums[0], slots);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();  // all threads know whether theirs is the last block, and if so see every block's sum
    if (!last) return;
    sum = 0.0f;
    for (int n = threadIdx.x; n < gridDim.x; n += THREADS) sum += __ldcg(partial + n);
    sum = block_sum(sum, last_slots);
    if (threadIdx.x == 0) total[0] = convert<element>(sum);
}
