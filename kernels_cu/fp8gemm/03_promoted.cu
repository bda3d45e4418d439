// Promotion: what the tensor cores have summed over one slice of K is added to float32 sums in registers.
//
// Before: sums over all of K were kept by the tensor cores, with fewer bits than float32 has.
// Now: they sum over one slice only; each consumer then adds that to its own sums, and in block scaling multiplies it by
// the scales of its rows (one for each row and slice of K) and its columns (one for as many of them as a slice is deep) on the
// way. While one consumer adds, the other one's products run. The scales travel with the slice: a second warp of the producers
// copies them beside it, as far ahead, for they come as late as a slice would.
// A block owns one BM x BN tile of C after another, and stores each from registers. Consumer w owns BM / CONSUMERS rows, as many
// at a time as an instruction takes: the next ones' products wait until these are added, for want of registers.
// Limited now by: the tensor cores' pauses between two products of a consumer, and power.

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
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE, SCALES = 4 * BM + 16;  // bytes; a slice's scales, last that of B
#if VARIANT_BLOCK
constexpr int WRITERS = 1 + 32, READERS = 4;  // who arrives: the thread that starts TMA, the warp that copies scales; a consumer's warps
#else
constexpr int WRITERS = 1, READERS = 1;  // products end for the whole warpgroup at once
#endif

static_assert(CONSUMERS * PARTS * 64 == BM && BN % 64 == 0 && 128 % BN == 0, "BM, BN: 64 rows or a multiple a consumer; 64 or 128 columns");
static_assert(BM % (8 * CLUSTER_N) == 0 && BN % (8 * CLUSTER_M) == 0, "CLUSTER_M, CLUSTER_N: parts of whole swizzles");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fp8gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, output* __restrict__ C, const float* __restrict__ SA,
        const float* __restrict__ SB, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), scales_at = base + STAGES * STAGE, barriers = scales_at + STAGES * SCALES;
    const auto full = [&](int stage) { return barriers + 8 * stage; };
    const auto empty = [&](int stage) { return barriers + 8 * (STAGES + stage); };
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), WRITERS);
            mbarrier_init(empty(stage), READERS * CONSUMERS * (CLUSTER_M + CLUSTER_N - 1));
        }
        fence_mbarrier_init();
        tma_prefetch_map(A), tma_prefetch_map(B);
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
#if VARIANT_BLOCK
        if (threadIdx.x / 32 == 1) {
            wait_for_launch();
            const int lane = threadIdx.x % 32;
            int stage = 0, round = 0;
            for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += stride) {
                locate(tile);
                const float *of_a = SA, *of_b = SB + static_cast<size_t>(col / 128) * slices;
                for (int slice = 0; slice < slices; ++slice, of_a += M, ++of_b) {
                    mbarrier_wait(empty(stage), round ^ 1);
                    const unsigned to = scales_at + stage * SCALES + 4 * lane;
#pragma unroll 2
                    for (int i = 0; i < BM; i += 32)  // rows past the last are copies of it, and never stored
                        cp_async<4>(to + 4 * i, of_a + min(row + i + lane, M - 1));
                    if (lane == 0) cp_async<4>(to + 4 * BM, of_b);
                    mbarrier_arrive_after_copies(full(stage));
                    if (++stage == STAGES) stage = 0, round ^= 1;
                }
            }
        }
#endif
        __syncwarp();  // the warp goes to the cluster's barrier as one
    } else {
        raise_registers<CONSUMERS == 1 ? 240 : 232>();
        const int consumer = group - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        const auto release = [&](int stage) {  // tell all who load into this stage that it has been read
            if (READERS > 1) __syncwarp();     // by every lane of the warp
            if (thread % (128 / READERS) != 0) return;
            if constexpr (CLUSTER == 1) mbarrier_arrive(empty(stage));
#pragma unroll
            for (int i = 0; CLUSTER > 1 && i < CLUSTER_N; ++i) mbarrier_arrive_at(empty(stage), i * CLUSTER_M + rank_m);
#pragma unroll
            for (int i = 1; i < CLUSTER_M; ++i) mbarrier_arrive_at(empty(stage), rank_n * CLUSTER_M + (rank_m + i) % CLUSTER_M);
        };
        const unsigned long long from_a = wgmma_descriptor<LINE>(base + consumer * WM * LINE, 16, 1024);
        const unsigned long long from_b = wgmma_descriptor<LINE>(base + TILE_A, 16, 1024);
        int stage = 0, round = 0;
        bool landed = false;  // whether this stage's slice was seen to have landed
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += stride) {
            locate(tile);
            row += consumer * WM;
            float sums[PARTS][BN / 2] = {}, some[BN / 2];
            for (int slice = 0; slice < slices; ++slice) {
                if (!landed) mbarrier_wait(full(stage), round);
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < LINE / 32; ++k)
                        wgmma<E4M3>(some, from_a + ((stage * STAGE + part * 64 * LINE + k * 32) >> 4),
                                    from_b + ((stage * STAGE + k * 32) >> 4), k);
                    wgmma_commit();
#if VARIANT_BLOCK
                    float scales[2];  // read while the products run
                    const float* const slice_scales = reinterpret_cast<const float*>(shared + STAGES * STAGE + stage * SCALES);
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        scales[i] = slice_scales[consumer * WM + part * 64 + warp * 16 + i * 8 + lane / 4] * slice_scales[BM];
#endif
                    wgmma_wait<0>();
                    pin(some);
                    if (part == PARTS - 1) {
                        release(stage);
                        if (++stage == STAGES) stage = 0, round ^= 1;
                        landed = mbarrier_test(full(stage), round);  // the answer comes while sums are added
                    }
#pragma unroll
                    for (int i = 0; i < BN / 2; ++i)
#if VARIANT_BLOCK
                        sums[part][i] = fmaf(some[i], scales[i / 2 % 2], sums[part][i]);
#else
                        sums[part][i] += some[i];
#endif
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
