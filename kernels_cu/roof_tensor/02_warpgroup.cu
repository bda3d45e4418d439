// A warpgroup's matrix instructions on operands that stay in shared memory: C = A B^T, R times over.
//
// Before: a warp's instructions, with operands in registers, reach the tensor cores of a Hopper only in part.
// Now: four warps issue one instruction that reads its operands itself, and go on while it runs.
// A block owns as many rows of C as its WARPGROUPS sum at once, and all columns (COLUMNS, with zeros behind the last).  Its rows of A and
// all of B, STEPS instructions deep in K, are in shared memory before the clock starts, in swizzled rows: panels of K, one behind the
// other.  A pass is one group of STEPS instructions; the next group is issued while the last one runs, and while one warpgroup waits the
// other's instructions run.  Every pass starts its sums from zero, so that the result is that of one pass.
// Limited now by: the tensor cores; this is their roof.

#include "elements.cuh"
#include "ptx.cuh"
#include "stamp.cuh"
#include "wgmma.cuh"

constexpr int PANEL = 128;  // bytes of K in a row of a panel
constexpr int PANELS = (STEPS * 32 + PANEL - 1) / PANEL, ROWS = 64 * WARPGROUPS, THREADS = 128 * WARPGROUPS;

static_assert(PANELS * PANEL * (ROWS + COLUMNS) <= 232448, "STEPS, WARPGROUPS and COLUMNS need more shared memory than a block can have");
static_assert(Operand::bytes * Operand::depth == 32, "an instruction takes 32 bytes of K");

// Copy `height` rows of a matrix into panels, 16 bytes a time: their place in a row of 128 is swapped by the row's number.
__device__ __forceinline__ void fill(unsigned char* to, int height, const void* matrix, int first, int rows, int K) {
    for (int unit = threadIdx.x; unit < PANELS * 8 * height; unit += THREADS) {
        const int row = unit / 8 % height, at = unit / 8 / height * 8 + unit % 8;  // which 16 bytes of the row's K
        uint4 v;
        unsigned* word = &v.x;
        const int k = at * 16 / Operand::bytes;
        for (int i = 0; i < 4; ++i) word[i] = word_of_row<Operand>(matrix, rows, K, first + row, k + i * 4 / Operand::bytes);
        *reinterpret_cast<uint4*>(to + at / 8 * height * PANEL + row * PANEL + (at % 8 ^ row % 8) * 16) = v;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) roof_tensor(const void* A, const void* B, Operand::sum* C,
                                                                     unsigned long long* stamps, int M, int N, int K, int R) {
    extern __shared__ __align__(1024) unsigned char panels[];
    unsigned char *sA = panels, *sB = panels + PANELS * PANEL * ROWS;
    const int group = threadIdx.x / 128, row = blockIdx.x * ROWS + group * 64;
    fill(sA, ROWS, A, blockIdx.x * ROWS, M, K);
    fill(sB, COLUMNS, B, 0, N, K);
    fence_proxy_async();
    __syncthreads();  // hazard: what other threads copied is multiplied below, and the clock must not start before all is there
    const unsigned long long a = wgmma_descriptor<128>(shared_address(sA) + group * 64 * PANEL, 16, 8 * PANEL);
    const unsigned long long b = wgmma_descriptor<128>(shared_address(sB), 16, 8 * PANEL);
    Operand::sum d[COLUMNS / 2];
    const Stamp start = stamp_now();
#pragma unroll 1
    for (int pass = 0; pass < R; ++pass) {
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {  // a descriptor counts in units of 16 bytes
            const int panel = s / 4, within = s % 4 * 32;
            wgmma<Operand>(d, a + (panel * ROWS * PANEL + within) / 16, b + (panel * COLUMNS * PANEL + within) / 16, s > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    pin(d);
    __syncthreads();  // hazard: the clock must not stop while a warp still works
    const Stamp end = stamp_now();
    const int lane = threadIdx.x % 32, top = row + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) {
        const int y = top + i / 2 % 2 * 8, x = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (y < M && x < N) C[static_cast<long long>(y) * N + x] = d[i];
    }
    if (threadIdx.x == 0) store_stamps(stamps, start, end);
}
