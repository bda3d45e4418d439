// Keys: value and place in one integer, the larger of which is the better, so that all that meets is two integers.
//
// Before: each meeting compared values for order and for NaN, and places.
// Now: a float's bits, turned so that they sort as it does, with NaN above all, stand over the place turned round (see keys.cuh).  A thread
// keeps value and place of its best while it scans, since further right only a larger element is better, and makes the key once.  LOADS
// packs of VEC elements are under way together.
// A block owns ROWS rows, LANES threads each; lane t of a row takes packs t, t + LANES, …
// Limited now by: a row's block: few long rows leave most multiprocessors idle.

#include "keys.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES > 32 ? LANES / 32 : 1;

static_assert(LANES % 32 == 0 || (LANES < 32 && (LANES & (LANES - 1)) == 0), "LANES is a power of 2 up to 32, or whole warps");
static_assert(LANES <= 32 || ROWS == 1, "a row of several warps has a block for itself");
static_assert(LANES * ROWS % 32 == 0 && LANES * ROWS <= 1024, "a block is a number of whole warps, at most 1024 threads");

extern "C" __global__ void __launch_bounds__(LANES* ROWS) argmax(const element* x, long long* index, int M, int N, long long stride_x) {
    __shared__ unsigned long long slots[WARPS];
    const int t = threadIdx.x % LANES, row = blockIdx.x * ROWS + threadIdx.x / LANES;
    const int columns = row < M ? N : 0;  // lanes of rows past the end stay for the shuffles
    x += row * stride_x;

    Best best{t * VEC};
    for (int first = t * VEC; first < columns; first += LOADS * LANES * VEC) {
        Pack<element, VEC> held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int n = first + l * LANES * VEC;
            if (n < columns) held[l] = read<HINT, VEC>(x + n);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float e[VEC];
            unpack(e, held[l]);
            if (first + l * LANES * VEC < columns) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) best.take(e[i], first + l * LANES * VEC + i);
            }
        }
    }
    unsigned long long own = t * VEC < columns ? best.key() : 0;
    if constexpr (LANES < 32) own = reduce_lanes<LANES>(own, LargerKey{});
    else own = largest_of_warp(own);
    if constexpr (WARPS > 1) {
        if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = own;
        __syncthreads();  // every warp's key is there before any reads them
        own = reduce_slots<WARPS>(slots, LargerKey{});
    }
    if (t == 0 && row < M) index[row] = place_of(own);
}
