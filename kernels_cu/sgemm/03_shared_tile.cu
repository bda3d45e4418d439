// Shared-memory tile: a block loads a slice of A and of B once, and all its threads read it from there.
//
// Before: each element of A and B was loaded by every thread that used it.
// Now: one thread loads it from global memory, BN (or BM) threads read it from shared memory.
// A block owns a BM x BN tile of C and walks along K in slices of BK: load a slice, wait, multiply it, wait. Thread
// (ty, tx) owns row ty and column tx of the tile.
// Limited now by: shared-memory reads. A multiply-add still takes a float of each tile (those of A, which lie along k, can
// come several to an instruction), so the load pipe, not the multiply-add pipe, sets the pace (see step 4).

constexpr int THREADS = BM * BN;
constexpr int PASS_A = THREADS / BK, PASS_B = THREADS / BN;  // rows of a slice that the threads load at once

static_assert(THREADS <= 1024, "BM * BN: a block has one thread an output, at most 1024");
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

    float acc = 0.0f;
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
        for (int k = 0; k < BK; ++k)
            acc += sA[ty][k] * sB[k][tx];
        __syncthreads();  // write after read: nobody overwrites the slice while another warp still reads it
    }

    const int row = block_row + ty, col = block_col + tx;
    if (row < M && col < N) C[row * N + col] = acc;
}
