// TMA: one thread names a tile, and the copy engine fetches it, swizzles it and counts its bytes.
//
// Before: all threads computed addresses for their sixteen bytes, checked edges, and waited for their own copies.
// Now: a tensor map tells the copy engine the shape of A and B. One thread starts a copy of a whole tile; what lies outside
// comes as zeros; an mbarrier, which knows how many bytes to expect, tells everyone when they have landed.
// A block owns a BM x BN tile of C, each of CONSUMERS warpgroups BM / CONSUMERS rows of it; STAGES slices have room.
// Limited now by: the barrier at the end of every slice, at which nothing is multiplied (see step 8).

#include "mbarrier.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                                  // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE / Operand::bytes;
constexpr int THREADS = 128 * CONSUMERS;
constexpr int WM = BM / CONSUMERS, PARTS = WM / 64;        // rows of a consumer, and how many wgmma they take
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE;  // bytes
#if VARIANT_NN
constexpr int TURNED = 1, B_LEADING = BK * LINE, B_STEP = Operand::depth * LINE;  // 64 columns of B, then the next 64
#else
constexpr int TURNED = 0, B_LEADING = 16, B_STEP = 32;
#endif

static_assert(CONSUMERS * PARTS * 64 == BM && BN % 8 == 0 && BN <= 256, "BM, BN: 64 rows or a multiple a warpgroup, columns in eights");
static_assert(!TURNED || BN % 64 == 0, "BN: whole swizzles of columns");
static_assert(!TURNED || Operand::bytes == 2, "nn: wgmma reads B across K for 16-bit types only; take nt");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcgemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, output* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), barriers = base + STAGES * STAGE;
    const auto full = [&](int stage) { return barriers + 8 * stage; };
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(full(stage), 1);
        fence_mbarrier_init();
    }
    __syncthreads();  // the barriers are made before anyone uses them

    const int cols = (N + BN - 1) / BN, slices = (K + BK - 1) / BK;
    const int row = blockIdx.x / cols * BM, col = blockIdx.x % cols * BN;

    const auto load = [&](int slice) {  // by one thread
        const int stage = slice % STAGES;
        mbarrier_expect(full(stage), STAGE);
        tma_load(base + stage * STAGE, A, slice * BK, row, full(stage));
#pragma unroll
        for (int i = 0; i < (TURNED ? BN / 64 : 1); ++i)
            tma_load(base + stage * STAGE + TILE_A + i * BK * LINE, B, TURNED ? col + 64 * i : slice * BK, TURNED ? slice * BK : col,
                     full(stage));
    };
    if (threadIdx.x == 0)
        for (int slice = 0; slice < min(STAGES, slices); ++slice) load(slice);

    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const unsigned long long from_a = wgmma_descriptor<LINE>(base + group * WM * LINE, 16, 1024);
    const unsigned long long from_b = wgmma_descriptor<LINE>(base + TILE_A, B_LEADING, 1024);
    float sums[PARTS][BN / 2];
    for (int slice = 0; slice < slices; ++slice) {
        const int stage = slice % STAGES;
        mbarrier_wait(full(stage), slice / STAGES % 2);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < LINE / 32; ++k)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                wgmma<Operand, 0, TURNED>(sums[part], from_a + ((stage * STAGE + part * 64 * LINE + k * 32) >> 4),
                                          from_b + ((stage * STAGE + k * B_STEP) >> 4), slice + k);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // everyone's products have read the stage before it is filled again
        if (threadIdx.x == 0 && slice + STAGES < slices) load(slice + STAGES);
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) pin(sums[part]);

#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < BN / 2; i += 2) {  // two neighbours in one row
            const int m = row + group * WM + part * 64 + warp * 16 + i / 2 % 2 * 8 + lane / 4;
            const int n = col + i / 4 * 8 + lane % 4 * 2;
            if (m < M && n < N) store<2>(C + static_cast<size_t>(m) * N + n, &sums[part][i]);
        }
}
