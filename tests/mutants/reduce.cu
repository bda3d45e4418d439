// One sum a block: a tree in shared memory down to a warp, which finishes with __syncwarp between its turns.
constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) k(const float* x, float* sums, int n) {
    __shared__ float part[THREADS];
    const int i = blockIdx.x * THREADS + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();  // all parts are there
    for (int half = THREADS / 2; half >= 32; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();  // this turn's sums are there
    }
    if (threadIdx.x < 32) {
        for (int half = 16; half > 0; half /= 2) {
            const float other = part[threadIdx.x ^ half];
            __syncwarp();  // read before anyone writes
            part[threadIdx.x] += other;
            __syncwarp();  // written before anyone reads
        }
        if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
    }
}
