// What the tiles of a large product leave over: rows of B and of C that are not aligned, a few columns of C.
#pragma once

constexpr int FRINGE_THREADS = 256, ALIGN_THREADS = 256;

// The first `columns` columns of B, and zeros up to `pitch`, a multiple of 4: every row starts at a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(ALIGN_THREADS)
sgemm_align(const float* __restrict__ B, float* __restrict__ aligned, int N, int columns, int pitch) {
    const size_t k = blockIdx.x;
#pragma unroll 8
    for (int col = threadIdx.x; col < pitch; col += ALIGN_THREADS) aligned[k * pitch + col] = col < columns ? B[k * N + col] : 0;
}

// The columns of C from `columns` on, which are few: each warp takes one row of A past all of them.
extern "C" __global__ void __launch_bounds__(FRINGE_THREADS)
sgemm_fringe(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K, int columns) {
    const int row = (blockIdx.x * FRINGE_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= M) return;
    for (int col = columns; col < N; ++col) {
        float sum = 0;
        for (int k = lane; k < K; k += 32) sum = fmaf(A[static_cast<size_t>(row) * K + k], B[static_cast<size_t>(k) * N + col], sum);
        for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (lane == 0) C[static_cast<size_t>(row) * N + col] = sum;
    }
}

// Store the warp's tile of C, whose first element is (row_0, col_0), four rows at a time through shared memory: whole lines are
// stored, whatever their alignment.  rows: room for LANES_M * (WN + 1) floats of this warp alone.  Rows m with m % SLICES == group.
__device__ __forceinline__ void store_through(float* rows, const float (&acc)[TM][TN], float* C, int row_0, int col_0, int lane_m,
                                              int lane_n, int group, int M, int N, int columns) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < TM; ++m) {
        if (m % SLICES != group) continue;
#pragma unroll
        for (int n = 0; n < TN; ++n) rows[lane_m * (WN + 1) + n / 4 * 4 * LANES_N + lane_n * 4 + n % 4] = acc[m][n];
        __syncwarp();  // the rows are complete
#pragma unroll
        for (int i = 0; i < LANES_M * WN; i += 32) {
            const int row = row_0 + m / 4 * 4 * LANES_M + i / WN * 4 + m % 4, col = col_0 + i % WN + lane;
            if (row < M && col < columns) C[static_cast<size_t>(row) * N + col] = rows[i / WN * (WN + 1) + i % WN + lane];
        }
        __syncwarp();  // the rows are read: the next four may take their place
    }
}
