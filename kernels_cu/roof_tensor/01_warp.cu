// A warp's matrix instructions on operands that stay in registers: C = A B^T, R times over.
//
// A warp owns TILES_M by TILES_N tiles of C, as large as one instruction sums, a block WARPS warps, one below the other.  A warp's rows of
// A and of B, all of K (STEPS instructions deep), are in its registers before the clock starts; then TILES_M * TILES_N tiles are summed
// side by side, none of them waiting for another.  Every pass starts its sums from zero, so that the result is that of one pass.
// Limited now by: the tensor cores as mma.sync reaches them, or the warps that feed them; this is its roof.

#include "elements.cuh"
#include "mma.cuh"
#include "stamp.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) roof_tensor(const void* A, const void* B, Operand::sum* C,
                                                                     unsigned long long* stamps, int M, int N, int K, int R) {
    const int lane = threadIdx.x % 32, down = (M + 16 * TILES_M * WARPS - 1) / (16 * TILES_M * WARPS);
    const int row = (blockIdx.x % down * WARPS + threadIdx.x / 32) * 16 * TILES_M, column = blockIdx.x / down * 8 * TILES_N;
    constexpr int WORD = 4 / Operand::bytes;  // elements of four bytes
    unsigned a[STEPS][TILES_M][4], b[STEPS][TILES_N][2];
    Operand::sum d[TILES_M][TILES_N][4];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int k = s * Operand::depth + lane % 4 * WORD;
#pragma unroll
        for (int m = 0; m < TILES_M; ++m)
#pragma unroll
            for (int r = 0; r < 4; ++r)
                a[s][m][r] = word_of_row<Operand>(A, M, K, row + m * 16 + lane / 4 + r % 2 * 8, k + r / 2 * 4 * WORD);
#pragma unroll
        for (int n = 0; n < TILES_N; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r) b[s][n][r] = word_of_row<Operand>(B, N, K, column + n * 8 + lane / 4, k + r * 4 * WORD);
    }
    __syncthreads();  // hazard: the clock must not start while a warp still waits for its data
    const Stamp start = stamp_now();
#pragma unroll 1
    for (int pass = 0; pass < R; ++pass) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int m = 0; m < TILES_M; ++m)
#pragma unroll
                for (int n = 0; n < TILES_N; ++n) {
                    if (s == 0) d[m][n][0] = d[m][n][1] = d[m][n][2] = d[m][n][3] = 0;
                    mma<Operand>(d[m][n], a[s][m], b[s][n]);
                }
    }
    __syncthreads();  // hazard: the clock must not stop while a warp still works
    const Stamp end = stamp_now();
#pragma unroll
    for (int m = 0; m < TILES_M; ++m)
#pragma unroll
        for (int n = 0; n < TILES_N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int y = row + m * 16 + lane / 4 + i / 2 * 8, x = column + n * 8 + lane % 4 * 2 + i % 2;
                if (y < M && x < N) C[static_cast<long long>(y) * N + x] = d[m][n][i];
            }
    if (threadIdx.x == 0) store_stamps(stamps, start, end);
}
