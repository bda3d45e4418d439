// Coalesced: neighbouring threads of a warp compute neighbouring outputs of one row.
//
// Before: the lanes of a warp read as many different rows of A, one float of every sector fetched.
// Now: they share a row of A (one address, broadcast) and read consecutive floats of B, whole sectors; the stores to C
// are consecutive too. Only the two lines that map a thread to its output have changed.
// A block owns a BM x BN tile of C, one thread an output; the threads of a warp walk along a row of the tile.
// Limited now by: the load pipe. Every multiply-add still needs two loads, and each element of A and B is fetched by
// every thread that uses it, from the caches at best (see step 3).

constexpr int THREADS = BM * BN;

static_assert(THREADS <= 1024, "BM * BN: a block has one thread an output, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    // blocks are numbered along the rows of C: a grid's x alone is long enough for every shape
    const int tiles_n = (N + BN - 1) / BN;
    const int block_row = blockIdx.x / tiles_n * BM, block_col = blockIdx.x % tiles_n * BN;

    const int row = block_row + threadIdx.x / BN;
    const int col = block_col + threadIdx.x % BN;
    if (row >= M || col >= N) return;

    float acc = 0.0f;
    for (int k = 0; k < K; ++k)
        acc += A[row * K + k] * B[k * N + col];

    C[row * N + col] = acc;
}
