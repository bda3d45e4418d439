// Pointer chase: one thread follows addresses through global memory, and each load waits for the one before it.
//
// Each of L lines holds where the next one lies, in a random order that visits them all, so that nothing can be fetched ahead.
// chase_link writes the lines, STRIDE bytes apart, a thread a line.  Then a block of one thread sets out `warm` hops before the first
// line, which fills the caches with what they can hold, and counts the cycles of H hops from there.  It does not start again: what it
// has just walked through would be in L2, however long the chain.  A line holds an address, or (INDEXED) a number from which the address
// must be computed, as code with arrays does: those instructions then count, too.
// CACHE says who may keep a line: L1 and L2, or L2 alone.
// Limited now by: the latency of one load; nothing else is under way.

#include "probe.cuh"

static_assert(STRIDE >= 8 && STRIDE % 8 == 0, "STRIDE must be a multiple of 8 bytes, an address");
static_assert(CACHE == 0 || CACHE == 1, "CACHE must be 0, through L1, or 1, past it");

extern "C" __global__ void __launch_bounds__(256) chase_link(const int* order, char* chain, int L) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= L) return;
    const unsigned long long next = order[i + 1 < L ? i + 1 : 0];
    char* const line = chain + static_cast<unsigned long long>(order[i]) * STRIDE;
    *reinterpret_cast<unsigned long long*>(line) = INDEXED ? next : reinterpret_cast<unsigned long long>(chain) + next * STRIDE;
}

__device__ __forceinline__ unsigned long long follow(unsigned long long at, unsigned long long base) {
    return load_word<CACHE>(INDEXED ? base + at * STRIDE : at);
}

extern "C" __global__ void __launch_bounds__(1)
chase(const int* order, const char* chain, int* last, long long* cycles, int H, int warm, int start) {
    const unsigned long long base = reinterpret_cast<unsigned long long>(chain);
    const unsigned long long line = order[start];
    unsigned long long at = INDEXED ? line : base + line * STRIDE;
#pragma unroll 1
    for (int i = 0; i < warm; ++i) at = follow(at, base);
    await(at);
    const long long begin = cycle_count();
#pragma unroll 16
    for (int i = 0; i < H; ++i) at = follow(at, base);
    await(at);
    cycles[0] = cycle_count() - begin;
    last[0] = static_cast<int>(INDEXED ? at : (at - base) / STRIDE);
}
