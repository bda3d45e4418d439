// wgmma: a warpgroup of four warps multiplies straight from shared memory, asynchronously.
//
// Before: every fragment went through registers, by ldmatrix, and one warp's instruction did little for what it cost to issue.
// Now: one instruction multiplies as many rows of A as four warps have, by up to BN columns of B, both named by descriptors: where
// they lie in shared memory and how their rows are swizzled. Only the sums are in registers. The products of a slice
// run as a group that is waited for before the slice's room is filled again.
// A block owns a BM x BN tile of C, each of CONSUMERS warpgroups BM / CONSUMERS rows of it. Slices come by cp.async, as in step 4,
// with a fence: what plain writes and copies put into shared memory, wgmma reads through another path.
// Limited now by: the threads' own work on addresses and edges (see step 7).

#include "output.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                                  // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE / Operand::bytes;
constexpr int THREADS = 128 * CONSUMERS;
constexpr int WM = BM / CONSUMERS, PARTS = WM / 64;        // rows of a consumer, and how many wgmma they take
constexpr int UNIT = 16 / Operand::bytes, ROWS = THREADS / (LINE / 16);  // elements of 16 bytes; rows that the block copies at once
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE;  // bytes
#if VARIANT_NN
constexpr int TURNED = 1, B_LEADING = BK * LINE, B_STEP = Operand::depth * LINE;  // 64 columns of B, then the next 64
#else
constexpr int TURNED = 0, B_LEADING = 16, B_STEP = 32;
#endif

static_assert(CONSUMERS * PARTS * 64 == BM && BN % 8 == 0 && BN <= 256, "BM, BN: 64 rows or a multiple a warpgroup, columns in eights");
static_assert(BM % ROWS == 0 && BN % ROWS == 0 && BK % ROWS == 0, "BM, BN, CONSUMERS: the threads copy whole rows");
static_assert(STAGES >= 2, "STAGES: at least 2, one to read and one to fill");
static_assert(!TURNED || BN % 64 == 0, "BN: whole swizzles of columns");
static_assert(!TURNED || Operand::bytes == 2, "nn: wgmma reads B across K for 16-bit types only; take nt");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcgemm(const element* __restrict__ A, const element* __restrict__ B, output* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int cols = (N + BN - 1) / BN, slices = (K + BK - 1) / BK;
    const int row = blockIdx.x / cols * BM, col = blockIdx.x % cols * BN;

    // 16 bytes of every ROWS-th row, moved by the row's number as wgmma expects it
    const int copied = threadIdx.x / (LINE / 16), unit = threadIdx.x % (LINE / 16);
    const auto place = [&](int row) { return row * LINE + (unit ^ row % 8) * 16; };
    const auto copy_slice = [&](int slice) {
        const unsigned sA = base + slice % STAGES * STAGE, sB = sA + TILE_A;
        const int k = slice * BK + unit * UNIT;
#pragma unroll
        for (int i = copied; i < BM; i += ROWS) {
            const bool inside = row + i < M && k < K;
            cp_async<16>(sA + place(i), inside ? A + static_cast<size_t>(row + i) * K + k : A, inside);
        }
#if VARIANT_NN
        for (int c = 0; c < BN; c += 64)  // BK rows of K, columns of one line
#pragma unroll
            for (int i = copied; i < BK; i += ROWS) {
                const int at = slice * BK + i, n = col + c + unit * UNIT;
                const bool inside = at < K && n < N;
                cp_async<16>(sB + c * LINE + place(i), inside ? B + static_cast<size_t>(at) * N + n : B, inside);
            }
#else
#pragma unroll
        for (int i = copied; i < BN; i += ROWS) {
            const bool inside = col + i < N && k < K;
            cp_async<16>(sB + place(i), inside ? B + static_cast<size_t>(col + i) * K + k : B, inside);
        }
#endif
    };
#pragma unroll
    for (int slice = 0; slice < STAGES - 1; ++slice) {
        if (slice < slices) copy_slice(slice);
        cp_async_commit();
    }

    const unsigned long long from_a = wgmma_descriptor<LINE>(base + group * WM * LINE, 16, 1024);
    const unsigned long long from_b = wgmma_descriptor<LINE>(base + TILE_A, B_LEADING, 1024);
    float sums[PARTS][BN / 2];
    for (int slice = 0; slice < slices; ++slice) {
        const int stage = slice % STAGES;
        cp_async_wait<STAGES - 2>();
        fence_proxy_async();  // what this thread's copies wrote, for wgmma
        __syncthreads();      // this slice has landed for everyone, and everyone's products have read the one before
        if (slice + STAGES - 1 < slices) copy_slice(slice + STAGES - 1);
        cp_async_commit();
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < LINE / 32; ++k)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                wgmma<Operand, 0, TURNED>(sums[part], from_a + ((stage * STAGE + part * 64 * LINE + k * 32) >> 4),
                                          from_b + ((stage * STAGE + k * B_STEP) >> 4), slice + k);
        wgmma_commit();
        wgmma_wait<0>();
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) pin(sums[part]);

#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < BN / 2; i += 2) {  // two neighbours in one row
            const int m = row + group * WM + part * 64 + warp * 16 + i / 2 % 2 * 8 + lane / 4, n = col + i / 4 * 8 + lane % 4 * 2;
            if (m < M && n < N) store<2>(C + static_cast<size_t>(m) * N + n, &sums[part][i]);
        }
}
