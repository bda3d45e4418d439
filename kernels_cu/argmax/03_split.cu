// Split: several blocks share a row; the one that ends last joins their keys.
//
// Before: a row was one block's, however long.
// Now: SPLIT blocks take every SPLIT-th share of a row's packs, leave their keys, and count themselves in; who counts last reads all keys.
// The largest of integers is the same in any order, so the result is, too.
// A block owns packs of one row: block s of it those of lanes s * LANES to (s + 1) * LANES of the row's SPLIT * LANES.
// Limited now by: memory for many rows; for a single one the way to L2 and back, three times at its end: key, counter, keys.

#include "keys.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32;

static_assert(LANES % 32 == 0 && LANES <= 1024, "LANES is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(LANES) argmax(const element* x, unsigned long long* keys, unsigned* arrived, long long* index,
                                                           int M, int N, long long stride_x) {
    __shared__ unsigned long long slots[WARPS], last_slots[WARPS];
    __shared__ bool last;
    const int row = blockIdx.x / SPLIT, part = blockIdx.x % SPLIT, t = part * LANES + threadIdx.x;
    x += row * stride_x;

    Best best{t * VEC};
    for (int first = t * VEC; first < N; first += LOADS * SPLIT * LANES * VEC) {
        Pack<element, VEC> held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int n = first + l * SPLIT * LANES * VEC;
            held[l] = read<HINT, VEC>(x + (n < N ? n : t * VEC));  // past the end its first pack again, of which it takes nothing twice
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float e[VEC];
            unpack(e, held[l]);
#pragma unroll
            for (int i = 0; i < VEC; ++i) best.take(e[i], first + l * SPLIT * LANES * VEC + i);
        }
    }
    unsigned long long own = largest_of_warp(t * VEC < N ? best.key() : 0);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = own;
    __syncthreads();  // every warp's key is there before any reads them
    own = reduce_slots<WARPS>(slots, LargerKey{});
    if (threadIdx.x == 0) {
        keys[blockIdx.x] = own;
        __threadfence();
        last = atomicInc(arrived + row, SPLIT - 1) == SPLIT - 1;  // wraps to zero, as the next launch needs it
        __threadfence();
    }
    __syncthreads();  // all threads know whether theirs is the row's last block, and if so see every block's key
    if (!last) return;
    own = 0;
    for (int s = threadIdx.x; s < SPLIT; s += LANES) own = max(own, __ldcg(keys + row * SPLIT + s));
    own = largest_of_warp(own);
    if (threadIdx.x % 32 == 0) last_slots[threadIdx.x / 32] = own;
    __syncthreads();  // every warp's key is there before any reads them
    own = reduce_slots<WARPS>(last_slots, LargerKey{});
    if (threadIdx.x == 0) index[row] = place_of(own);
}
