// A block a row: values and places in shared memory, the better of two at a time.
//
// The better of two elements: the larger one; NaN before any number; of equals the one further left.  That is NumPy's order.
// A block owns a row; its threads stride over the columns, one element a load, and then meet in a tree.
// Limited now by: one element a load; two words of shared memory and three comparisons where two elements meet.

#include "types.cuh"

static_assert((THREADS & (THREADS - 1)) == 0 && THREADS <= 1024, "THREADS is a power of 2, at most 1024");

// Whether element a at place i comes before element b at place j.
__device__ __forceinline__ bool better(float a, int i, float b, int j) {
    if (a != a || b != b) return a != a && (b == b || i < j);
    return a > b || (a == b && i < j);
}

extern "C" __global__ void __launch_bounds__(THREADS) argmax(const element* x, long long* index, int M, int N, long long stride_x) {
    __shared__ float values[THREADS];
    __shared__ int places[THREADS];
    x += blockIdx.x * stride_x;

    float value = minus_infinity();
    int place = N;  // behind every column: any element is better, -infinity too
    for (int n = threadIdx.x; n < N; n += THREADS) {
        const float e = to_float(x[n]);
        if (better(e, n, value, place)) value = e, place = n;
    }
    values[threadIdx.x] = value, places[threadIdx.x] = place;
    __syncthreads();  // every thread's best is there before another reads it
    for (int distance = THREADS / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) {
            const int other = threadIdx.x + distance;
            if (better(values[other], places[other], values[threadIdx.x], places[threadIdx.x]))
                values[threadIdx.x] = values[other], places[threadIdx.x] = places[other];
        }
        __syncthreads();  // this round's best are there before the next round reads them
    }
    if (threadIdx.x == 0) index[blockIdx.x] = places[0];
}
