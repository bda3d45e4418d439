// The constant bank: one thread follows a chain through constant memory.
//
// Constant memory has caches of its own, small ones near the schedulers and a larger one behind them, and is fast where all lanes read
// one word.  The chain cannot be an argument: it is laid out by the compiler, LINES lines STRIDE bytes apart, and each holds
// the offset of the line SKIP further on, round and round; SKIP and LINES have no common divisor, so that all are visited.
// A block of one thread goes WARM hops, which fill the caches, and counts the cycles of H more.
// Limited now by: the latency of one load from the constant bank.

#include "probe.cuh"

static_assert(STRIDE >= 4 && STRIDE % 4 == 0, "STRIDE must be a multiple of 4 bytes, an offset");
static_assert(LINES * STRIDE <= 65536, "LINES * STRIDE must fit the 64 KB of the constant bank");
static_assert(SKIP >= 1 && SKIP <= LINES, "SKIP must lie between 1 and LINES");

struct Chain {
    unsigned at[LINES * STRIDE / 4];
    __device__ constexpr Chain() : at() {
        for (int line = 0; line < LINES; ++line) at[line * (STRIDE / 4)] = (line + SKIP) % LINES * STRIDE;
    }
};
__constant__ Chain chain;

extern "C" __global__ void __launch_bounds__(1) constant(const int* start, int* last, long long* cycles, int H) {
    unsigned long long base;
    asm("cvta.to.const.u64 %0, %1;" : "=l"(base) : "l"(&chain));
    unsigned at = (start[0] % LINES + LINES) % LINES * STRIDE;
    const unsigned first = at;
#pragma unroll 1
    for (int i = 0; i < WARM; ++i) at = load_constant_word(base + at);
    await(at);
    at = first;
    const long long begin = cycle_count();
#pragma unroll 16
    for (int i = 0; i < H; ++i) at = load_constant_word(base + at);
    await(at);
    cycles[0] = cycle_count() - begin;
    last[0] = static_cast<int>(at / STRIDE);
}
