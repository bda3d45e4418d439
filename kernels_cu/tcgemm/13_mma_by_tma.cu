// mma.sync fed by TMA: what the older instruction reaches where nothing else holds it up.
//
// Before: in step 5 the warps that multiply copied too, through the same path that ldmatrix reads by, and met at a barrier every slice.
// Now: a warpgroup of its own starts the copies of TMA, which write shared memory past that path; a warp waits for a slice to land and says
// when it has read it, and for no other warp. Blocks stay, so that the next tile lands while this one is stored, and its first fragments
// are read before that.
// A block owns one BM x BN tile of C after another, a warp WM x WN of it; inside it is step 5.
// Limited now by: mma.sync itself, and the ldmatrix reads that share the registers' ports with it.

#include "cluster.cuh"
#include "mbarrier.cuh"
#include "mma.cuh"
#include "output.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int LINE = 128;                                     // bytes of K in a slice: a row of the swizzle
constexpr int BK = LINE / Operand::bytes, STEPS = LINE / 32;  // an mma takes 32 bytes of K
constexpr int WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, THREADS = 32 * (WARPS + 4), MI = WM / 16, NJ = WN / 8;
constexpr unsigned TILE_A = BM * LINE, STAGE = TILE_A + BN * LINE;  // bytes
#if VARIANT_NN
constexpr int TURNED = 1;  // 64 columns of B, rows along K, then the next 64
#else
constexpr int TURNED = 0;
#endif

static_assert(BM % WM == 0 && WM % 16 == 0 && BN % WN == 0 && WN % 16 == 0, "WM, WN: multiples of 16 that divide BM and BN");
static_assert((WARPS <= 4 || WARPS == 8) && BM <= 256 && BN <= 256, "BM, BN: at most 256, and eight warps of WM x WN, or up to four");
static_assert(!TURNED || (Operand::bytes == 2 && BN % 64 == 0), "nn: ldmatrix turns 16-bit elements only; take nt");

// Where 16-byte unit `unit` of a row lies, as TMA swizzles it.
__device__ __forceinline__ unsigned place(int row, int unit) { return row * LINE + (unit ^ row % 8) * 16; }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcgemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, output* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared), barriers = base + STAGES * STAGE;
    const auto full = [&](int stage) { return barriers + 8 * stage; };
    const auto empty = [&](int stage) { return barriers + 8 * (STAGES + stage); };
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(full(stage), 1), mbarrier_init(empty(stage), WARPS);
        fence_mbarrier_init();
        tma_prefetch_map(A), tma_prefetch_map(B);
    }
    __syncthreads();  // the barriers are made before anyone uses them
    launch_dependents();

    const int rows = (M + BM - 1) / BM, cols = (N + BN - 1) / BN, tiles = rows * cols, slices = (K + BK - 1) / BK;
    int row, col;
    const auto locate = [&](int tile) {
        const int band = tile / (RASTER * cols), in_band = tile % (RASTER * cols), height = min(RASTER, rows - band * RASTER);
        row = (band * RASTER + in_band % height) * BM, col = in_band / height * BN;
    };
    int stage = 0, round = 0;
    const auto advance = [&] {
        if (++stage == STAGES) stage = 0, round ^= 1;
    };

    if (warp < 4) {
        if (WARPS == 8) lower_registers<24>();  // a block of fewer warps has registers for all
        if (threadIdx.x != 0) return;
        wait_for_launch();
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            locate(tile);
            for (int slice = 0; slice < slices; ++slice, advance()) {
                mbarrier_wait(empty(stage), round ^ 1);
                mbarrier_expect(full(stage), STAGE);
                const unsigned to_a = base + stage * STAGE, to_b = to_a + TILE_A;
                tma_load(to_a, A, slice * BK, row, full(stage));
#pragma unroll
                for (int i = 0; i < (TURNED ? BN / 64 : 1); ++i)
                    tma_load(to_b + i * BK * LINE, B, TURNED ? col + 64 * i : slice * BK, TURNED ? slice * BK : col, full(stage));
            }
        }
        return;
    }

    if (WARPS == 8) raise_registers<240>();
    const int warp_m = (warp - 4) / WARPS_N * WM, warp_n = (warp - 4) % WARPS_N * WN;
    unsigned a[MI][4], b[NJ][2];
    const auto load_a = [&](int i, int step) {
        ldmatrix<4>(a[i], base + stage * STAGE + place(warp_m + i * 16 + lane % 16, step * 2 + lane / 16));
    };
    const auto load_b = [&](int j, int step) {  // two columns of eight
        const unsigned from = base + stage * STAGE + TILE_A;
        unsigned r[4];
        if constexpr (TURNED) {
            const int unit = warp_n / 8 + j + lane / 16;
            ldmatrix_transposed<4>(r, from + unit / 8 * BK * LINE + place(step * 16 + lane % 16, unit % 8));
        } else ldmatrix<4>(r, from + place(warp_n + (j + lane / 16) * 8 + lane % 8, step * 2 + lane / 8 % 2));
        b[j][0] = r[0], b[j][1] = r[1], b[j + 1][0] = r[2], b[j + 1][1] = r[3];
    };
    mbarrier_wait(full(0), 0);
#pragma unroll
    for (int i = 0; i < MI; ++i) load_a(i, 0);
#pragma unroll
    for (int j = 0; j < NJ; j += 2) load_b(j, 0);

    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        locate(tile);
        float sums[MI][NJ][4] = {};
        for (int slice = 0; slice < slices; ++slice) {
            const int read = stage, next = (stage + 1) % STAGES;
            const bool more = slice + 1 < slices || tile + gridDim.x < tiles;  // else it reads again what is never used
            bool landed = false;  // asked early: the answer comes under products
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                if (step == STEPS - 2 && more) landed = mbarrier_test(full(next), next > 0 ? round : round ^ 1);
                if (step == STEPS - 1 && more) {
                    advance();
                    if (!landed) mbarrier_wait(full(stage), round);
                }
#pragma unroll
                for (int i = 0; i < MI; ++i) {
#pragma unroll
                    for (int j = 0; j < NJ; ++j) {
                        mma<Operand>(sums[i][j], a[i], b[j]);
                        if (i == MI - 1 && j % 2) load_b(j - 1, (step + 1) % STEPS);
                    }
                    load_a(i, (step + 1) % STEPS);
                }
            }
            __syncwarp();  // every lane has read the slice
            if (lane == 0) mbarrier_arrive(empty(read));
        }
#pragma unroll
        for (int i = 0; i < MI; ++i) store_rows<NJ>(C, row + warp_m + i * 16, col + warp_n, M, N, &sums[i][0][0]);
    }
}
