// Counts of bytes: a table a block by shared atomics, added to the table of all by global ones.
constexpr int THREADS = 128, BINS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) k(const unsigned char* x, unsigned* counts, int n) {
    __shared__ unsigned own[BINS];
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) own[bin] = 0;
    __syncthreads();  // the table is empty
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) atomicAdd(&own[x[i]], 1u);
    __syncthreads();  // all have counted
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) atomicAdd(&counts[bin], own[bin]);
}
