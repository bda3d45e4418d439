// What the tiles of a large product leave over: rows of B and of C that are not aligned, a few columns of C.
#pragma once

constexpr int ALIGN_THREADS = 256, EDGES = FRINGE > 0 ? FRINGE : 1;

// A row of B, its first `columns` floats, then zeros up to `pitch`, a multiple of 4, so that every row starts at a multiple of 16
// bytes.  Rows from K on are zeros.  The few columns of B that are left out become the rows of `edge`.
extern "C" __global__ void __launch_bounds__(ALIGN_THREADS)
sgemm_align_b(const float* __restrict__ B, float* __restrict__ aligned, float* __restrict__ edge, int N, int K, int columns, int pitch) {
    const int k = blockIdx.x;
#pragma unroll 8
    for (int col = threadIdx.x; col < pitch; col += ALIGN_THREADS)
        aligned[static_cast<size_t>(k) * pitch + col] = k < K && col < columns ? B[static_cast<size_t>(k) * N + col] : 0;
    const int col = columns + threadIdx.x;
    if (k < K && col < N && threadIdx.x < EDGES) edge[static_cast<size_t>(threadIdx.x) * K + k] = B[static_cast<size_t>(k) * N + col];
}

// A row of A, then zeros up to `pitch`; and, as it passes, its products with the rows of `edge`: C's columns from `columns` on.
extern "C" __global__ void __launch_bounds__(ALIGN_THREADS)
sgemm_align_a(const float* __restrict__ A, const float* __restrict__ edge, float* __restrict__ aligned, float* __restrict__ C, int N,
              int K, int columns, int pitch) {
    __shared__ float sums[EDGES][ALIGN_THREADS / 32];
    const size_t row = blockIdx.x;
    float sum[EDGES] = {};
#pragma unroll 4
    for (int k = threadIdx.x; k < pitch; k += ALIGN_THREADS) {
        const float a = k < K ? A[row * K + k] : 0;
        aligned[row * pitch + k] = a;
#pragma unroll
        for (int i = 0; i < EDGES; ++i)
            if (i < N - columns && k < K) sum[i] = fmaf(a, edge[static_cast<size_t>(i) * K + k], sum[i]);
    }
#pragma unroll
    for (int i = 0; i < EDGES; ++i) {
        for (int other = 16; other > 0; other /= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], other);
        if (threadIdx.x % 32 == 0) sums[i][threadIdx.x / 32] = sum[i];
    }
    __syncthreads();  // every warp's sums are there
    if (threadIdx.x < EDGES && columns + threadIdx.x < N) {
        float total = 0;
        for (int warp = 0; warp < ALIGN_THREADS / 32; ++warp) total += sums[threadIdx.x][warp];
        C[row * N + columns + threadIdx.x] = total;
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
