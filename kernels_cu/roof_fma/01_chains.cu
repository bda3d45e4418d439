// Multiply-adds in independent chains: nothing but registers, as many in flight as the pipe is deep.
//
// D = C + a * a - a * a + a * a …, R times to and fro: the sums stay where they are, and nothing rounds away.
// A thread owns a row of J sums and one a; a block owns THREADS rows.  The J sums of a thread do not wait for each other, and a
// multiply-add starts before the last has ended.  Of doubles it names two registers, the sum's and a's: with a third they start less often
// than the pipe could take them, for each operand is two.  Of floats it names a third, a copy of a that can lie in the other bank.
// Limited now by: the multiply-add pipe itself; this is its roof.

#include "stamp.cuh"

#ifdef DTYPE_F64
using element = double;
#else
using element = float;
#endif

extern "C" __global__ void __launch_bounds__(THREADS) roof_fma(const element* A, const element* C, element* D,
                                                               unsigned long long* stamps, int T, int J, int R) {
    const int t = blockIdx.x * THREADS + threadIdx.x;
    const bool inside = t < T;
    const element a = inside ? A[t] : element(0);
#ifdef DTYPE_F64
    const element b = a;
#else
    const element b = __shfl_sync(~0u, a, threadIdx.x % 32);  // a, which the compiler cannot know
#endif
    element sum[CHAINS];
#pragma unroll
    for (int j = 0; j < CHAINS; ++j) sum[j] = inside ? C[t * CHAINS + j] : element(0);
    __syncthreads();  // hazard: the clock must not start while a warp still waits for its data
    const Stamp start = stamp_now();
#pragma unroll
    for (int j = 0; j < CHAINS; ++j) sum[j] = fma(a, b, sum[j]);
#pragma unroll UNROLL
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int j = 0; j < CHAINS; ++j) sum[j] = fma(-a, b, sum[j]);
#pragma unroll
        for (int j = 0; j < CHAINS; ++j) sum[j] = fma(a, b, sum[j]);
    }
    __syncthreads();  // hazard: the clock must not stop while a warp still works
    const Stamp end = stamp_now();
    if (inside) {
#pragma unroll
        for (int j = 0; j < CHAINS; ++j) D[t * CHAINS + j] = sum[j];
    }
    if (threadIdx.x == 0) store_stamps(stamps, start, end);
}
