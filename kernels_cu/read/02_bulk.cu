// Bulk copies: one thread of a block asks for whole pieces of x, and the copy engine brings them to shared memory.
//
// Before: every 16 bytes were asked for by a lane, needed an address and a register, and passed through L1.
// Now: a piece of ROWS rows is one instruction; STAGES pieces are on their way while the block adds up the one that has landed.
// A block takes every gridDim-th piece of all P passes; its threads read the piece as before, each in its column of vectors.
// Limited now by: the bandwidth of L2 or DRAM; shared memory moves every byte twice, and has room for it.

#include "bulk.cuh"
#include "mbarrier.cuh"
#include "ptx.cuh"

constexpr int ROW = 16;  // vectors

static_assert(THREADS % ROW == 0 && THREADS >= 64, "THREADS must be a multiple of a row's 16 vectors, at least 64");

extern "C" __global__ void __launch_bounds__(THREADS) read(const float4* x, float* sums, int R, int P) {
    extern __shared__ __align__(128) float4 pieces[];
    __shared__ unsigned long long landed[STAGES];
    __shared__ float4 parts[THREADS];
    const int of_a_pass = (R + ROWS - 1) / ROWS, all = of_a_pass * P;
    const auto vectors = [&](int piece) { return ROW * min(ROWS, R - piece * ROWS); };
    const auto start = [&](int n, int stage) {  // the n-th piece of all passes into a stage
        const int piece = n % of_a_pass;
        const unsigned barrier = shared_address(&landed[stage]), bytes = 16 * vectors(piece);
        mbarrier_expect(barrier, bytes);
        bulk_load(shared_address(pieces + stage * ROWS * ROW), x + static_cast<long long>(piece) * ROWS * ROW, bytes, barrier);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) mbarrier_init(shared_address(&landed[s]), 1);
        fence_mbarrier_init();
    }
    __syncthreads();  // the barriers exist before anyone waits at them
    if (threadIdx.x == 0)
        for (int s = 0; s < STAGES && static_cast<int>(blockIdx.x + s * gridDim.x) < all; ++s) start(blockIdx.x + s * gridDim.x, s);
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    int stage = 0, parity = 0;
#pragma unroll 1
    for (int n = blockIdx.x; n < all; n += gridDim.x) {
        mbarrier_wait(shared_address(&landed[stage]), parity);
        const float4* const piece = pieces + stage * ROWS * ROW;
        const int count = vectors(n % of_a_pass);
        for (int i = threadIdx.x; i < count; i += THREADS) {
            const float4 v = piece[i];
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        __syncthreads();  // everyone has read the piece: its place is free for another
        const int next = n + STAGES * static_cast<int>(gridDim.x);
        if (threadIdx.x == 0 && next < all) start(next, stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    parts[threadIdx.x] = sum;
    __syncthreads();  // every thread's part is there before columns are added up
    if (threadIdx.x >= 64) return;
    float column = 0.0f;
    for (int i = threadIdx.x / 4; i < THREADS; i += ROW) column += reinterpret_cast<const float*>(&parts[i])[threadIdx.x % 4];
    atomicAdd(&sums[threadIdx.x], column);
}
