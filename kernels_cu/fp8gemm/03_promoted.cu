// Promotion: what the tensor cores have summed over one slice of K is added to float32 sums in registers.
//
// Before: sums over all of K were kept by the tensor cores, with fewer bits than float32 has.
// Now: they sum over one slice only; each consumer then adds that to its own sums, and in block scaling multiplies it by
// the scales of its rows (one for each row and slice of K) and its columns (one for as many of them as a slice is deep) on the
// way. While one consumer adds, the other one's products run. The scales travel with the slice, as far ahead and counted by the
// same barrier: those of A as one bulk copy, that of B through the register of the thread that starts the copies.
// A block owns one BM x BN tile of C after another, and stores each from registers. Consumer w owns BM / CONSUMERS rows, as many
// at a time as an instruction takes: the next ones' products wait until these are added, for want of registers.
// So what lies between a consumer's products counts, every cycle of it: where the next slice lies is worked out while products
// run, and PACE sets how the additions follow one another (cudalab/pacing.py), for products read the same registers.
// Limited now by: the tensor cores' pauses between two products of a consumer, and power.

#include "bulk.cuh"
#include "cluster.cuh"
#include "mbarrier.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                                  // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE;                                   // bytes are elements
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int WM = BM / CONSUMERS, PARTS = WM / 64;        // rows of a consumer, and how many times 64 they are
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE, SCALES = 4 * BM + 32;  // bytes; a slice's scales, last that of B
#if VARIANT_BLOCK
constexpr int READERS = 4;  // who says that a stage has been read: each warp of a consumer, for each has read scales
#else
constexpr int READERS = 1;  // products end for the whole warpgroup at once
#endif

static_assert(CONSUMERS * PARTS * 64 == BM && BN % 64 == 0 && 128 % BN == 0, "BM, BN: 64 rows or a multiple a consumer; 64 or 128 columns");
static_assert(BM % (8 * CLUSTER_N) == 0 && BN % (8 * CLUSTER_M) == 0, "CLUSTER_M, CLUSTER_N: parts of whole swizzles");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fp8gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, output* __restrict__ C, const float* __restrict__ SA,
        const float* __restrict__ SB, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), barriers = base + STAGES * (STAGE + SCALES);
    const auto full = [&](int stage) { return barriers + 8 * stage; };
    const auto empty = [&](int stage) { return barriers + 8 * (STAGES + stage); };
    const auto scales_of = [&](int stage) { return reinterpret_cast<float*>(shared + STAGES * STAGE + stage * SCALES); };
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), READERS * CONSUMERS * (CLUSTER_M + CLUSTER_N - 1));
        }
        fence_mbarrier_init();
        tma_prefetch_map(A), tma_prefetch_map(B);
    }
#if VARIANT_BLOCK
    // Rows past the end get no scales, and their sums go nowhere; yet what they are multiplied by is read
    for (int i = threadIdx.x; i < STAGES * SCALES / 4; i += THREADS) scales_of(0)[i] = 0.0f;
    fence_proxy_async();  // copies write there
#endif
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
#if VARIANT_BLOCK
                    // A tile's scales of A begin at any float, a bulk copy at every fourth; what it cannot copy of the last goes by hand.
                    // In a cluster a block may have no row below M: then any scales will do
                    const unsigned all = slices * M, first = slice * M + min(row, (M - 1) & ~3), from = first & ~3u;
                    const unsigned end = min(first + BM, all), copied = min((end + 3) & ~3u, all & ~3u) - from;
                    const float scale_b = load_global(SB + min(col, N - 1) / 128 * slices + slice);  // comes while the stage is waited for
                    mbarrier_wait(empty(stage), round ^ 1);
#pragma unroll 1
                    for (unsigned i = copied; from + i < end; ++i) scales_of(stage)[i] = load_global(SA + from + i);
                    if (from + copied < end) fence_proxy_async();  // later copies write there
                    scales_of(stage)[BM + 4] = scale_b;
                    mbarrier_expect(full(stage), STAGE + 4 * copied);
                    if (copied > 0) bulk_load(shared_address(scales_of(stage)), SA + from, 4 * copied, full(stage));
#else
                    mbarrier_wait(empty(stage), round ^ 1);
                    mbarrier_expect(full(stage), STAGE);
#endif
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
        const int consumer = group - 1, thread = threadIdx.x % 128, warp = thread / 32;
        // Anybody's own lane, by a shuffle: that is kept, where what follows from threadIdx is worked out again for every slice
        const int lane = __shfl_sync(~0u, threadIdx.x % 32, threadIdx.x % 32), reader = READERS > 1 ? lane : thread;
        const auto release = [&](int stage) {  // tell all who load into this stage that it has been read
            if (READERS > 1) __syncwarp();     // by every lane of the warp
            if (reader != 0) return;
            if constexpr (CLUSTER == 1) mbarrier_arrive(empty(stage));
#pragma unroll
            for (int i = 0; CLUSTER > 1 && i < CLUSTER_N; ++i) mbarrier_arrive_at(empty(stage), i * CLUSTER_M + rank_m);
#pragma unroll
            for (int i = 1; i < CLUSTER_M; ++i) mbarrier_arrive_at(empty(stage), rank_n * CLUSTER_M + (rank_m + i) % CLUSTER_M);
        };
        const unsigned long long first_a = wgmma_descriptor<LINE>(base + consumer * WM * LINE, 16, 1024);
        const unsigned long long first_b = wgmma_descriptor<LINE>(base + TILE_A, 16, 1024);
        unsigned from_a = first_a, from_b = first_b;  // low halves of this stage's descriptors; the high one is the same for all
        const auto descriptor = [&](unsigned low) { return first_a >> 32 << 32 | low; };
        int stage = 0, round = 0;
        bool landed = false;  // whether this stage's slice was seen to have landed
#if VARIANT_BLOCK
        const float* const first_scale = scales_of(0) + consumer * WM + warp * 16 + lane / 4;
        const float *from_scale = first_scale, *from_scale_b = scales_of(0) + BM + 4;
#endif
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += stride) {
            locate(tile);
            row += consumer * WM;
            int shift = 0;  // how many floats a slice's copy of scales begins before the first of the tile's rows
            float sums[PARTS][BN / 2] = {}, some[BN / 2];
            for (int slice = 0; slice < slices; ++slice) {
                if (!landed) mbarrier_wait(full(stage), round);
#if VARIANT_BLOCK
                float scales[PARTS][2];  // asked for before the products start: behind them they would come late
#pragma unroll
                for (int i = 0; i < PARTS * 2; ++i) scales[i / 2][i % 2] = from_scale[i / 2 * 64 + i % 2 * 8];
                const float scale_b = *from_scale_b;
#endif
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < LINE; k += 32)
                        wgmma<E4M3>(some, descriptor(from_a + (part * 64 * LINE + k) / 16), descriptor(from_b + k / 16), k > 0);
                    wgmma_commit();
#if VARIANT_BLOCK
#pragma unroll
                    for (int half = 0; half < 2; ++half)  // here: elsewhere ptxas puts it between additions, which it upsets
                        asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(scales[part][half]) : "f"(scale_b));
#endif
                    wgmma_wait<0>();
                    pin(some);
                    if (part == PARTS - 1) {
                        release(stage);
                        if (++stage == STAGES) stage = 0, round ^= 1;
                        landed = mbarrier_test(full(stage), round);  // the answer comes while sums are added
                        from_a = stage == 0 ? unsigned(first_a) : from_a + STAGE / 16;
                        from_b = stage == 0 ? unsigned(first_b) : from_b + STAGE / 16;
#if VARIANT_BLOCK
                        shift = slice + 1 == slices ? 0 : (shift + M) & 3;
                        from_scale = first_scale + stage * (SCALES / 4) + shift;
                        from_scale_b = scales_of(stage) + BM + 4;
#endif
                    }
#pragma unroll
                    for (int half = 0; half < 2; ++half)  // of the rows, which share a scale
#pragma unroll
                        for (int n = 0; n < BN / 4; ++n) {
                            const int i = n / 2 * 4 + half * 2 + n % 2;
#if VARIANT_BLOCK
                            sums[part][i] = fmaf(some[i], scales[part][half], sums[part][i]);
#else
                            sums[part][i] += some[i];
#endif
                        }
                }
            }
#if !VARIANT_BLOCK
            const float scale = load_global(SA) * load_global(SB);
#pragma unroll
            for (int i = 0; i < PARTS * BN / 2; ++i) sums[i / (BN / 2)][i % (BN / 2)] *= scale;
#endif
#pragma unroll
            for (int part = 0; part < PARTS; ++part) store_rows<BN / 8>(C, row + part * 64 + warp * 16, col, M, N, sums[part]);
        }
    }
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();  // nobody's barriers go while others may still signal them
}
