// Register banks: the order and the places of the multiply-adds, so that each finds its operands in different banks.
//
// Before: a multiply-add reads three registers; registers with an even number are in one bank, those with an odd number in
// the other, and a bank gives one a cycle. So one operand must come from the operand cache, which keeps what the multiply-add
// before it used, and the other two must be in different banks. The order of the loops left this to chance, and 16-byte
// stores held four neighbouring sums in four neighbouring registers, often in the bank of the operand that changes.
// Now: a thread goes down one column of its tile and up the next, so B's value stays in the cache and only A's changes. The
// sums leave through shared memory one by one: no store ties them together. In every PINNED-th k the multiply-adds are
// predicated, which makes the compiler keep each sum in one register and find it a place once. The next k's fragments
// are read while this one is multiplied, LEAD multiply-adds after its start and SPACING apart; and each thread has
// TM x TN sums, as many as fit, since what is read from shared memory passes through the same banks.
// A block owns a BM x BN tile of C, as in step 9.
// Limited now by: the number of tiles, which rarely divides by the number of multiprocessors (see steps 11 and 12).

#include "ptx.cuh"

constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WM = LANES_M * TM, WN = LANES_N * TN;
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int LDA = BM + 4;  // sA's rows are padded, so that the lanes that turn A write to different banks
constexpr unsigned STAGE = 4 * BK * (LDA + BN);  // bytes
constexpr int PER_ROW_A = THREADS / BM, PER_ROW_B = THREADS / BK;  // threads that copy one row of A, of B
constexpr int RUN_A = BK / PER_ROW_A;                              // neighbours of A's row that a thread copies
constexpr int LOADS_A = TM / 4, LOADS = LOADS_A + TN / 4;             // 16-byte reads that one k needs

static_assert(BM % WM == 0 && TM % 4 == 0, "TM: a multiple of 4, and the warp's 4 * TM rows divide BM");
static_assert(BN % WN == 0 && TN % 4 == 0, "TN: a multiple of 4, and the warp's 8 * TN columns divide BN");
static_assert(THREADS <= 1024, "BM, BN, TM, TN: a block has at most 1024 threads");
static_assert(THREADS % BM == 0 && BK % PER_ROW_A == 0, "BM: divides the threads, and a row's threads divide BK");
static_assert(THREADS % BK == 0 && BN % (PER_ROW_B * VEC_N) == 0, "BK, BN: the threads copy whole rows of B");
static_assert(BK % 2 == 0, "BK: even, for two sets of fragments take turns");
static_assert(STAGES >= 3, "STAGES: at least 3, one to read, one that has landed, one to fill");
static_assert(PINNED >= 1 && BK % PINNED == 0, "PINNED: divides BK, so that the last k of a slice is one of them");
static_assert(COPY_AT < BK - 1, "COPY_AT: before the last k of a slice, where the barrier is");
static_assert(SPACING >= 1 && LEAD + (LOADS - 1) * SPACING < TM * TN, "LEAD, SPACING: the reads fit among the multiply-adds");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    extern __shared__ __align__(16) float shared[];
    const unsigned base = shared_address(shared);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_m = lane / 2 % 2 + lane / 16 * 2, lane_n = lane % 2 + lane / 4 % 4 * 2;
    const int warp_m = warp / (BN / WN) * WM, warp_n = warp % (BN / WN) * WN;
    const int row_a = threadIdx.x / PER_ROW_A, k_a = threadIdx.x % PER_ROW_A * RUN_A;
    const int k_b = threadIdx.x / PER_ROW_B, col_b = threadIdx.x % PER_ROW_B * VEC_N;
    const unsigned to_a = base + 4 * (k_a * LDA + row_a), to_b = base + 4 * (BK * LDA + k_b * BN + col_b);
    const unsigned from_sa = base + 4 * (warp_m + lane_m * 4);
    const unsigned from_sb = base + 4 * (BK * LDA + warp_n + lane_n * 4);

    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int band = blockIdx.x / (RASTER * tiles_n), in_band = blockIdx.x % (RASTER * tiles_n);
    const int height = min(RASTER, tiles_m - band * RASTER);
    const int block_row = (band * RASTER + in_band % height) * BM, block_col = in_band / height * BN;

    // rows past C's last are copies of it, and never stored
    const float* from_a = A + static_cast<size_t>(min(block_row + row_a, M - 1)) * K + k_a;
    const float* from_b = B + static_cast<size_t>(k_b) * N + block_col + col_b;
    int k_left = K;
    const auto copy_slice = [&](unsigned stage) {
        if (!RAGGED || (k_left >= BK && block_col + BN <= N)) {
#pragma unroll
            for (int i = 0; i < RUN_A; ++i) cp_async<4>(to_a + stage + 4 * i * LDA, from_a + i);
#pragma unroll
            for (int i = 0; i < BN; i += PER_ROW_B * VEC_N) cp_async<4 * VEC_N>(to_b + stage + 4 * i, from_b + i);
        } else {  // zeros past the edges
#pragma unroll
            for (int i = 0; i < RUN_A; ++i) cp_async<4>(to_a + stage + 4 * i * LDA, from_a + i, k_a + i < k_left);
#pragma unroll
            for (int i = 0; i < BN; i += PER_ROW_B * VEC_N)
                cp_async<4 * VEC_N>(to_b + stage + 4 * i, from_b + i, k_b < k_left && block_col + col_b + i < N);
        }
        from_a += BK;
        from_b += static_cast<size_t>(BK) * N;
        k_left -= BK;
    };

    int left = (K + BK - 1) / BK;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < left) copy_slice(i * STAGE);
        cp_async_commit();
    }
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
                    filling = reading;
                    if (left > 1) reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
                    sA = from_sa + reading;
                    sB = from_sb + reading;
                }
                if (i >= LEAD && (i - LEAD) % SPACING == 0 && (i - LEAD) / SPACING < LOADS) load(k + 1, (i - LEAD) / SPACING);
                const int n = i / TM, m = n % 2 ? TM - 1 - i % TM : i % TM;  // down one column, up the next
                if (k % PINNED == PINNED - 1) multiply_add_in_place(acc[m][n], rA[k % 2][m], rB[k % 2][n], K);
                else acc[m][n] = fmaf(rA[k % 2][m], rB[k % 2][n], acc[m][n]);
            }
        }
    } while (--left > 0);
    cp_async_wait<0>();
    __syncthreads();  // everyone has read the last slice: shared memory is free

    // four rows of the warp's tile at a time through shared memory: whole lines are stored, whatever their alignment
    float* const rows = shared + threadIdx.x / 32 * LANES_M * (WN + 1);
#pragma unroll
    for (int m = 0; m < TM; ++m) {
#pragma unroll
        for (int n = 0; n < TN; ++n) rows[lane_m * (WN + 1) + n / 4 * 4 * LANES_N + lane_n * 4 + n % 4] = acc[m][n];
        __syncwarp();  // the rows are complete
#pragma unroll
        for (int i = 0; i < LANES_M * WN; i += 32) {
            const int row = block_row + warp_m + m / 4 * 4 * LANES_M + i / WN * 4 + m % 4;
            const int col = block_col + warp_n + i % WN + lane;
            if (row < M && col < N) C[static_cast<size_t>(row) * N + col] = rows[i / WN * (WN + 1) + i % WN + lane];
        }
        __syncwarp();  // the rows are read: the next four may take their place
    }
}
