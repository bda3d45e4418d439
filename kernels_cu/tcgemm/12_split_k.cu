// Split K inside a cluster: blocks share the products of one tile and add up through distributed shared memory.
//
// Before: a product of few tiles kept few multiprocessors busy, or cut into narrow tiles read A again for each of them.
// Now: the SPLIT blocks of a cluster take a piece of K each. Every one then owns a piece of the tile's columns: the others write
// their sums of it into its shared memory by asynchronous stores that count at its mbarrier, and it adds them in the order of
// K, so that every run gives the same bits; no sum travels through global memory and no block waits for all. The blocks of a
// cluster meet only before the first of these stores, where each has long made its barriers. The launch ahead may still
// be ending while this one makes its own: it waits just before its first load.
// C leaves straight from registers, 16 bytes a lane and whole sectors of memory, for there is no next tile to store it under.
// A cluster owns one tile of BM x BN; each of CONSUMERS warpgroups multiplies BM / CONSUMERS rows of it, one more loads. The
// tiles are small: their sums fit without setmaxnreg.
// Limited now by: memory, where one dimension is small; by the time to start and to end where all are.

#include "cluster.cuh"
#include "mbarrier.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                             // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE / Operand::bytes;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int WM = BM / CONSUMERS, PARTS = WM / 64;   // rows of a consumer, and how many wgmma they take
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE;  // bytes
constexpr int PIECE = BN / 2 / SPLIT, QUADS = PARTS * PIECE / 4;    // sums of a thread that one block adds up, in fours
constexpr unsigned SLOT = CONSUMERS * QUADS * 128 * 16;             // bytes of what one block sends another
#if VARIANT_NN
constexpr int TURNED = 1, B_LEADING = BK * LINE, B_STEP = Operand::depth * LINE;  // 64 columns of B, then the next 64
#else
constexpr int TURNED = 0, B_LEADING = 16, B_STEP = 32;
#endif

static_assert(CONSUMERS * PARTS * 64 == BM && BN % 8 == 0 && BN <= 256, "BM, BN: 64 rows or a multiple a consumer, columns in eights");
static_assert(BN % (8 * SPLIT) == 0, "SPLIT: every block adds up whole groups of 8 columns");
static_assert(SPLIT <= 8, "SPLIT: a cluster has at most 8 blocks");
static_assert(BN % (TURNED ? 64 : 8) == 0, "BN: whole swizzles of columns");
static_assert(!TURNED || Operand::bytes == 2, "nn: wgmma reads B across K for 16-bit types only; take nt");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tcgemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, output* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), slots = base + STAGES * STAGE, barriers = slots + (SPLIT - 1) * SLOT;
    const auto full = [&](int stage) { return barriers + 8 * stage; };
    const auto empty = [&](int stage) { return barriers + 8 * (STAGES + stage); };
    const unsigned arrived = barriers + 16 * STAGES;  // the barrier of what other blocks send
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), split = SPLIT > 1 ? cluster_rank() : 0;

    if (threadIdx.x == 0) {
        tma_prefetch_map(A), tma_prefetch_map(B);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), CONSUMERS);
        }
        if (SPLIT > 1) mbarrier_init(arrived, 1);
        fence_mbarrier_init();
        if (SPLIT > 1) mbarrier_expect(arrived, (SPLIT - 1) * SLOT);
    }
    __syncthreads();  // the barriers are made before anyone uses them
    if constexpr (SPLIT > 1) cluster_arrive();
    launch_dependents();

    // a grid of rows by columns of tiles: nothing is divided before the first load
    const int row = blockIdx.x / SPLIT * BM, col = blockIdx.y * BN, slices = (K + BK - 1) / BK;
    const int first = slices * split / SPLIT, last = slices * (split + 1) / SPLIT;

    if (group == 0) {
        if (threadIdx.x == 0) {
            wait_for_launch();
            int stage = 0, round = 0;
            for (int slice = first; slice < last; ++slice) {
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
        __syncwarp();  // the warp goes to the cluster's barrier as one
        if constexpr (SPLIT > 1) cluster_wait();
    } else {
        const int consumer = group - 1, thread = threadIdx.x % 128, warp = thread / 32;
        const unsigned long long from_a = wgmma_descriptor<LINE>(base + consumer * WM * LINE, 16, 1024);
        const unsigned long long from_b = wgmma_descriptor<LINE>(base + TILE_A, B_LEADING, 1024);
        float sums[PARTS][BN / 2];
#pragma unroll
        for (int i = 0; i < PARTS * BN / 2; ++i) sums[i / (BN / 2)][i % (BN / 2)] = 0;  // a piece of K may be empty
        int stage = 0, round = 0, before = 0;
        for (int slice = first; slice < last; ++slice) {
            mbarrier_wait(full(stage), round);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < LINE / 32; ++k)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    wgmma<Operand, 0, TURNED>(sums[part], from_a + ((stage * STAGE + part * 64 * LINE + k * 32) >> 4),
                                              from_b + ((stage * STAGE + k * B_STEP) >> 4), 1);
            wgmma_commit();
            wgmma_wait<1>();
            if (slice > first && thread == 0) mbarrier_arrive(empty(before));
            before = stage;
            if (++stage == STAGES) stage = 0, round ^= 1;
        }
        wgmma_wait<0>();
#pragma unroll
        for (int part = 0; part < PARTS; ++part) pin(sums[part]);

        if constexpr (SPLIT > 1) {
            cluster_wait();  // the others have made the barrier that counts what they get
            // quad q of a thread: four neighbouring sums; lanes side by side, so that a warp writes whole lines
            const unsigned own = slots + (consumer * QUADS * 128 + thread) * 16;
#pragma unroll
            for (int to = 0; to < SPLIT; ++to) {
                if (to == split) continue;
                const unsigned there = cluster_address(own + (split - (split > to)) * SLOT, to), counted = cluster_address(arrived, to);
#pragma unroll
                for (int q = 0; q < QUADS; ++q) {
                    const float* const s = &sums[q / (PIECE / 4)][to * PIECE + q % (PIECE / 4) * 4];
                    store_cluster_async(there + q * 128 * 16, s[0], s[1], s[2], s[3], counted);
                }
            }
            mbarrier_wait_cluster(arrived, 0);  // all that others send has come; what this block sent, they wait for before they end
        }

#pragma unroll
        for (int piece = 0; piece < SPLIT; ++piece) {
            if (SPLIT > 1 && piece != split) continue;
#pragma unroll
            for (int q = 0; SPLIT > 1 && q < QUADS; ++q) {
                float* const own = &sums[q / (PIECE / 4)][piece * PIECE + q % (PIECE / 4) * 4];
                float sum[4] = {};
#pragma unroll
                for (int from = 0; from < SPLIT; ++from) {
                    float s[4] = {own[0], own[1], own[2], own[3]};
                    const unsigned slot = slots + (from - (from > piece)) * SLOT;
                    if (from != piece) load_shared(s, slot + ((consumer * QUADS + q) * 128 + thread) * 16);
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[i] = from == 0 ? s[i] : sum[i] + s[i];
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) own[i] = sum[i];
            }
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const int m = row + consumer * WM + part * 64 + warp * 16;
                store_rows<PIECE / 4>(C, m, col + 2 * piece * PIECE, M, N, &sums[part][piece * PIECE]);
            }
        }
    }
}
