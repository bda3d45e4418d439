// Rows of softmax, one a block: a warp's maximum and sum by shuffles, the warps' through shared memory.
constexpr int THREADS = 128, WARPS = THREADS / 32;

template <typename F> __device__ float all(float value, float* of_warp, F combine) {
    for (int other = 16; other > 0; other /= 2) value = combine(value, __shfl_xor_sync(~0u, value, other));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();  // every warp's value is there
    value = of_warp[0];
    for (int warp = 1; warp < WARPS; ++warp) value = combine(value, of_warp[warp]);
    __syncthreads();  // all have read: the place may be written again
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS) k(const float* x, float* y, int columns) {
    __shared__ float of_warp[WARPS];
    const float* row = x + blockIdx.x * columns;
    float most = -1e30f, sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += THREADS) most = fmaxf(most, row[i]);
    most = all(most, of_warp, [](float a, float b) { return fmaxf(a, b); });
    for (int i = threadIdx.x; i < columns; i += THREADS) sum += expf(row[i] - most);
    sum = all(sum, of_warp, [](float a, float b) { return a + b; });
    for (int i = threadIdx.x; i < columns; i += THREADS) y[blockIdx.x * columns + i] = expf(row[i] - most) / sum;
}
