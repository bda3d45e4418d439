// Swizzled: sixteen-byte units are moved by their row's number, so that the rows of a matrix lie in different banks.
//
// Before: the eight rows that one ldmatrix reads began at the same bank, so it took eight turns where one would do.
// Now: unit u of row r lies at u exclusive-or r (of its low bits): eight rows of a matrix cover all banks once, and so do
// neighbouring threads that write a row. No room is lost, and the place costs one instruction.
// A block owns a BM x BN tile of C, a warp WM x WN of it; a slice of K has LINE bytes a row. Else it is step 2.
// Limited now by: the way through registers, during which nothing is multiplied (see step 4).

#include "mma.cuh"
#include "output.cuh"
#include "ptx.cuh"

constexpr int MINE = Operand::bytes, UNIT = 16 / MINE;    // bytes of an element; elements of 16 bytes
constexpr int BK = LINE / MINE, STEPS = LINE / 32;         // an mma takes 32 bytes of K
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32, MI = WM / 16, NJ = WN / 8;
constexpr unsigned TILE_A = BM * LINE;  // bytes
#if VARIANT_NN
constexpr int TURNED = 1, B_ROWS = BK, B_LINE = BN * MINE;  // rows of K, BN columns each
#else
constexpr int TURNED = 0, B_ROWS = BN, B_LINE = LINE;
#endif
constexpr int ROWS_A = THREADS / (LINE / 16), ROWS_B = THREADS / (B_LINE / 16);  // rows that the block copies at once

static_assert(LINE == 64 || LINE == 128, "LINE: 64 or 128 bytes of K in a slice");
static_assert(BM % WM == 0 && WM % 16 == 0 && BN % WN == 0 && WN % 16 == 0, "WM, WN: multiples of 16 that divide BM and BN");
static_assert(THREADS <= 1024 && BM % ROWS_A == 0 && B_ROWS % ROWS_B == 0, "BM, BN, WM, WN: the threads copy whole rows");
static_assert(!TURNED || (MINE == 2 && BN % 64 == 0), "nn: ldmatrix turns 16-bit elements only; take nt");

// Where 16-byte unit `unit` of a row of `line` bytes lies: moved by the row's number, so that eight rows of a matrix meet in no bank.
template <int line>
__device__ __forceinline__ unsigned place(int row, int unit) {
    return row * line + (unit ^ (line == 64 ? row / 2 % 4 : row % 8)) * 16;
}

// Put 16 bytes of global memory into shared memory, zeros where there are none.
__device__ __forceinline__ void store_unit(unsigned to, const element* from, bool inside) {
    const uint4 unit = inside ? *reinterpret_cast<const uint4*>(from) : uint4{};
    store_shared(to, unit.x, unit.y, unit.z, unit.w);
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
    float sums[MI][NJ][4] = {};
    for (int slice = 0; slice < slices; ++slice) {
        const int k = slice * BK;
#pragma unroll
        for (int i = 0; i < BM; i += ROWS_A) {
            const int row = block_row + row_a + i, at = k + unit_a * UNIT;
            store_unit(base + place<LINE>(row_a + i, unit_a), A + static_cast<size_t>(row) * K + at, row < M && at < K);
        }
#pragma unroll
        for (int i = 0; i < B_ROWS; i += ROWS_B) {
            const int row = (TURNED ? k : block_col) + row_b + i, at = (TURNED ? block_col : k) + unit_b * UNIT;
            const bool inside = TURNED ? row < K && at < N : row < N && at < K;
            store_unit(base + TILE_A + place<B_LINE>(row_b + i, unit_b), B + static_cast<size_t>(row) * (TURNED ? N : K) + at, inside);
        }
        __syncthreads();  // the slice is complete before anyone reads it
        const unsigned sA = base, sB = base + TILE_A;
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
        __syncthreads();  // everyone has read the slice before the next one takes its place
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
