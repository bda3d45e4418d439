// Two-dimensional register tile: each thread computes TM x TN outputs.
//
// Before: every multiply-add read a float of A from shared memory, so the load pipe, not the multiply-add pipe, set the
// pace.
// Now: TM + TN shared reads, held in registers, feed TM * TN multiply-adds.
// A block owns a BM x BN tile of C and walks along K in slices of BK. Thread (ty, tx) owns rows ty*TM.. and columns
// tx*TN.. of the tile.
// Limited now by: instructions that move one float each between global and shared memory, and a tile of A that lies along
// k: to read it four floats at a time, as it does B, the compiler keeps four k of TM rows in registers (see step 6).

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int PASS_A = THREADS / BK, PASS_B = THREADS / BN;  // rows of a slice that the threads load at once

static_assert(BM % TM == 0, "BM: a multiple of TM");
static_assert(BN % TN == 0, "BN: a multiple of TN");
static_assert(THREADS <= 1024, "(BM / TM) * (BN / TN): a block has at most 1024 threads");
static_assert(THREADS % BK == 0 && BM % PASS_A == 0, "BM, BK: the threads load whole rows of A, in equal passes");
static_assert(THREADS % BN == 0 && BK % PASS_B == 0, "BK, BN: the threads load whole rows of B, in equal passes");
static_assert(4 * BK * (BM + BN) <= 48 * 1024, "BK * (BM + BN): the two tiles fit 48 KB of shared memory");

// BLOCKS a multiprocessor holds at once: while one waits at a barrier another multiplies; this bounds a thread's registers
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    __shared__ float sA[BM][BK];
    __shared__ float sB[BK][BN];

    // blocks are numbered along the rows of C: a grid's x alone is long enough for every shape
    const int tiles_n = (N + BN - 1) / BN;
    const int block_row = blockIdx.x / tiles_n * BM, block_col = blockIdx.x % tiles_n * BN;
    const int ty = threadIdx.x / (BN / TN), tx = threadIdx.x % (BN / TN);

    float acc[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        // zeros past the edges, so that the product needs no guard
#pragma unroll
        for (int i = 0; i < BM; i += PASS_A) {
            const int row = i + threadIdx.x / BK, k = threadIdx.x % BK;
            const bool inside = block_row + row < M && k0 + k < K;
            sA[row][k] = inside ? A[(block_row + row) * K + k0 + k] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < BK; i += PASS_B) {
            const int k = i + threadIdx.x / BN, col = threadIdx.x % BN;
            const bool inside = k0 + k < K && block_col + col < N;
            sB[k][col] = inside ? B[(k0 + k) * N + block_col + col] : 0.0f;
        }
        __syncthreads();  // read after write: the slice is complete before anyone reads it

#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float rA[TM], rB[TN];
#pragma unroll
            for (int m = 0; m < TM; ++m) rA[m] = sA[ty * TM + m][k];
#pragma unroll
            for (int n = 0; n < TN; ++n) rB[n] = sB[k][tx * TN + n];
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
        for (int n = 0; n < TN; ++n) {
            const int row = block_row + ty * TM + m, col = block_col + tx * TN + n;
            if (row < M && col < N) C[row * N + col] = acc[m][n];
        }
}
