// Conflict-free: no two lanes meet in a bank of shared memory, and blocks that run together share their rows in L2.
//
// Before: the lanes that turn A wrote to one bank, one after the other; lanes in rows of eight made a warp's 16-byte reads
// take four passes; and blocks that ran at the same time walked along one row of tiles, reading all of B for it.
// Now: sA's rows are padded by four floats, so that neighbours of a row of A land in different banks. Lanes sit in pairs
// along both sides of the warp's tile: a pass serves eight lanes, and lanes that read the same address count once. Tiles
// are taken in bands of RASTER rows, column by column: the tiles in flight form a square, and L2 sees each row and column
// of them once.
// A block owns a BM x BN tile of C, as in step 8.
// Limited now by: the register banks; a multiply-add reads three registers, and they are often in the same bank (see
// step 10).

#include "ptx.cuh"
#include "vec.cuh"

constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WM = LANES_M * TM, WN = LANES_N * TN;
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int LDA = BM + 4;  // sA's rows are padded: the banks of one row's neighbours are four apart
constexpr int PASS_A = THREADS / BK, PASS_B = THREADS * VEC_N / BN;  // rows of a slice that the threads load at once

static_assert(BM % WM == 0 && TM % 4 == 0, "TM: a multiple of 4, and the warp's 4 * TM rows divide BM");
static_assert(BN % WN == 0 && TN % 4 == 0, "TN: a multiple of 4, and the warp's 8 * TN columns divide BN");
static_assert(THREADS <= 1024, "(BM / TM) * (BN / TN): a block has at most 1024 threads");
static_assert(THREADS % BK == 0 && BM % PASS_A == 0, "BM, BK: the threads load whole rows of A, in equal passes");
static_assert(THREADS * VEC_N % BN == 0 && BK % PASS_B == 0, "BK, BN: the threads load whole rows of B, in equal passes");
static_assert(STAGES >= 2, "STAGES: at least 2, one to read and one to fill");

// BLOCKS a multiprocessor holds at once: while one waits at a barrier another multiplies; this bounds a thread's registers
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(16) float shared[];
    float(*sA)[BK][LDA] = reinterpret_cast<float(*)[BK][LDA]>(shared);
    float(*sB)[BK][BN] = reinterpret_cast<float(*)[BK][BN]>(shared + STAGES * BK * LDA);

    // tiles are numbered down a band of RASTER rows of tiles, then along it
    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int band = blockIdx.x / (RASTER * tiles_n), in_band = blockIdx.x % (RASTER * tiles_n);
    const int height = min(RASTER, tiles_m - band * RASTER);
    const int block_row = (band * RASTER + in_band % height) * BM, block_col = in_band / height * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_m = lane / 2 % 2 + lane / 16 * 2, lane_n = lane % 2 + lane / 4 % 4 * 2;
    const int ty = warp / (BN / WN) * WM + lane_m * 4, tx = warp % (BN / WN) * WN + lane_n * 4;

    const auto copy_slice = [&](int k0, int stage) {
        if (k0 >= K) return;
        // zeros past the edges, so that the product needs no guard; an address there may wrap around, it is not read
#pragma unroll
        for (int i = 0; i < BM; i += PASS_A) {
            const int row = i + threadIdx.x / BK, k = threadIdx.x % BK;
            const bool inside = block_row + row < M && k0 + k < K;
            cp_async<4>(shared_address(&sA[stage][k][row]), &A[unsigned(block_row + row) * K + k0 + k], inside);
        }
#pragma unroll
        for (int i = 0; i < BK; i += PASS_B) {
            const int k = i + threadIdx.x * VEC_N / BN, col = threadIdx.x * VEC_N % BN;
            const bool inside = k0 + k < K && block_col + col < N;
            cp_async<4 * VEC_N>(shared_address(&sB[stage][k][col]), &B[unsigned(k0 + k) * N + block_col + col], inside);
        }
    };

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        copy_slice(stage * BK, stage);
        cp_async_commit();
    }

    float acc[TM][TN] = {};
    int stage = 0;
    for (int k0 = 0; k0 < K; k0 += BK) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // read after write: everyone's share of this slice has landed; write after read: everyone has
                          // read the slice before it, whose place is filled next
        copy_slice(k0 + (STAGES - 1) * BK, stage == 0 ? STAGES - 1 : stage - 1);
        cp_async_commit();

#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float rA[TM], rB[TN];
#pragma unroll
            for (int m = 0; m < TM; m += 4) load<4>(&rA[m], &sA[stage][k][ty + m * LANES_M]);
#pragma unroll
            for (int n = 0; n < TN; n += 4) load<4>(&rB[n], &sB[stage][k][tx + n * LANES_N]);
#pragma unroll
            for (int m = 0; m < TM; ++m)
#pragma unroll
                for (int n = 0; n < TN; ++n) acc[m][n] += rA[m] * rB[n];
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

#pragma unroll
    for (int m = 0; m < TM; ++m)
#pragma unroll
        for (int n = 0; n < TN; n += VEC_N) {
            const int row = block_row + ty + m / 4 * 4 * LANES_M + m % 4, col = block_col + tx + n / 4 * 4 * LANES_N + n % 4;
            if (row < M && col < N) store<VEC_N>(&C[row * N + col], &acc[m][n]);
        }
}
