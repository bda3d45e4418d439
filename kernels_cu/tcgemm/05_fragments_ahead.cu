// Fragments ahead: a warp reads the next step's fragments while this one's products run, and blocks share what L2 holds.
//
// Before: a warp waited for its ldmatrix before every step of products, and for its neighbours at every slice.
// Now: two sets of fragments take turns, so that reads and products overlap within a warp; the barrier stands between a
// slice's last reads and its last products. Blocks are numbered in bands of RASTER rows of tiles, so that those that run
// together share rows of A and columns of B in L2.
// A block owns a BM x BN tile of C, a warp WM x WN of it; inside it is step 4.
// Limited now by: mma.sync itself, which on sm_90 cannot keep the tensor cores busy (see step 6).

#include "mma.cuh"
#include "output.cuh"
#include "ptx.cuh"

constexpr int MINE = Operand::bytes, UNIT = 16 / MINE;    // bytes of an element; elements of 16 bytes
constexpr int BK = LINE / MINE, STEPS = LINE / 32;         // an mma takes 32 bytes of K
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32, MI = WM / 16, NJ = WN / 8;
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE;  // bytes
#if VARIANT_NN
constexpr int TURNED = 1, B_ROWS = BK, B_LINE = BN * MINE;  // rows of K, BN columns each
#else
constexpr int TURNED = 0, B_ROWS = BN, B_LINE = LINE;
#endif
constexpr int ROWS_A = THREADS / (LINE / 16), ROWS_B = THREADS / (B_LINE / 16);  // rows that the block copies at once

static_assert(LINE == 64 || LINE == 128, "LINE: 64 or 128 bytes of K in a slice");
static_assert(BM % WM == 0 && WM % 16 == 0 && BN % WN == 0 && WN % 16 == 0, "WM, WN: multiples of 16 that divide BM and BN");
static_assert(THREADS <= 1024 && BM % ROWS_A == 0 && B_ROWS % ROWS_B == 0, "BM, BN, WM, WN: the threads copy whole rows");
static_assert(STAGES >= 3, "STAGES: at least 3, one to read, one that has landed, one to fill");
static_assert(!TURNED || (MINE == 2 && BN % 64 == 0), "nn: ldmatrix turns 16-bit elements only; take nt");

// Where 16-byte unit `unit` of a row of `line` bytes lies: moved by the row's number, so that eight rows of a matrix meet in no bank.
template <int line>
__device__ __forceinline__ unsigned place(int row, int unit) {
    return row * line + (unit ^ (line == 64 ? row / 2 % 4 : row % 8)) * 16;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tcgemm(const element* __restrict__ A, const element* __restrict__ B, output* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;

    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, slices = (K + BK - 1) / BK;
    const int band = blockIdx.x / (RASTER * tiles_n), in_band = blockIdx.x % (RASTER * tiles_n);
    const int height = min(RASTER, tiles_m - band * RASTER);
    const int block_row = (band * RASTER + in_band % height) * BM, block_col = in_band / height * BN;

    // what this thread copies: one unit of every ROWS_A-th row of A, of every ROWS_B-th row of B
    const int row_a = threadIdx.x / (LINE / 16), unit_a = threadIdx.x % (LINE / 16);
    const int row_b = threadIdx.x / (B_LINE / 16), unit_b = threadIdx.x % (B_LINE / 16);
    const int pitch_b = TURNED ? N : K;
    const element* from_a = A + static_cast<size_t>(block_row + row_a) * K + unit_a * UNIT;
    const element* from_b = B + static_cast<size_t>(TURNED ? row_b : block_col + row_b) * pitch_b + unit_b * UNIT;
    if (TURNED) from_b += block_col;
    int k_left = K;
    const auto copy_slice = [&](unsigned stage) {
        const bool inside_a = unit_a * UNIT < k_left;
        const bool inside_b = TURNED ? block_col + unit_b * UNIT < N : unit_b * UNIT < k_left;
#pragma unroll
        for (int i = 0; i < BM / ROWS_A; ++i) {
            const int row = row_a + i * ROWS_A;
            const bool inside = inside_a && block_row + row < M;
            const element* const from = inside ? from_a + static_cast<size_t>(i * ROWS_A) * K : A;
            cp_async<16>(base + stage + place<LINE>(row, unit_a), from, inside);
        }
#pragma unroll
        for (int i = 0; i < B_ROWS / ROWS_B; ++i) {
            const int row = row_b + i * ROWS_B;
            const bool inside = inside_b && (TURNED ? row < k_left : block_col + row < N);
            const element* const from = inside ? from_b + static_cast<size_t>(i * ROWS_B) * pitch_b : B;
            cp_async<16>(base + stage + TILE_A + place<B_LINE>(row, unit_b), from, inside);
        }
        from_a += BK;
        from_b += TURNED ? static_cast<size_t>(BK) * N : BK;
        k_left -= BK;
    };

#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < slices) copy_slice(i * STAGE);
        cp_async_commit();
    }
    float sums[MI][NJ][4] = {};
    unsigned a[2][MI][4], b[2][NJ][2];
    unsigned reading = base, filling = (STAGES - 1) * STAGE;
    const auto load = [&](int set, int step) {
#pragma unroll
        for (int i = 0; i < MI; ++i)
            ldmatrix<4>(a[set][i], reading + place<LINE>(warp_m + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < NJ; j += 2) {
            unsigned r[4];
            if constexpr (TURNED)
                ldmatrix_transposed<4>(r, reading + TILE_A + place<B_LINE>(step * 16 + lane % 16, warp_n / 8 + j + lane / 16));
            else
                ldmatrix<4>(r, reading + TILE_A + place<LINE>(warp_n + (j + lane / 16) * 8 + lane % 8, step * 2 + lane / 8 % 2));
            b[set][j][0] = r[0], b[set][j][1] = r[1], b[set][j + 1][0] = r[2], b[set][j + 1][1] = r[3];
        }
    };
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // the first slice has landed for everyone
    load(0, 0);
    for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next slice has landed for everyone, and everyone has read this one
                filling = reading - base;
                reading = reading == base + (STAGES - 1) * STAGE ? base : reading + STAGE;
            }
            load((step + 1) % 2, (step + 1) % STEPS);  // past the last slice it reads what is never used
            if (step == 0) {
                if (slice + STAGES - 1 < slices) copy_slice(filling);
                cp_async_commit();
            }
#pragma unroll
            for (int i = 0; i < MI; ++i)
#pragma unroll
                for (int n = 0; n < NJ; ++n) {
                    const int j = i % 2 ? NJ - 1 - n : n;  // to and fro, so that neighbours share a fragment
                    mma<Operand>(sums[i][j], a[step % 2][i], b[step % 2][j]);
                }
        }
    }

#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NJ; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int m = block_row + warp_m + i * 16 + half * 8 + lane / 4, n = block_col + warp_n + j * 8 + lane % 4 * 2;
                if (m < M && n < N) store<2>(C + static_cast<size_t>(m) * N + n, &sums[i][j][2 * half]);
            }
}
