// Access order: each lane adds up one column of x, and `pattern` alone decides how the lanes of a warp lie in memory.
//
// Row by row, thread j reads element pattern[j] of a row of E: neighbours, every second, every tenth, shifted by a few, or
// anywhere.  A request is served by the 32-byte sectors in which its lanes lie; what else a sector holds is moved for nothing.
// A block owns THREADS columns; a thread keeps its place in a register and has UNROLL rows in flight.
// Limited now by: sectors, whatever part of them is asked for.

extern "C" __global__ void __launch_bounds__(THREADS) gather(const float* x, const int* pattern, float* sums, int T, int C, int E) {
    const int j = blockIdx.x * THREADS + threadIdx.x;
    if (j >= C) return;
    const float* from = x + pattern[j];
    float sum = 0.0f;
    int row = 0;
#pragma unroll 1
    for (; row + UNROLL <= T; row += UNROLL) {
        float v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = from[static_cast<long long>(u) * E];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum += v[u];
        from += static_cast<long long>(UNROLL) * E;
    }
#pragma unroll 1
    for (; row < T; ++row, from += E) sum += *from;
    sums[j] = sum;
}
