// Partial sums; the block that finishes last adds them up (after the CUDA sample threadFenceReduction).
constexpr int THREADS = 64;

extern "C" __global__ void __launch_bounds__(THREADS) k(const float* x, float* partial, unsigned* ticket, float* sum) {
    __shared__ float part[THREADS];
    __shared__ bool last;
    part[threadIdx.x] = x[blockIdx.x * THREADS + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < THREADS; ++i) total += part[i];
        partial[blockIdx.x] = total;
        __threadfence();  // the sum is there before the ticket is drawn
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        __threadfence();  // the ticket is drawn before sums are read
    }
    __syncthreads();  // `last` is known
    if (last && threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < gridDim.x; ++i) total += partial[i];
        *sum = total;
    }
}
