// Kahan: what an addition rounds away is kept, and given to the next one.
//
// Before: errors grew with the depth of the tree.
// Now: after sum + y, what of y did not arrive is (sum' - sum) - y, exactly, as long as sum is the larger; taken off the next number, it
// makes the error the same however many numbers there are (Kahan, "Further remarks on reducing truncation errors").
// A block owns THREADS sums, a thread each.
// Limited now by: four dependent additions a number; and by numbers larger than the sum, whose own rounding is lost (see step 4).

extern "C" __global__ void __launch_bounds__(THREADS) order(const float* x, float* y, int M, int N) {
    const int m = blockIdx.x * THREADS + threadIdx.x;
    if (m >= M) return;
    float sum = 0.0f, lost = 0.0f;
    for (int n = 0; n < N; ++n) {
        const float next = x[static_cast<long long>(n) * M + m] - lost;
        const float larger = sum + next;
        lost = (larger - sum) - next;
        sum = larger;
    }
    y[m] = sum;
}
