// Pairwise: numbers are added in pairs, the pairs in pairs, and so on, as a tree of threads does.
//
// Before: the last numbers were added to a sum of all the others.
// Now: both sides of every addition stand for equally many numbers, so a number takes part in as many roundings as the tree is deep.
// A block owns THREADS sums, a thread each.  `waiting` holds one finished subtree for each bit of the count, as a carry would; its places
// are named by constants, so that they are registers.
// Limited now by: the depth of the tree, which rounding errors still grow with.

extern "C" __global__ void __launch_bounds__(THREADS) order(const float* x, float* y, int M, int N) {
    const int m = blockIdx.x * THREADS + threadIdx.x;
    if (m >= M) return;
    float waiting[31];
#pragma unroll
    for (int level = 0; level < 31; ++level) waiting[level] = 0.0f;
    for (int n = 0; n < N; ++n) {
        float subtree = x[static_cast<long long>(n) * M + m];
        bool carried = true;
#pragma unroll
        for (int level = 0; level < 31; ++level) {
            const bool full = n >> level & 1;
            if (carried && full) subtree += waiting[level];
            if (carried && !full) waiting[level] = subtree;
            carried = carried && full;
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int level = 0; level < 31; ++level) {
        if (N >> level & 1) sum += waiting[level];
    }
    y[m] = sum;
}
