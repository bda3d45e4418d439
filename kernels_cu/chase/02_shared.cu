// The same chase through shared memory.
//
// Before: every hop went through the caches of global memory.
// Now: the lines lie in the block's own shared memory, which no cache stands before and no tag is compared for.
// The block's threads write the lines, STRIDE bytes apart; then its first thread follows them for H hops.  A line holds the next one's
// address, or (INDEXED) its number, from which the address must be computed.
// Limited now by: the latency of shared memory.

#include "probe.cuh"
#include "ptx.cuh"

static_assert(STRIDE >= 4 && STRIDE % 4 == 0, "STRIDE must be a multiple of 4 bytes, an address in shared memory");

extern __shared__ unsigned lines[];

__device__ __forceinline__ unsigned follow(unsigned at, unsigned base) { return load_shared_word(INDEXED ? base + at * STRIDE : at); }

extern "C" __global__ void __launch_bounds__(256) chase(const int* order, int* last, long long* cycles, int L, int H) {
    const unsigned base = shared_address(lines);
    for (int i = threadIdx.x; i < L; i += 256) {
        const unsigned next = order[i + 1 < L ? i + 1 : 0];
        lines[order[i] * (STRIDE / 4)] = INDEXED ? next : base + next * STRIDE;
    }
    __syncthreads();  // every line is written before the first is read
    if (threadIdx.x > 0) return;
    const unsigned first = INDEXED ? order[0] : base + order[0] * STRIDE;
    await(first);
    unsigned at = first;
    const long long begin = cycle_count();
#pragma unroll 16
    for (int i = 0; i < H; ++i) at = follow(at, base);
    await(at);
    cycles[0] = cycle_count() - begin;
    last[0] = static_cast<int>(INDEXED ? at : (at - base) / STRIDE);
}
