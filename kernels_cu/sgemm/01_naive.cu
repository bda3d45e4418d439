// Naive: one thread computes one output, straight from global memory.
//
// Every later step is measured against this one. A thread walks along its row of A and down its column of B.
// A block owns a BM x BN tile of C, one thread an output; the threads of a warp walk down a column of the tile.
// Limited now by: uncoalesced access. At each k the lanes of a warp read A from as many different rows, and each read
// fetches a whole sector of memory for one float; their stores to C are scattered the same way (see step 2).

constexpr int THREADS = BM * BN;

static_assert(THREADS <= 1024, "BM * BN: a block has one thread an output, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    // blocks are numbered along the rows of C: a grid's x alone is long enough for every shape
    const int tiles_n = (N + BN - 1) / BN;
    const int block_row = blockIdx.x / tiles_n * BM, block_col = blockIdx.x % tiles_n * BN;

    const int row = block_row + threadIdx.x % BM;
    const int col = block_col + threadIdx.x / BM;
    if (row >= M || col >= N) return;

    float acc = 0.0f;
    for (int k = 0; k < K; ++k)
        acc += A[row * K + k] * B[k * N + col];

    C[row * N + col] = acc;
}
