// Every line from everywhere: each multiprocessor reads each of L lines of L2 alone and counts the cycles.
//
// L2 is cut into parts, and an address's hash says in which part its line lies: near some multiprocessors, far from others.
// lines_link makes each line hold its own address; a block of one thread, one for each multiprocessor, then follows it for HOPS hops
// past L1, after WARM hops that leave the line where L2 wants it, and goes on to the next line in `order`.  Blocks start at different
// places, so that no two ask for the same line at once.
// Limited now by: the latency of L2; the hops of a block are one chain.

#include "probe.cuh"

constexpr int LINE = 128;  // bytes

extern "C" __global__ void __launch_bounds__(256) lines_link(char* chain, int L) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= L) return;
    char* const line = chain + static_cast<long long>(i) * LINE;
    *reinterpret_cast<unsigned long long*>(line) = reinterpret_cast<unsigned long long>(line);
}

extern "C" __global__ void __launch_bounds__(1) lines(const int* order, const char* chain, int* reached, int* cycles, int* sm, int L) {
    const int block = blockIdx.x;
    const unsigned long long base = reinterpret_cast<unsigned long long>(chain);
    sm[block] = multiprocessor();
    int i = static_cast<int>(static_cast<long long>(block) * L / static_cast<int>(gridDim.x));
    for (int n = 0; n < L; ++n) {
        unsigned long long at = base + static_cast<unsigned long long>(order[i]) * LINE;
#pragma unroll
        for (int hop = 0; hop < WARM; ++hop) at = load_word<1>(at);
        await(at);
        const long long begin = cycle_count();
#pragma unroll
        for (int hop = 0; hop < HOPS; ++hop) at = load_word<1>(at);
        await(at);
        const int taken = static_cast<int>(cycle_count() - begin);
        const int line = static_cast<int>((at - base) / LINE);
        reached[static_cast<long long>(block) * L + i] = line;
        cycles[static_cast<long long>(block) * L + line] = taken;
        i = i + 1 < L ? i + 1 : 0;
    }
}
