// Fragments of wgmma as they are: the sums that each thread holds, and the rows of A where A comes from registers.
//
// A block is one warpgroup, which multiplies sixty-four rows of A by COLS rows of B (used as columns) over thirty-two bytes of K. Both
// lie in shared memory in cores of eight rows of sixteen bytes, unswizzled; or A's bytes go to registers as they come, sixteen to
// a thread. It stores its sums lane by lane.
// Limited now by: nothing that matters; it is there to be looked at.

#include "ptx.cuh"
#include "wgmma.cuh"

constexpr int CORE = 128, BAND = 2 * CORE;  // bytes: of eight rows of sixteen bytes; of eight rows of all of K
static_assert(COLS % 8 == 0 && COLS <= 256, "COLS: columns in eights, at most 256");

extern "C" __global__ void __launch_bounds__(128)
wgmma_fragments(const uint4* __restrict__ A, const uint4* __restrict__ B, Operand::sum* __restrict__ D) {
    __shared__ __align__(128) unsigned char shared[(64 + COLS) * 32];
    const unsigned base = shared_address(shared);
    const int thread = threadIdx.x;
    const auto put = [&](unsigned to, const uint4* from, int rows) {
        for (int i = thread; i < 2 * rows; i += 128) {
            const int row = i / 2, unit = i % 2;
            store_shared(to + row / 8 * BAND + unit * CORE + row % 8 * 16, from[i].x, from[i].y, from[i].z, from[i].w);
        }
    };
    put(base, A + blockIdx.x * 128, 64);
    put(base + 64 * 32, B + blockIdx.x * 2 * COLS, COLS);
    fence_proxy_async();  // what this thread wrote, for wgmma
    __syncthreads();      // all rows are there before they are multiplied
    const unsigned long long b = wgmma_descriptor<0>(base + 64 * 32, CORE, BAND);
    Operand::sum d[COLS / 2];
#if VARIANT_REGISTERS
    const uint4 mine = A[blockIdx.x * 128 + thread];
    unsigned a[4] = {mine.x, mine.y, mine.z, mine.w};
    pin(a);  // they are there before the fence, wherever the compiler would load them
    wgmma_fence();
    wgmma<Operand>(d, a, b, 0);
#else
    wgmma_fence();
    wgmma<Operand>(d, wgmma_descriptor<0>(base, CORE, BAND), b, 0);
#endif
    wgmma_commit();
    wgmma_wait<0>();
    pin(d);
    for (int i = 0; i < COLS / 2; ++i) D[(blockIdx.x * 128 + thread) * (COLS / 2) + i] = d[i];
}
