// Fragments ahead: a warp reads the next step's fragments while this one's products run, and blocks share what L2 holds.
//
// Before: a warp waited for its ldmatrix before every step of products, and for its neighbours at every slice.
// Now: a fragment is read anew as soon as its last product has started, into the same registers, a row of products ahead of its
// next use; a slice's copies are spread over its products; the barrier stands before its last step, when nothing more is read from it.
// Blocks are numbered in bands of RASTER rows of tiles, so that those that run together share rows of A and columns of B in L2.
// Each lane stores 16 bytes of C at a time.
// A block owns a BM x BN tile of C, a warp WM x WN of it; inside it is step 4.
// Limited now by: shared memory, which copies write and ldmatrix reads; and mma.sync, which on sm_90 cannot keep the tensor cores
// busy (see step 6).

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
constexpr int COPIES_A = BM / ROWS_A, COPIES_B = B_ROWS / ROWS_B, COPIES = COPIES_A + COPIES_B;

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

    // what this thread copies: a unit of every ROWS_A-th row of A, of every ROWS_B-th row of B.  Rows of A and columns of B past the last
    // are copies of it, and never stored; past the end of K nothing is read and zeros are written
    const int row_a = threadIdx.x / (LINE / 16), unit_a = threadIdx.x % (LINE / 16);
    const int row_b = threadIdx.x / (B_LINE / 16), unit_b = threadIdx.x % (B_LINE / 16);
    const element* from_a = A + static_cast<size_t>(block_row) * K;
    const element* from_b = TURNED ? B + block_col : B + static_cast<size_t>(block_col) * K;
    unsigned at_a[COPIES_A], at_b[TURNED ? 1 : COPIES_B];
#pragma unroll
    for (int i = 0; i < COPIES_A; ++i) at_a[i] = min(row_a + i * ROWS_A, M - 1 - block_row) * K + unit_a * UNIT;
    if constexpr (TURNED) at_b[0] = row_b * N + min(unit_b * UNIT, N - UNIT - block_col);
#pragma unroll
    for (int i = 0; !TURNED && i < COPIES_B; ++i) at_b[i] = min(row_b + i * ROWS_B, N - 1 - block_col) * K + unit_b * UNIT;
    const unsigned to_a = base + place<LINE>(row_a, unit_a), to_b = base + TILE_A + place<B_LINE>(row_b, unit_b);
    int k_left = K;
    const auto copy = [&](unsigned stage, int i) {  // the i-th of what this thread copies of a slice
        if (i < COPIES_A) cp_async<16>(to_a + stage + i * ROWS_A * LINE, from_a + at_a[i], unit_a * UNIT < k_left);
        else if (TURNED) {
            const int row = (i - COPIES_A) * ROWS_B;
            cp_async<16>(to_b + stage + row * B_LINE, from_b + at_b[0] + static_cast<size_t>(row) * N, row_b + row < k_left);
        } else cp_async<16>(to_b + stage + (i - COPIES_A) * ROWS_B * LINE, from_b + at_b[i - COPIES_A], unit_b * UNIT < k_left);
    };
    const auto next_slice = [&] {
        cp_async_commit();
        from_a += BK;
        from_b += TURNED ? static_cast<size_t>(BK) * N : BK;
        k_left -= BK;
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) copy(stage * STAGE, i);
        next_slice();
    }

    float sums[MI][NJ][4] = {};
    unsigned a[MI][4], b[NJ][2];
    unsigned reading = base, filling = (STAGES - 1) * STAGE;
    const auto load_a = [&](int i, int step) {
        ldmatrix<4>(a[i], reading + place<LINE>(warp_m + i * 16 + lane % 16, step * 2 + lane / 16));
    };
    const auto load_b = [&](int j, int step) {  // two columns of eight
        unsigned r[4];
        if constexpr (TURNED)
            ldmatrix_transposed<4>(r, reading + TILE_A + place<B_LINE>(step * 16 + lane % 16, warp_n / 8 + j + lane / 16));
        else
            ldmatrix<4>(r, reading + TILE_A + place<LINE>(warp_n + (j + lane / 16) * 8 + lane % 8, step * 2 + lane / 8 % 2));
        b[j][0] = r[0], b[j][1] = r[1], b[j + 1][0] = r[2], b[j + 1][1] = r[3];
    };
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // the first slice has landed for everyone
#pragma unroll
    for (int i = 0; i < MI; ++i) load_a(i, 0);
#pragma unroll
    for (int j = 0; j < NJ; j += 2) load_b(j, 0);
    for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {
                next_slice();
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next slice has landed for everyone, and everyone has read this one
                filling = reading - base;
                reading = reading == base + (STAGES - 1) * STAGE ? base : reading + STAGE;
            }
#pragma unroll
            for (int i = 0; i < MI; ++i) {
#pragma unroll
                for (int j = 0; j < NJ; ++j) {
                    mma<Operand>(sums[i][j], a[i], b[j]);
                    const int n = (step * MI + i) * NJ + j, spread = (STEPS - 1) * MI * NJ / COPIES;
                    if (step < STEPS - 1 && n % spread == spread - 1 && n / spread < COPIES) copy(filling, n / spread);
                    if (i == MI - 1 && j % 2) load_b(j - 1, (step + 1) % STEPS);  // past the last slice it reads what is never used
                }
                load_a(i, (step + 1) % STEPS);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < MI; ++i)
        store_rows<NJ>(C, block_row + warp_m + i * 16, block_col + warp_n, M, N, &sums[i][0][0]);
}
