// In order: a register adds one number after the other.
//
// A block owns THREADS sums, a thread each; the numbers of neighbouring sums lie beside each other, so that a warp reads whole lines.
// Each addition rounds a partial sum that has grown with all before it, so rounding errors grow with their number.
// Limited now by: that.

extern "C" __global__ void __launch_bounds__(THREADS) order(const float* x, float* y, int M, int N) {
    const int m = blockIdx.x * THREADS + threadIdx.x;
    if (m >= M) return;
    float sum = 0.0f;
    for (int n = 0; n < N; ++n) sum += x[static_cast<long long>(n) * M + m];
    y[m] = sum;
}
