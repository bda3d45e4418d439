// Neumaier: what is rounded away is kept whichever of the two was the smaller, and added at the end.
//
// Before: a number larger than the sum so far took digits of the sum with it.
// Now: the smaller one's lost part is computed, of the sum or of the number, and all lost parts have a sum of their own (Neumaier,
// "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen").
// A block owns THREADS sums, a thread each.
// Limited now by: the sum of what is lost, which is rounded itself; and by the additions a number takes.

extern "C" __global__ void __launch_bounds__(THREADS) order(const float* x, float* y, int M, int N) {
    const int m = blockIdx.x * THREADS + threadIdx.x;
    if (m >= M) return;
    float sum = 0.0f, lost = 0.0f;
    for (int n = 0; n < N; ++n) {
        const float next = x[static_cast<long long>(n) * M + m], both = sum + next;
        lost += fabsf(sum) >= fabsf(next) ? (sum - both) + next : (next - both) + sum;
        sum = both;
    }
    y[m] = sum + lost;
}
