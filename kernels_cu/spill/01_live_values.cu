// Register spills: a loop that needs all of VALUES values at once, compiled for fewer and fewer registers.
//
// Each of a block's THREADS threads keeps VALUES sums and mixes each with its neighbour, `weights` times over.  __launch_bounds__ promises
// BLOCKS blocks a multiprocessor, so that ptxas may give a thread only its share of the register file; what does not fit goes to local
// memory and back in every round.  The launch is the same whatever BLOCKS promises.
// Limited now by: multiply-adds while all values have registers; then by the loads and stores that stand in for them.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) spill(const float* x, const float* weights, float* y, int T, int W) {
    const int t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= T) return;
    float value[VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; ++i) value[i] = x[static_cast<long long>(i) * T + t];
#pragma unroll 1
    for (int round = 0; round < W; ++round) {
        const float weight = weights[round];
#pragma unroll
        for (int i = 0; i < VALUES; ++i) value[i] = fmaf(weight, value[(i + 1) % VALUES], value[i]);
    }
#pragma unroll
    for (int i = 0; i < VALUES; ++i) y[static_cast<long long>(i) * T + t] = value[i];
}
