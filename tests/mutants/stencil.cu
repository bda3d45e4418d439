// y[i] = sum of x[i - R .. i + R] for bytes, with the block's neighbourhood in shared memory; and a running table in local memory.
constexpr int THREADS = 64, R = 3;

extern "C" __global__ void __launch_bounds__(THREADS) k(const unsigned char* x, unsigned short* y, const int* order, int n) {
    __shared__ unsigned char near[THREADS + 2 * R];
    const int first = blockIdx.x * THREADS - R;
    for (int j = threadIdx.x; j < THREADS + 2 * R; j += THREADS) near[j] = first + j >= 0 && first + j < n ? x[first + j] : 0;
    __syncthreads();  // the neighbourhood is there
    unsigned short table[2 * R + 1];
    for (int j = 0; j <= 2 * R; ++j) table[order[j]] = near[threadIdx.x + j];
    unsigned short sum = 0;
    for (int j = 0; j <= 2 * R; ++j) sum += table[order[2 * R - j]];
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = sum;
}
