// Promotion: what the tensor cores have summed over one slice of K is added to float32 sums in registers.
//
// Before: sums over all of K were kept by the tensor cores, with fewer bits than float32 has.
// Now: they sum over one slice only; each consumer then adds that to its own sums, and in block scaling multiplies it by
// the scales of its rows (one for each row and slice of K) and its columns (one for as many of them as a slice is deep) on the
// way. While one consumer adds, the other one's products run; with ORDERED they take turns in starting them.
// A block owns one BM x BN tile of C after another; loads and stores overlap as in step 1. Consumer w owns BM / CONSUMERS rows,
// as many at a time as an instruction takes: the next ones' products wait until these are added, for want of registers.
// Limited now by: the tensor cores' pauses between two products of a consumer.

#include "cluster.cuh"
#include "mbarrier.cuh"
#include "mma.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                                  // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE;                                   // bytes are elements
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int WM = BM / CONSUMERS, PARTS = WM / 64;        // rows of a consumer, and how many times 64 they are
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE, CHUNK = 64 * LINE;  // bytes
constexpr int CHUNK_COLS = LINE / sizeof(output);

static_assert(CONSUMERS * PARTS * 64 == BM && BN % 64 == 0 && 128 % BN == 0, "BM, BN: 64 rows or a multiple a consumer; 64 or 128 columns");
static_assert(!ORDERED || CONSUMERS == 2, "ORDERED: two consumers take turns");
static_assert(BM % (8 * CLUSTER_N) == 0 && BN % (8 * CLUSTER_M) == 0, "CLUSTER_M, CLUSTER_N: parts of whole swizzles");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fp8gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap C,
        const float* __restrict__ SA, const float* __restrict__ SB, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), chunks = base + STAGES * STAGE, barriers = chunks + CONSUMERS * STORES * CHUNK;
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
                    if constexpr (CLUSTER_M > 1) tma_load_multicast(to_b, B, slice * BK, col + part_b, full(stage), sharing_b);
                    else tma_load(to_b, B, slice * BK, col, full(stage));
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
        const unsigned long long from_b = wgmma_descriptor<LINE>(base + TILE_A, 16, 1024);
        const unsigned own_chunks = chunks + consumer * STORES * CHUNK;
        int stage = 0, round = 0, chunk = 0;
        bool waits = consumer == 1;  // the first one begins
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += stride) {
            locate(tile);
            row += consumer * WM;
            const bool last_tile = tile + stride >= tiles;
            float sums[PARTS][BN / 2] = {}, some[BN / 2];
            for (int slice = 0; slice < slices; ++slice) {
                mbarrier_wait(full(stage), round);
#if VARIANT_BLOCK
                // on their way while the products run; rows past the last are copies of it, and never stored
                const float scale_b = load_global(SB + static_cast<size_t>(col / 128) * slices + slice);
                float scales[PARTS][2];
#pragma unroll
                for (int i = 0; i < 2 * PARTS; ++i) {
                    const int m = min(row + i / 2 * 64 + warp * 16 + i % 2 * 8 + lane / 4, M - 1);
                    scales[i / 2][i % 2] = load_global(SA + static_cast<size_t>(slice) * M + m);
                }
#endif
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    if (ORDERED && waits) named_barrier_wait(1 + consumer, 256);  // the other one has started its products
                    waits = true;
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < LINE / 32; ++k)
                        wgmma<E4M3>(some, from_a + ((stage * STAGE + part * 64 * LINE + k * 32) >> 4),
                                    from_b + ((stage * STAGE + k * 32) >> 4), k);
                    wgmma_commit();
                    const bool very_last = consumer == 1 && last_tile && slice == slices - 1 && part == PARTS - 1;
                    if (ORDERED && !very_last) named_barrier_arrive(2 - consumer, 256);  // else nobody waits for a turn any more
                    wgmma_wait<0>();
                    pin(some);
                    if (part == PARTS - 1) release(stage);
#pragma unroll
                    for (int i = 0; i < BN / 2; ++i)
#if VARIANT_BLOCK
                        sums[part][i] = fmaf(some[i], scales[part][i / 2 % 2] * scale_b, sums[part][i]);
#else
                        sums[part][i] += some[i];
#endif
                }
                if (++stage == STAGES) stage = 0, round ^= 1;
            }
#if VARIANT_BLOCK
            const float scale = 1;  // it is in the sums
#else
            const float scale = load_global(SA) * load_global(SB);
#endif
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int c = 0; c < BN / CHUNK_COLS; ++c) {
                    const unsigned to = own_chunks + chunk * CHUNK;
                    if (thread == 0) tma_wait_read<STORES - 1>();
                    named_barrier_wait(4 + consumer, 128);  // the store that had this chunk has read it
                    const float* const s = &sums[part][c * (CHUNK_COLS / 2)];
#pragma unroll
                    for (int j = 0; j < 8; j += 2) {
                        unsigned r[4];
#pragma unroll
                        for (int i = 0; i < 4; ++i) r[i] = pack_two(scale * s[4 * j + 2 * i], scale * s[4 * j + 2 * i + 1]);
                        stmatrix<4>(to + (warp * 16 + lane % 16) * LINE + ((j + lane / 16) ^ lane % 8) * 16, r);
                    }
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
