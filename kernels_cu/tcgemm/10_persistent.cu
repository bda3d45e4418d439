// Persistent: a block stays for many tiles, in an order that L2 likes, and loads the next one while it stores the last.
//
// Before: every tile began with empty stages and a new block, and tiles that ran together shared little of A and B.
// Now: as many blocks as the device runs at once take one tile after another, so that the loads of the next tile fill the
// stages while the sums of this one leave. Tiles are numbered in bands of RASTER rows of tiles: those in work at a time share
// few rows of A and few columns of B, which L2 then serves.
// A cluster owns CLUSTER_M x CLUSTER_N tiles of BM x BN at a time; inside it is step 9.
// Limited now by: the consumers, which multiply nothing while they store (see step 11).

#include "cluster.cuh"
#include "mbarrier.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                                  // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE / Operand::bytes;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int WM = BM / CONSUMERS, PARTS = WM / 64;        // rows of a consumer, and how many wgmma they take
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE;  // bytes
#if VARIANT_NN
constexpr int TURNED = 1, B_LEADING = BK * LINE, B_STEP = Operand::depth * LINE;  // 64 columns of B, then the next 64
#else
constexpr int TURNED = 0, B_LEADING = 16, B_STEP = 32;
#endif

static_assert(CONSUMERS * PARTS * 64 == BM && BN % 8 == 0 && BN <= 256, "BM, BN: 64 rows or a multiple a consumer, columns in eights");
static_assert(BM % (8 * CLUSTER_N) == 0 && BN % ((TURNED ? 64 : 8) * CLUSTER_M) == 0, "CLUSTER_M, CLUSTER_N: parts of whole swizzles");
static_assert(!TURNED || Operand::bytes == 2, "nn: wgmma reads B across K for 16-bit types only; take nt");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcgemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, output* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), barriers = base + STAGES * STAGE;
    const auto full = [&](int stage) { return barriers + 8 * stage; };
    const auto empty = [&](int stage) { return barriers + 8 * (STAGES + stage); };
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), CONSUMERS * (CLUSTER_M + CLUSTER_N - 1));
        }
        fence_mbarrier_init();
        tma_prefetch_map(A), tma_prefetch_map(B);
    }
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();  // no block signals barriers that another has yet to make
    else __syncthreads();                                           // the barriers are made before anyone uses them

    const int rows = (M + BM * CLUSTER_M - 1) / (BM * CLUSTER_M), cols = (N + BN * CLUSTER_N - 1) / (BN * CLUSTER_N);
    const int slices = (K + BK - 1) / BK, tiles = rows * cols, stride = gridDim.x / CLUSTER;
    int row, col;
    const auto locate = [&](int tile) {
        const int band = tile / (RASTER * cols), in_band = tile % (RASTER * cols), height = min(RASTER, rows - band * RASTER);
        row = ((band * RASTER + in_band % height) * CLUSTER_M + rank_m) * BM;
        col = (in_band / height * CLUSTER_N + rank_n) * BN;
    };

    if (group == 0) {
        lower_registers<40>();
        if (threadIdx.x == 0) {
            int stage = 0, round = 0;
            unsigned short sharing_a = 0, sharing_b = 0;
            for (int i = 0; i < CLUSTER_N; ++i) sharing_a |= 1 << (i * CLUSTER_M + rank_m);
            for (int i = 0; i < CLUSTER_M; ++i) sharing_b |= 1 << (rank_n * CLUSTER_M + i);
            for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += stride) {
                locate(tile);
                for (int slice = 0; slice < slices; ++slice) {
                    mbarrier_wait(empty(stage), round ^ 1);
                    mbarrier_expect(full(stage), STAGE);
                    const int part_a = rank_n * (BM / CLUSTER_N), part_b = rank_m * (BN / CLUSTER_M);
                    const unsigned to_a = base + stage * STAGE + part_a * LINE, to_b = base + stage * STAGE + TILE_A + part_b * LINE;
                    if constexpr (CLUSTER_N > 1) tma_load_multicast(to_a, A, slice * BK, row + part_a, full(stage), sharing_a);
                    else tma_load(to_a, A, slice * BK, row, full(stage));
#pragma unroll
                    for (int i = 0; i < (TURNED ? BN / CLUSTER_M / 64 : 1); ++i) {
                        const int x = TURNED ? col + part_b + 64 * i : slice * BK, y = TURNED ? slice * BK : col + part_b;
                        if constexpr (CLUSTER_M > 1) tma_load_multicast(to_b + i * BK * LINE, B, x, y, full(stage), sharing_b);
                        else tma_load(to_b + i * BK * LINE, B, x, y, full(stage));
                    }
                    if (++stage == STAGES) stage = 0, round ^= 1;
                }
            }
        }
        __syncwarp();  // the warp goes to the cluster's barrier as one
    } else {
        raise_registers<CONSUMERS == 1 ? 240 : 232>();
        const int consumer = group - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        const auto release = [&](int stage) {  // tell all who load into this stage that it has been read
            if (thread != 0) return;
            if constexpr (CLUSTER == 1) mbarrier_arrive(empty(stage));
#pragma unroll
            for (int i = 0; CLUSTER > 1 && i < CLUSTER_N; ++i) mbarrier_arrive_at(empty(stage), i * CLUSTER_M + rank_m);
#pragma unroll
            for (int i = 1; i < CLUSTER_M; ++i) mbarrier_arrive_at(empty(stage), rank_n * CLUSTER_M + (rank_m + i) % CLUSTER_M);
        };
        const unsigned long long from_a = wgmma_descriptor<LINE>(base + consumer * WM * LINE, 16, 1024);
        const unsigned long long from_b = wgmma_descriptor<LINE>(base + TILE_A, B_LEADING, 1024);
        int stage = 0, round = 0;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += stride) {
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
                if (slice > 0) release(before);
                before = stage;
                if (++stage == STAGES) stage = 0, round ^= 1;
            }
            wgmma_wait<0>();
            release(before);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) pin(sums[part]);

            locate(tile);
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int i = 0; i < BN / 2; i += 2) {  // two neighbours in one row
                    const int m = row + consumer * WM + part * 64 + warp * 16 + i / 2 % 2 * 8 + lane / 4;
                    const int n = col + i / 4 * 8 + lane % 4 * 2;
                    if (m < M && n < N) store<2>(C + static_cast<size_t>(m) * N + n, &sums[part][i]);
                }
        }
        __syncwarp();  // the warp goes to the cluster's barrier as one
    }
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();  // nobody's barriers go while others may still signal them
}
