// A thread a column: each column's sum, mean or maximum along the first axis.
//
// Before: a row's elements stood beside each other, and the threads that joined them did, too.
// Now: a column's elements stand a row apart, so threads take neighbouring columns and walk down: a warp's load is one run of memory, and
// nothing has to meet.
// A block owns THREADS columns, a thread each.
// Limited now by: as many threads as there are columns, and one load under way for each.

#include "operation.cuh"

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS) axis(const element* x, element* y, int M, int N, long long stride_x) {
    const int n = blockIdx.x * THREADS + threadIdx.x;
    if (n >= N) return;
    const Operation join;
    float value = Operation::neutral();
    for (int m = 0; m < M; ++m) value = join(value, to_float(x[m * stride_x + n]));
    y[n] = convert<element>(finish(value, M));
}
