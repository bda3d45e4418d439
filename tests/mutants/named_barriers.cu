// Two warps fill two slots in turn, two empty them: a full and an empty barrier a slot, each for all 128 threads.
constexpr int GROUP = 64, THREADS = 2 * GROUP, SLOTS = 2, FULL = 1, EMPTY = FULL + SLOTS;

__device__ void arrive(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
__device__ void wait(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS) k(const float* x, float* y, int turns) {
    __shared__ float slots[SLOTS][GROUP];
    const int i = threadIdx.x % GROUP;
    if (threadIdx.x < GROUP) {
        for (int turn = 0; turn < turns; ++turn) {
            const int slot = turn % SLOTS;
            if (turn >= SLOTS) wait(EMPTY + slot, THREADS);
            slots[slot][i] = x[turn * GROUP + i];
            arrive(FULL + slot, THREADS);
        }
    } else {
        for (int turn = 0; turn < turns; ++turn) {
            const int slot = turn % SLOTS;
            wait(FULL + slot, THREADS);
            y[turn * GROUP + i] = slots[slot][GROUP - 1 - i];
            if (turn + SLOTS < turns) arrive(EMPTY + slot, THREADS);
        }
    }
}
