// Vectorised loads and stores, and a transposed tile of A.
//
// Before: every instruction between global and shared memory moved one float, and a thread gathered its column of A
// from TM rows of the shared tile, several k at once to save instructions, at the price of registers.
// Now: rows of A move VEC_K floats at a time, rows of B and C VEC_N (four wherever the shape keeps them aligned), and A
// is turned on its way into shared memory, so that a thread reads the column of A for one k, like the row of B, four
// floats an instruction.
// A block owns a BM x BN tile of C and walks along K in slices of BK. Thread (ty, tx) owns rows ty*TM.. and columns
// tx*TN.. of the tile.
// Limited now by: bank conflicts. Neighbouring threads read B from addresses TN floats apart, which leaves part of the
// banks idle in every access (see step 7).

#include "vec.cuh"

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int PASS_A = THREADS * VEC_K / BK, PASS_B = THREADS * VEC_N / BN;  // rows of a slice that the threads load at once

static_assert(BM % TM == 0 && TM % 4 == 0, "TM: divides BM, and a multiple of 4");
static_assert(BN % TN == 0 && TN % 4 == 0, "TN: divides BN, and a multiple of 4");
static_assert(BK % 4 == 0, "BK: a multiple of 4");
static_assert(THREADS <= 1024, "(BM / TM) * (BN / TN): a block has at most 1024 threads");
static_assert(THREADS * VEC_K % BK == 0 && BM % PASS_A == 0, "BM, BK: the threads load whole rows of A, in equal passes");
static_assert(THREADS * VEC_N % BN == 0 && BK % PASS_B == 0, "BK, BN: the threads load whole rows of B, in equal passes");
static_assert(4 * BK * (BM + BN) <= 48 * 1024, "BK * (BM + BN): the two tiles fit 48 KB of shared memory");

// BLOCKS a multiprocessor holds at once: while one waits at a barrier another multiplies; this bounds a thread's registers
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    __shared__ __align__(16) float sA[BK][BM];
    __shared__ __align__(16) float sB[BK][BN];

    // blocks are numbered along the rows of C: a grid's x alone is long enough for every shape
    const int tiles_n = (N + BN - 1) / BN;
    const int block_row = blockIdx.x / tiles_n * BM, block_col = blockIdx.x % tiles_n * BN;
    const int ty = threadIdx.x / (BN / TN), tx = threadIdx.x % (BN / TN);

    float acc[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        // zeros past the edges, so that the product needs no guard
#pragma unroll
        for (int i = 0; i < BM; i += PASS_A) {
            const int row = i + threadIdx.x * VEC_K / BK, k = threadIdx.x * VEC_K % BK;
            const bool inside = block_row + row < M && k0 + k < K;
            float v[VEC_K] = {};
            if (inside) load<VEC_K>(v, &A[(block_row + row) * K + k0 + k]);
#pragma unroll
            for (int j = 0; j < VEC_K; ++j) sA[k + j][row] = v[j];
        }
#pragma unroll
        for (int i = 0; i < BK; i += PASS_B) {
            const int k = i + threadIdx.x * VEC_N / BN, col = threadIdx.x * VEC_N % BN;
            const bool inside = k0 + k < K && block_col + col < N;
            float v[VEC_N] = {};
            if (inside) load<VEC_N>(v, &B[(k0 + k) * N + block_col + col]);
            store<VEC_N>(&sB[k][col], v);
        }
        __syncthreads();  // read after write: the slice is complete before anyone reads it

#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float rA[TM], rB[TN];
#pragma unroll
            for (int m = 0; m < TM; m += 4) load<4>(&rA[m], &sA[k][ty * TM + m]);
#pragma unroll
            for (int n = 0; n < TN; n += 4) load<4>(&rB[n], &sB[k][tx * TN + n]);
#pragma unroll
            for (int m = 0; m < TM; ++m)
#pragma unroll
                for (int n = 0; n < TN; ++n) acc[m][n] += rA[m] * rB[n];
        }
        __syncthreads();  // write after read: nobody overwrites the slice while another warp still reads it
    }

#pragma unroll
    for (int m = 0; m < TM; ++m)
#pragma unroll
        for (int n = 0; n < TN; n += VEC_N) {
            const int row = block_row + ty * TM + m, col = block_col + tx * TN + n;
            if (row < M && col < N) store<VEC_N>(&C[row * N + col], &acc[m][n]);
        }
}
