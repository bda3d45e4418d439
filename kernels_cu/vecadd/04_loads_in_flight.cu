// Loads in flight: a thread starts several loads before it needs the first.
//
// Before: a thread had two loads under way, and what a multiprocessor had under way was two loads times its threads.
// Now: LOADS elements a thread and array are loaded before the first is added. Bytes under way over the time that one takes is
// the bandwidth (Little's law), so this is worth as much as as many times the threads, and costs registers only.
// A block owns tiles of LOADS * THREADS neighbouring elements of C; a thread has one in every THREADS, so that the lanes of a
// warp stay neighbours in every load. With a GRID, so many blocks walk over all tiles; without, there is a block a tile.
// Limited now by: the number of instructions. Each moves four bytes a lane, and each needs its own address (see step 5).

constexpr int TILE = LOADS * THREADS;

// 1: registers for all the loads; without it the compiler holds them down until the warps are full, and some loads wait
extern "C" __global__ void __launch_bounds__(THREADS, 1)
vecadd(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
    // unsigned, because the step past the end may go beyond what a signed integer holds
    const unsigned stride = gridDim.x * TILE;
#pragma unroll 1
    for (unsigned start = blockIdx.x * TILE; start < N; start += stride) {
        const unsigned first = start + threadIdx.x;
        float a[LOADS], b[LOADS];
        if (start + TILE <= N) {
#pragma unroll
            for (int k = 0; k < LOADS; ++k) a[k] = A[first + k * THREADS], b[k] = B[first + k * THREADS];
#pragma unroll
            for (int k = 0; k < LOADS; ++k) C[first + k * THREADS] = a[k] + b[k];
        } else {
            // the last tile, with elements past the end
            for (unsigned i = first; i < N; i += THREADS) C[i] = A[i] + B[i];
        }
    }
}
