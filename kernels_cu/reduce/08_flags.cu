// Flags: a block's sum and the word that it is there travel as one, and the first block waits for all of them.
//
// Before: the sum was written, made seen by a fence and counted by an atomic operation, one after the other; only then did the last block
// read what all had left: four ways to L2 and back at the end of every launch.
// Now: no fence and no counter.  Eight bytes are written at once or not at all, so who sees the flag has the sum.  The first block takes
// the sums as they come, clears them for the next launch, and adds them in the order of the blocks: two ways, the same bits every time.
// A block owns chunks of LOADS * THREADS packs: chunk block, then block + grid, …; what does not fill a pack is left to the first block.
// Limited now by: memory's rate; and at its ends, by filling the device and emptying it.

#include "ptx.cuh"
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

extern "C" __global__ void __launch_bounds__(THREADS) reduce(const element* x, unsigned long long* partial, element* total, int N) {
    __shared__ float slots[WARPS], last_slots[WARPS];
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
    if (threadIdx.x == 0) store_relaxed(partial + blockIdx.x, 1ull << 32 | __float_as_uint(sum));
    if (blockIdx.x > 0) return;
    sum = 0.0f;
    for (int n = threadIdx.x; n < gridDim.x; n += THREADS) {
        unsigned long long word;
        do word = atomicExch(partial + n, 0);  // taken and cleared at once, as the next launch needs it
        while (word == 0);
        sum += __uint_as_float(static_cast<unsigned>(word));
    }
    sum = block_sum(sum, last_slots);
    if (threadIdx.x == 0) total[0] = convert<element>(sum);
}
