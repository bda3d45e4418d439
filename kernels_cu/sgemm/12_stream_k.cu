// Stream-K: every worker gets the same number of slices, whatever the number of tiles.
//
// Before: whole tiles were handed out, so the last round of blocks left multiprocessors idle.
// Now: the slices of all tiles are lined up, tile after tile, and cut into one equal piece a block. A block whose piece starts inside
// a tile leaves its sums in `partial` and raises its flag a tile later, when they have long arrived; the block with the tile's first
// slice waits for those flags, adds the sums in a fixed order, so that every run gives the same bits, and stores the tile. A block works
// from its piece's front and so gives before it waits: nobody waits for one that waits. The next tile's copies run under these stores.
// Rows of A and B that are not aligned for wide copies are copied first to where they are, and padded; a few columns past the last
// full tile, which would cost a column of tiles, are summed on the way (edges.cuh).
// A block owns one BM x BN tile of C after another; inside it is step 11.
// Limited now by: the register banks. What comes from shared memory is written through the ports that multiply-adds read.

#include "cluster.cuh"
#include "ptx.cuh"

constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WM = LANES_M * TM, WN = LANES_N * TN;
constexpr int GROUP = (BM / TM) * (BN / TN), THREADS = GROUP * SLICES;  // threads that cover the tile once; all of them
constexpr int DEPTH = BK * SLICES;                                      // k of one stage, BK for each group
constexpr int LDA = BM + 4;  // sA's rows are padded, so that the lanes that turn A write to different banks
constexpr unsigned STAGE = 4 * DEPTH * (LDA + BN);  // bytes
constexpr int PER_ROW_A = THREADS / BM, PER_ROW_B = THREADS / DEPTH;  // threads that copy one row of A, of B
constexpr int RUN_A = DEPTH / PER_ROW_A;                              // neighbours of A's row that a thread copies
constexpr bool AHEAD = SLICES == 1;  // the next tile's copies start before this one's sums are stored
constexpr int LOADS_A = TM / 4, LOADS = LOADS_A + TN / 4;             // 16-byte reads that one k needs
constexpr bool DIRECT = VEC_N == 4 && !ALIGN && !RAGGED;  // C is stored 16 bytes at a time, where that makes whole lines

#include "edges.cuh"  // with the constants above
static_assert(BM % WM == 0 && TM % 4 == 0, "TM: a multiple of 4, and the warp's 4 * TM rows divide BM");
static_assert(BN % WN == 0 && TN % 4 == 0, "TN: a multiple of 4, and the warp's 8 * TN columns divide BN");
static_assert(THREADS <= 1024, "BM, BN, TM, TN, SLICES: a block has at most 1024 threads");
static_assert(THREADS % BM == 0 && DEPTH % PER_ROW_A == 0, "BM: divides the threads, and a row's threads divide BK * SLICES");
static_assert(THREADS % DEPTH == 0 && BN % (PER_ROW_B * VEC_N) == 0, "BK, BN: the threads copy whole rows of B");
static_assert(TM % SLICES == 0, "SLICES: divides TM, each group stores as many rows");
static_assert(BK % 2 == 0, "BK: even, for two sets of fragments take turns");
static_assert(STAGES >= 3, "STAGES: at least 3, one to read, one that has landed, one to fill");
static_assert(PINNED >= 1 && BK % PINNED == 0, "PINNED: divides BK, so that the last k of a slice is one of them");
static_assert(COPY_AT < BK - 1, "COPY_AT: before the last k of a slice, where the barrier is");
static_assert(SPACING >= 1 && LEAD + (LOADS - 1) * SPACING < TM * TN, "LEAD, SPACING: the reads fit among the multiply-adds");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, float* __restrict__ partial,
      int* __restrict__ flags, int M, int N, int K, int columns, int pitch) {
    extern __shared__ __align__(16) float shared[];
    float* const ends = AHEAD ? shared + STAGES * STAGE / 4 : shared;  // room for sums on their way out of a tile
    const unsigned base = shared_address(shared);

    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32, lane = threadIdx.x % 32;
    const int lane_m = lane / 2 % 2 + lane / 16 * 2, lane_n = lane % 2 + lane / 4 % 4 * 2;
    const int warp_m = warp / (BN / WN) * WM, warp_n = warp % (BN / WN) * WN;
    const int row_a = threadIdx.x / PER_ROW_A, k_a = threadIdx.x % PER_ROW_A * RUN_A;
    const int k_b = threadIdx.x / PER_ROW_B, col_b = threadIdx.x % PER_ROW_B * VEC_N;
    const unsigned to_a = base + 4 * (k_a * LDA + row_a), to_b = base + 4 * (DEPTH * LDA + k_b * BN + col_b);
    const unsigned from_sa = base + 4 * (group * BK * LDA + warp_m + lane_m * 4);
    const unsigned from_sb = base + 4 * (DEPTH * LDA + group * BK * BN + warp_n + lane_n * 4);

    const int tiles_m = (M + BM - 1) / BM, tiles_n = (columns + BN - 1) / BN, slices = (K + DEPTH - 1) / DEPTH;
    const auto piece = [&](int block) {  // where the piece of a block starts
        return static_cast<long long>(tiles_m) * tiles_n * slices * block / static_cast<int>(gridDim.x);
    };
    // the tile in work, and where its next slice comes from
    int tile, first, last, block_row, block_col, k_left;
    const float *from_a, *from_b;
    const auto copy_slice = [&](unsigned stage) {
        if (!RAGGED || (k_left >= DEPTH && block_col + BN <= columns)) {
#pragma unroll
            for (int i = 0; i < RUN_A; ++i) cp_async<4>(to_a + stage + 4 * i * LDA, from_a + i);
#pragma unroll
            for (int i = 0; i < BN; i += PER_ROW_B * VEC_N) cp_async<4 * VEC_N>(to_b + stage + 4 * i, from_b + i);
        } else {  // zeros past the edges
#pragma unroll
            for (int i = 0; i < RUN_A; ++i) cp_async<4>(to_a + stage + 4 * i * LDA, from_a + i, k_a + i < k_left);
#pragma unroll
            for (int i = 0; i < BN; i += PER_ROW_B * VEC_N)
                cp_async<4 * VEC_N>(to_b + stage + 4 * i, from_b + i, k_b < k_left && block_col + col_b + i < columns);
        }
        from_a += DEPTH;
        from_b += static_cast<size_t>(DEPTH) * pitch;
        k_left -= DEPTH;
    };
    const auto open_tile = [&](long long begin, long long end) {  // its first slices are on their way when this returns
        tile = static_cast<int>(begin / slices), first = static_cast<int>(begin % slices);
        last = static_cast<int>(min(static_cast<long long>(slices), first + (end - begin)));
        const int band = tile / (RASTER * tiles_n), in_band = tile % (RASTER * tiles_n);
        const int height = min(RASTER, tiles_m - band * RASTER);
        block_row = (band * RASTER + in_band % height) * BM, block_col = in_band / height * BN;
        // rows past C's last are copies of it, and never stored
        from_a = A + static_cast<size_t>(min(block_row + row_a, M - 1)) * K + first * DEPTH + k_a;
        from_b = B + static_cast<size_t>(first * DEPTH + k_b) * pitch + block_col + col_b;
        k_left = K - first * DEPTH;
#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i) {
            if (i < last - first) copy_slice(i * STAGE);
            cp_async_commit();
        }
    };

    bool owed = false;  // this block has left sums and not yet raised its flag
    long long begin = piece(blockIdx.x);
    const long long end = piece(blockIdx.x + 1);
    launch_dependents(); wait_for_launch();  // the next launch may start as this one ends; what is touched here may be the last one's
    if (begin < end) open_tile(begin, end);
    while (begin < end) {
        int left = last - first;
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the first slice has landed for everyone

        float acc[TM][TN] = {}, rA[2][TM], rB[2][TN];
        unsigned reading = 0, filling = (STAGES - 1) * STAGE, sA = from_sa, sB = from_sb;
        const auto load = [&](int k, int i) {  // the i-th 16-byte read for k
            if (i < LOADS_A) load_shared(&rA[k % 2][4 * i], sA + 4 * (k % BK * LDA + 4 * i * LANES_M));
            else load_shared(&rB[k % 2][4 * (i - LOADS_A)], sB + 4 * (k % BK * BN + 4 * (i - LOADS_A) * LANES_N));
        };
#pragma unroll
        for (int i = 0; i < LOADS; ++i) load(0, i);
        do {
#pragma unroll
            for (int k = 0; k < BK; ++k) {
                if (k == COPY_AT) {
                    if (left >= STAGES) copy_slice(filling);
                    cp_async_commit();
                }
#pragma unroll
                for (int i = 0; i < TM * TN; ++i) {
                    if (k == BK - 1 && i == LEAD) {
                        cp_async_wait<STAGES - 2>();
                        __syncthreads();  // the next slice has landed for everyone, and everyone has read this one
                        --left;
                        filling = reading;
                        if (left > 0) reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
                        sA = from_sa + reading;
                        sB = from_sb + reading;
                    }
                    if (i >= LEAD && (i - LEAD) % SPACING == 0 && (i - LEAD) / SPACING < LOADS) load(k + 1, (i - LEAD) / SPACING);
                    const int n = i / TM, m = n % 2 ? TM - 1 - i % TM : i % TM;  // down one column, up the next
                    if (k % PINNED == PINNED - 1) multiply_add_in_place(acc[m][n], rA[k % 2][m], rB[k % 2][n], K);
                    else acc[m][n] = fmaf(rA[k % 2][m], rB[k % 2][n], acc[m][n]);
                }
            }
        } while (left > 0);
        cp_async_wait<0>();
        if (owed) __threadfence();  // the sums left at the end of the last tile have long been on their way
        __syncthreads();  // everyone has read the last slice: the stages are free; those sums are visible before the flag is
        if (owed && threadIdx.x == 0) atomicExch(&flags[blockIdx.x], 1);
        owed = false;

        // the next tile's first slices travel while this one's sums do
        const int this_tile = tile, this_first = first, this_row = block_row, this_col = block_col;
        begin += last - first;
        if (AHEAD && begin < end) open_tile(begin, end);

        if constexpr (SLICES > 1) {
            // the groups' sums meet in shared memory, SLICES rows at a time; group g goes on with the rows m % SLICES == g
            float* const sums = ends + threadIdx.x % GROUP;
#pragma unroll
            for (int from = 0; from < TM; from += SLICES) {
#pragma unroll
                for (int i = 0; i < SLICES * TN; ++i) sums[(i * SLICES + group) * GROUP] = acc[from + i / TN][i % TN];
                __syncthreads();  // every group's sums are there
#pragma unroll
                for (int i = 0; i < SLICES * TN; ++i) {
                    if (i / TN != group) continue;
                    float sum = sums[i * SLICES * GROUP];
#pragma unroll
                    for (int g = 1; g < SLICES; ++g) sum += sums[(i * SLICES + g) * GROUP];
                    acc[from + i / TN][i % TN] = sum;
                }
                __syncthreads();  // everyone has read the sums: the next rows may take their place
            }
        }

        // adding -0 changes no value; it moves sums that leave four at a time, so that nothing ties their registers in the main loop
        const float minus_zero = __int_as_float(K < 0 ? 0 : 0x80000000);
        const auto four = [&](int m, int n) {
            return make_float4(acc[m][n] + minus_zero, acc[m][n + 1] + minus_zero, acc[m][n + 2] + minus_zero, acc[m][n + 3] + minus_zero);
        };
        const auto partial_of = [&](int block) { return partial + static_cast<size_t>(block) * BM * BN + threadIdx.x % GROUP; };
        if (this_first > 0) {
#pragma unroll
            for (int i = 0; i < TM * TN; ++i)
                if (i / TN % SLICES == group) partial_of(blockIdx.x)[i * GROUP] = acc[i / TN][i % TN];
            owed = true;
        } else {
            for (int block = blockIdx.x + 1; piece(block) < static_cast<long long>(this_tile + 1) * slices; ++block) {
                if (threadIdx.x == 0) {
                    while (atomicAdd(&flags[block], 0) == 0) {}
                    flags[block] = 0;  // as the next launch expects it
                    __threadfence();
                }
                __syncthreads();  // the flag was seen before anyone reads the sums
#pragma unroll
                for (int i = 0; i < TM * TN; ++i)
                    if (i / TN % SLICES == group) acc[i / TN][i % TN] += __ldcg(&partial_of(block)[i * GROUP]);
            }
            if constexpr (DIRECT) {
#pragma unroll
                for (int i = 0; i < TM * TN; i += 4) {
                    const int m = i / TN, n = i % TN;
                    if (m % SLICES != group) continue;
                    const int row = this_row + warp_m + m / 4 * 4 * LANES_M + lane_m * 4 + m % 4;
                    const int col = this_col + warp_n + n * LANES_N + lane_n * 4;
                    if (row < M && col < columns)
                        *reinterpret_cast<float4*>(C + static_cast<size_t>(row) * N + col) = four(m, n);
                }
            } else {
                float* const rows = ends + threadIdx.x / 32 * LANES_M * (WN + 1);
                store_through(rows, acc, C, this_row + warp_m, this_col + warp_n, lane_m, lane_n, group, M, N, columns);
            }
        }
        if (!AHEAD) {
            __syncthreads();  // everyone is done with shared memory: the next tile's slices may land
            if (begin < end) open_tile(begin, end);
        }
    }
    if (owed) {
        __threadfence();
        __syncthreads();  // all of the block's sums are visible before its flag is
        if (threadIdx.x == 0) atomicExch(&flags[blockIdx.x], 1);
    }
}
