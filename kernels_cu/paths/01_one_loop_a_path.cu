// Paths: every element says which of thirty-two loops it takes, all of one length and each with an addend of its own.
//
// The lanes of a warp share one instruction at a time. Where they stand at different instructions, the warp runs one path after the
// other, each with the lanes that take it, and the time of all paths adds up; where whole warps differ, each runs its own alone.
// A block owns THREADS neighbouring elements of y; SMEM bytes of shared memory are asked for and never touched, to say how many
// blocks fit.
// Limited now by: the latency of a chain of additions, times the paths that a warp takes.

constexpr int PATHS = 32;

// y + rounds * (PATH + 1), by adding; a loop of its own for every path, so that no two share an instruction
template <int PATH>
__device__ __forceinline__ float walk(float y, int rounds) {
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) y += PATH + 1;
    return y;
}

template <int PATH = 0>
__device__ __forceinline__ float take(int path, float y, int rounds) {
    if constexpr (PATH == PATHS) return y;
    else return path == PATH ? walk<PATH>(y, rounds) : take<PATH + 1>(path, y, rounds);
}

extern "C" __global__ void __launch_bounds__(THREADS)
paths(const float* __restrict__ x, const int* __restrict__ path, const int* __restrict__ rounds, float* __restrict__ y, int N) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < N) y[i] = take(path[i] & (PATHS - 1), x[i], rounds[0]);
}
