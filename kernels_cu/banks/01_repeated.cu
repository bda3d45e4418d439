// Shared-memory banks: every lane reads one place of a table over and over, and `place` alone decides who meets whom.
//
// Shared memory has 32 banks of one word; a wavefront serves each bank once.  Lanes that want different words of one bank wait for
// each other, in groups: a whole warp for one word a lane, half a warp for two, a quarter for four.
// The block copies the table; each of its T threads then reads WIDTH bytes at place[t] and at READS - 1 places behind it, whole turns of
// the banks apart, R times over.  The cycles are those of the whole block, from barrier to barrier.
// Limited now by: wavefronts; there are more warps than the reads need to overlap.

#include "probe.cuh"
#include "ptx.cuh"

constexpr int V = WIDTH / 4, READS = 8, TURN = 32, WORDS = 2048;

static_assert(WIDTH == 4 || WIDTH == 8 || WIDTH == 16, "WIDTH must be 4, 8 or 16 bytes, what one load takes");

extern "C" __global__ void __launch_bounds__(1024)
banks(const float* table, const int* place, float* sums, long long* cycles, int T, int R) {
    __shared__ __align__(16) float words[WORDS];
    const int t = threadIdx.x;
    for (int i = t; i < WORDS; i += T) words[i] = table[i];
    const unsigned from = shared_address(words) + 4 * place[t];
    float sum = 0.0f;
    __syncthreads();  // the table is complete
    const long long begin = cycle_count();
#pragma unroll 1
    for (int round = 0; round < R; ++round) {
        float v[READS][V];
#pragma unroll
        for (int k = 0; k < READS; ++k) load_shared_floats<V>(v[k], from + 4 * TURN * k);
#pragma unroll
        for (int k = 0; k < READS; ++k)
#pragma unroll
            for (int n = 0; n < V; ++n) sum += v[k][n];
    }
    sums[t] = sum;
    __syncthreads();  // the slowest warp is through: the cycles are the block's
    if (t == 0) cycles[0] = cycle_count() - begin;
}
