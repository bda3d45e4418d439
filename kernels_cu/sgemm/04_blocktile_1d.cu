// One-dimensional register tile: each thread computes TM outputs of one column.
//
// Before: a multiply-add read one float of each shared tile.
// Now: one float of B, held in a register, feeds TM multiply-adds; and with the same threads a block owns a larger tile,
// so each element is fetched from global memory fewer times.
// A block owns a BM x BN tile of C and walks along K in slices of BK. Thread (ty, tx) owns rows ty*TM.. and column tx of
// the tile; the threads of a warp share their rows, so they read A from one address.
// Limited now by: shared-memory reads still, a float of A for every multiply-add (see step 5).

constexpr int THREADS = BM / TM * BN;
constexpr int PASS_A = THREADS / BK, PASS_B = THREADS / BN;  // rows of a slice that the threads load at once

static_assert(BM % TM == 0, "BM: a multiple of TM");
static_assert(THREADS <= 1024, "BM / TM * BN: a block has at most 1024 threads");
static_assert(THREADS % BK == 0 && BM % PASS_A == 0, "BM, BK: the threads load whole rows of A, in equal passes");
static_assert(THREADS % BN == 0 && BK % PASS_B == 0, "BK, BN: the threads load whole rows of B, in equal passes");
static_assert(4 * BK * (BM + BN) <= 48 * 1024, "BK * (BM + BN): the two tiles fit 48 KB of shared memory");

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    __shared__ float sA[BM][BK];
    __shared__ float sB[BK][BN];

    // blocks are numbered along the rows of C: a grid's x alone is long enough for every shape
    const int tiles_n = (N + BN - 1) / BN;
    const int block_row = blockIdx.x / tiles_n * BM, block_col = blockIdx.x % tiles_n * BN;
    const int ty = threadIdx.x / BN, tx = threadIdx.x % BN;

    float acc[TM] = {};
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
            const float rB = sB[k][tx];
#pragma unroll
            for (int m = 0; m < TM; ++m) acc[m] += sA[ty * TM + m][k] * rB;
        }
        __syncthreads();  // write after read: nobody overwrites the slice while another warp still reads it
    }

#pragma unroll
    for (int m = 0; m < TM; ++m) {
        const int row = block_row + ty * TM + m, col = block_col + tx;
        if (row < M && col < N) C[row * N + col] = acc[m];
    }
}
