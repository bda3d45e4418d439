// Warp specialisation: one warpgroup only loads, the others only multiply, and registers go where they are needed.
//
// Before: the threads that multiplied also started the copies, so all met at a barrier after every slice.
// Now: the producer runs ahead as far as there are free stages; a full barrier tells the consumers that a stage has landed, an
// empty one tells the producer that all consumers have read it. Nobody meets anybody else. A consumer leaves its last group
// of products running while it waits for the next stage. setmaxnreg takes registers from the producer's warpgroup, which
// needs few, and gives them to the consumers, whose sums need many.
// A block owns a BM x BN tile of C, each of CONSUMERS consumers BM / CONSUMERS rows of it.
// Limited now by: L2, which serves the same tiles to many blocks (see step 9).

#include "mbarrier.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                                  // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE / Operand::bytes;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int WM = BM / CONSUMERS, PARTS = WM / 64;        // rows of a consumer, and how many wgmma they take
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE;  // bytes
#if VARIANT_NN
constexpr int TURNED = 1, B_LEADING = BK * LINE, B_STEP = Operand::depth * LINE;  // 64 columns of B, then the next 64
#else
constexpr int TURNED = 0, B_LEADING = 16, B_STEP = 32;
#endif

static_assert(CONSUMERS * PARTS * 64 == BM && BN % 8 == 0 && BN <= 256, "BM, BN: 64 rows or a multiple a consumer, columns in eights");
static_assert(!TURNED || BN % 64 == 0, "BN: whole swizzles of columns");
static_assert(!TURNED || Operand::bytes == 2, "nn: wgmma reads B across K for 16-bit types only; take nt");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcgemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, output* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), barriers = base + STAGES * STAGE;
    const auto full = [&](int stage) { return barriers + 8 * stage; };
    const auto empty = [&](int stage) { return barriers + 8 * (STAGES + stage); };
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), CONSUMERS);
        }
        fence_mbarrier_init();
        tma_prefetch_map(A), tma_prefetch_map(B);
    }
    __syncthreads();  // the barriers are made before anyone uses them

    const int cols = (N + BN - 1) / BN, slices = (K + BK - 1) / BK;
    const int row = blockIdx.x / cols * BM, col = blockIdx.x % cols * BN;

    if (group == 0) {
        lower_registers<40>();
        if (threadIdx.x == 0) {
            int stage = 0, round = 0;
            for (int slice = 0; slice < slices; ++slice) {
                mbarrier_wait(empty(stage), round ^ 1);
                mbarrier_expect(full(stage), STAGE);
                tma_load(base + stage * STAGE, A, slice * BK, row, full(stage));
#pragma unroll
                for (int i = 0; i < (TURNED ? BN / 64 : 1); ++i)
                    tma_load(base + stage * STAGE + TILE_A + i * BK * LINE, B, TURNED ? col + 64 * i : slice * BK,
                             TURNED ? slice * BK : col, full(stage));
                if (++stage == STAGES) stage = 0, round ^= 1;
            }
        }
    } else {
        raise_registers<CONSUMERS == 1 ? 240 : 232>();
        const int consumer = group - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        const unsigned long long from_a = wgmma_descriptor<LINE>(base + consumer * WM * LINE, 16, 1024);
        const unsigned long long from_b = wgmma_descriptor<LINE>(base + TILE_A, B_LEADING, 1024);
        int stage = 0, round = 0;
        float sums[PARTS][BN / 2];
        int before = 0;
        for (int slice = 0; slice < slices; ++slice) {
            mbarrier_wait(full(stage), round);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < LINE / 32; ++k)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    wgmma<Operand, 0, TURNED>(sums[part], from_a + ((stage * STAGE + part * 64 * LINE + k * 32) >> 4),
                                              from_b + ((stage * STAGE + k * B_STEP) >> 4), slice + k);
            wgmma_commit();
            wgmma_wait<1>();
            if (slice > 0 && thread == 0) mbarrier_arrive(empty(before));
            before = stage;
            if (++stage == STAGES) stage = 0, round ^= 1;
        }
        wgmma_wait<0>();
#pragma unroll
        for (int part = 0; part < PARTS; ++part) pin(sums[part]);

#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int i = 0; i < BN / 2; i += 2) {  // two neighbours in one row
                const int m = row + consumer * WM + part * 64 + warp * 16 + i / 2 % 2 * 8 + lane / 4;
                const int n = col + i / 4 * 8 + lane % 4 * 2;
                if (m < M && n < N) store<2>(C + static_cast<size_t>(m) * N + n, &sums[part][i]);
            }
    }
}
