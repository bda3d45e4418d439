// Multi-stage: slices of K travel to shared memory by cp.async, past the registers, while earlier ones are multiplied.
//
// Before: nothing was multiplied while a slice was on its way, and every byte passed through registers.
// Now: STAGES slices have room in shared memory. A thread starts the copies of a later slice, closes them as a group, and
// waits only until its oldest group has landed. One barrier a slice does for both hazards: all have landed, all have read.
// A block owns a BM x BN tile of C, a warp WM x WN of it; the layout is that of step 3.
// Limited now by: a warp's own reads, which its products wait for (see step 5).

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
static_assert(STAGES >= 2, "STAGES: at least 2, one to read and one to fill");
static_assert(!TURNED || (MINE == 2 && BN % 64 == 0), "nn: ldmatrix turns 16-bit elements only; take nt");

// Where 16-byte unit `unit` of a row of `line` bytes lies: moved by the row's number, so that eight rows of a matrix meet in no bank.
template <int line>
__device__ __forceinline__ unsigned place(int row, int unit) {
    return row * line + (unit ^ (line == 64 ? row / 2 % 4 : row % 8)) * 16;
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcgemm(const element* __restrict__ A, const element* __restrict__ B, output* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;

    const int tiles_n = (N + BN - 1) / BN, slices = (K + BK - 1) / BK;
    const int block_row = blockIdx.x / tiles_n * BM, block_col = blockIdx.x % tiles_n * BN;

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
    for (int slice = 0; slice < slices; ++slice) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this slice has landed for everyone, and everyone has read the one before
        if (slice + STAGES - 1 < slices) copy_slice((slice + STAGES - 1) % STAGES * STAGE);
        cp_async_commit();
        const unsigned sA = base + slice % STAGES * STAGE, sB = sA + TILE_A;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            unsigned a[MI][4], b[NJ / 2][4];  // b: two fragments at a time
#pragma unroll
            for (int i = 0; i < MI; ++i) ldmatrix<4>(a[i], sA + place<LINE>(warp_m + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < NJ; j += 2) {
                if constexpr (TURNED)
                    ldmatrix_transposed<4>(b[j / 2], sB + place<B_LINE>(step * 16 + lane % 16, warp_n / 8 + j + lane / 16));
                else
                    ldmatrix<4>(b[j / 2], sB + place<LINE>(warp_n + (j + lane / 16) * 8 + lane % 8, step * 2 + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < MI; ++i)
#pragma unroll
                for (int j = 0; j < NJ; ++j) {
                    const unsigned column[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                    mma<Operand>(sums[i][j], a[i], column);
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
