// One mma.sync and its fragments: every lane fetches the words of A and B that it must hold, straight from global memory.
//
// A warp's matrix instruction multiplies sixteen rows of A by eight columns of B over thirty-two bytes of K. Lane i holds words
// of the rows i / 4 and i / 4 + 8 of A and of the column i / 4 of B, and gets sums of those rows in the columns 2 * (i % 4) and
// the next. Where B's rows run along N, a lane puts its words together from two elements.
// A block of WARPS warps owns WARPS such tiles of C, side by side; nothing is shared between warps.
// Limited now by: loads of four bytes that the caches must serve again for every tile (see step 2).

#include "mma.cuh"
#include "output.cuh"

constexpr int MINE = Operand::bytes, WORD = 4 / MINE, DEPTH = Operand::depth;  // elements of a word; of K in one instruction

// The word at k of a row of K elements, zeros from K on or where there is no such row.
__device__ __forceinline__ unsigned word(const element* row, int k, int K, bool inside) {
    return inside && k < K ? *reinterpret_cast<const unsigned*>(row + k) : 0;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
tcgemm(const element* __restrict__ A, const element* __restrict__ B, output* __restrict__ C, int M, int N, int K) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles_n = (N + 8 * WARPS - 1) / (8 * WARPS);
    const int row = blockIdx.x / tiles_n * 16 + lane / 4, first_col = (blockIdx.x % tiles_n * WARPS + warp) * 8, col = first_col + lane / 4;
    const element* const upper = A + static_cast<size_t>(row) * K;
    const element* const lower = upper + static_cast<size_t>(8) * K;

    float sums[4] = {};
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        const int k = k0 + lane % 4 * WORD, next = k + DEPTH / 2;
        const unsigned a[4] = {word(upper, k, K, row < M), word(lower, k, K, row + 8 < M),
                               word(upper, next, K, row < M), word(lower, next, K, row + 8 < M)};
#if VARIANT_NN
        const auto pair = [&](int k) -> unsigned {
            if (col >= N || k >= K) return 0;
            const element* const two = B + static_cast<size_t>(k) * N + col;
            return two[0].bits | (k + 1 < K ? static_cast<unsigned>(two[N].bits) << 16 : 0);
        };
        const unsigned b[2] = {pair(k), pair(next)};
#else
        const element* const column = B + static_cast<size_t>(col) * K;
        const unsigned b[2] = {word(column, k, K, col < N), word(column, next, K, col < N)};
#endif
        mma<Operand>(sums, a, b);
    }
    const int n = first_col + lane % 4 * 2;
    if (row < M && n < N) store<2>(C + static_cast<size_t>(row) * N + n, sums);
    if (row + 8 < M && n < N) store<2>(C + static_cast<size_t>(row + 8) * N + n, sums + 2);
}
