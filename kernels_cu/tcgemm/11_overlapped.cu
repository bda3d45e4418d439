// Overlapped epilogue: C leaves through shared memory by stmatrix and TMA while the next tile is being multiplied.
//
// Before: sums went from registers straight to C in short pieces, and nothing was multiplied meanwhile.
// Now: stmatrix puts sums into chunks of rows of one swizzled line, so that no two rows of a matrix meet in a bank, and TMA
// stores a chunk while the next one is filled and while the next tile's products run. With PINGPONG the two consumers take
// turns with whole tiles, so that one multiplies while the other stores; else they share a tile, and SKEW lets the second
// one follow some slices behind, to the same end.
// A block owns one BM x BN tile after another, in bands of RASTER rows of tiles. CLUSTER_M blocks share B's tile, CLUSTER_N
// blocks A's: each loads its part for all. The first warpgroup loads, the others multiply.
// Limited now by: grids of too few tiles (see step 12).

#include "cluster.cuh"
#include "mbarrier.cuh"
#include "mma.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                                  // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE / Operand::bytes;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int READERS = PINGPONG ? 1 : CONSUMERS;          // consumers of one stage
constexpr int WM = BM / READERS, PARTS = WM / 64;          // rows of a consumer, and how many wgmma they take
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE, CHUNK = 64 * LINE;  // bytes
constexpr int CHUNK_COLS = LINE / sizeof(output);
#if VARIANT_NN
constexpr int TURNED = 1, B_LEADING = BK * LINE, B_STEP = Operand::depth * LINE;  // 64 columns of B, then the next 64
#else
constexpr int TURNED = 0, B_LEADING = 16, B_STEP = 32;
#endif

static_assert(READERS * PARTS * 64 == BM && BN % 64 == 0 && BN <= 256, "BM, BN: 64 rows or a multiple a consumer, columns in chunks of 64");
static_assert(!PINGPONG || CONSUMERS == 2, "PINGPONG: two consumers take turns");
static_assert(!SKEW || (CONSUMERS == 2 && !PINGPONG), "SKEW: one consumer behind another");
static_assert(BM % (8 * CLUSTER_N) == 0 && BN % ((TURNED ? 64 : 8) * CLUSTER_M) == 0, "CLUSTER_M, CLUSTER_N: parts of whole swizzles");
static_assert(!TURNED || Operand::bytes == 2, "nn: wgmma reads B across K for 16-bit types only; take nt");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcgemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), chunks = base + STAGES * STAGE, barriers = chunks + CONSUMERS * STORES * CHUNK;
    const auto full = [&](int stage) { return barriers + 8 * stage; };
    const auto empty = [&](int stage) { return barriers + 8 * (STAGES + stage); };
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), READERS * (CLUSTER_M + CLUSTER_N - 1));
        }
        fence_mbarrier_init();
        tma_prefetch_map(A), tma_prefetch_map(B), tma_prefetch_map(C);
    }
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();  // no block signals barriers that another has yet to make
    else __syncthreads();                                           // the barriers are made before anyone uses them
    launch_dependents();

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
            wait_for_launch();
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
        const unsigned long long from_a = wgmma_descriptor<LINE>(base + (PINGPONG ? 0 : consumer * WM * LINE), 16, 1024);
        const unsigned long long from_b = wgmma_descriptor<LINE>(base + TILE_A, B_LEADING, 1024);
        const unsigned own_chunks = chunks + consumer * STORES * CHUNK;
        int stage = 0, round = 0, chunk = 0;
        for (int tile = blockIdx.x / CLUSTER, index = 0; tile < tiles; tile += stride, ++index) {
            if (PINGPONG && index % CONSUMERS != consumer) {  // the other one's tile
                round ^= (stage + slices) / STAGES % 2, stage = (stage + slices) % STAGES;
                continue;
            }
            if (PINGPONG && index > 0) named_barrier_wait(1 + consumer, 256);  // the other one has started all its products
            if (SKEW && consumer == 1 && index == 0) named_barrier_wait(3, 256);  // the first one is ahead
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
                if (SKEW && consumer == 0 && index == 0 && slice == min(SKEW, slices) - 1) named_barrier_arrive(3, 256);
                before = stage;
                if (++stage == STAGES) stage = 0, round ^= 1;
            }
            if (PINGPONG && tile + stride < tiles) named_barrier_arrive(2 - consumer, 256);
            wgmma_wait<0>();
            release(before);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) pin(sums[part]);

            locate(tile);
            row += PINGPONG ? 0 : consumer * WM;
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int c = 0; c < BN / CHUNK_COLS; ++c) {
                    const unsigned to = own_chunks + chunk * CHUNK;
                    if (thread == 0) tma_wait_read<STORES - 1>();
                    named_barrier_wait(4 + consumer, 128);  // the store that had this chunk has read it
                    const float* const s = &sums[part][c * (CHUNK_COLS / 2)];
#if DTYPE_TF32
                    // odd rows write another eight columns than even ones: else both would meet in the same banks
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        const int j = i / 2, odd = lane / 4 % 2, half = i % 2, piece = (j ^ 2 * odd) * 2 + lane % 4 / 2;
                        const float first = odd ? s[4 * (j ^ 2) + 2 * half] : s[4 * j + 2 * half];
                        const float second = odd ? s[4 * (j ^ 2) + 2 * half + 1] : s[4 * j + 2 * half + 1];
                        const unsigned line = to + (warp * 16 + half * 8 + lane / 4) * LINE;
                        store_shared(line + (piece ^ lane / 4) * 16 + lane % 2 * 8, first, second);
                    }
#else
#pragma unroll
                    for (int j = 0; j < 8; j += 2) {
                        unsigned r[4];
#pragma unroll
                        for (int i = 0; i < 4; ++i) r[i] = pack_two(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]);
                        stmatrix<4>(to + (warp * 16 + lane % 16) * LINE + ((j + lane / 16) ^ lane % 8) * 16, r);
                    }
#endif
                    fence_proxy_async();
                    named_barrier_wait(4 + consumer, 128);  // the chunk is complete for TMA
                    if (thread == 0) {
                        tma_store(C, to, col + c * CHUNK_COLS, row + part * 64);
                        tma_commit();
                    }
                    if (++chunk == STORES) chunk = 0;
                }
        }
        if (thread == 0) tma_wait_read<0>();  // shared memory stays until it has been read
        __syncwarp();                         // the warp goes to the cluster's barrier as one
    }
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();  // nobody's barriers go while others may still signal them
}
