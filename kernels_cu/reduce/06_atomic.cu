// Atomic: each block adds its sum to the result itself.
//
// Before: a second launch added what the blocks left.
// Now: one atomic addition a block, in whatever order they end: the result differs in its last bits from run to run.  The result must be
// zero before the first block ends, so a fill goes before the launch.
// A block owns chunks of LOADS * THREADS packs: chunk block, then block + GRID, …; what does not fill a pack is left to the first block.
// Limited now by: the fill, as long as a launch; and not by memory's rate but by an order that nobody can repeat.

#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS) reduce(const element* x, element* total, int N) {
    __shared__ float slots[WARPS];
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
    float sum = reduce_lanes<32>(sums[0], Add{});
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = sum;
    __syncthreads();  // every warp's sum is there before any reads them
    sum = reduce_slots<WARPS>(slots, Add{});
    if (threadIdx.x == 0) atomicAdd(total, sum);
}
