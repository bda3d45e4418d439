// Split: several blocks share a row; the one that ends last joins their values, in the order of the blocks.
//
// Before: a row was one block's, however long.
// Now: SPLIT blocks leave a value each and count themselves in; who counts last joins them: one launch, the same bits every time.
// A block owns packs of one row: block s of it those of lanes s * LANES to (s + 1) * LANES of the row's SPLIT * LANES.
// Limited now by: memory; for a single row of moderate length, by the way to L2 and back at its end.

#include "operation.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32;

static_assert(LANES % 32 == 0 && LANES <= 1024, "LANES is a number of whole warps, at most 1024");

__device__ __forceinline__ float block_value(float value, float* slots) {
    value = reduce_lanes<32>(value, Operation{});
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    __syncthreads();  // every warp's value is there before any reads them
    return reduce_slots<WARPS>(slots, Operation{});
}

extern "C" __global__ void __launch_bounds__(LANES) axis(const element* x, float* partial, unsigned* arrived, element* y, int M, int N,
                                                         long long stride_x) {
    __shared__ float slots[WARPS], last_slots[WARPS];
    __shared__ bool last;
    const Operation join;
    const int row = blockIdx.x / SPLIT, part = blockIdx.x % SPLIT;
    x += row * stride_x;
    float value = Operation::neutral();
    for (int first = (part * LANES + threadIdx.x) * VEC; first < N; first += LOADS * SPLIT * LANES * VEC) {
        Pack<element, VEC> held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int n = first + l * SPLIT * LANES * VEC;
            if (n < N) held[l] = read<HINT, VEC>(x + n);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float e[VEC];
            unpack(e, held[l]);
            if (first + l * SPLIT * LANES * VEC < N) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) value = join(value, e[i]);
            }
        }
    }
    value = block_value(value, slots);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = value;
        __threadfence();
        last = atomicInc(arrived + row, SPLIT - 1) == SPLIT - 1;  // wraps to zero, as the next launch needs it
        __threadfence();
    }
    __syncthreads();  // all threads know whether theirs is the row's last block, and if so see every block's value
    if (!last) return;
    value = Operation::neutral();
    for (int s = threadIdx.x; s < SPLIT; s += LANES) value = join(value, __ldcg(partial + row * SPLIT + s));
    value = block_value(value, last_slots);
    if (threadIdx.x == 0) y[row] = convert<element>(finish(value, N));
}
