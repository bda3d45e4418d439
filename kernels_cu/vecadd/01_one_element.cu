// One element a thread: a thread's number, counted over the whole grid, is the number of its element.
//
// A block owns THREADS neighbouring elements of C, a thread one of them; the last block has threads past the end, which do
// nothing. The lanes of a warp read and write neighbouring addresses, so every sector that moves is used whole.
// Limited now by: one warp a block. It is gone after one element a lane, so blocks must be started as fast as warps end; and a
// multiprocessor holds only so many blocks, however small: half its places for warps stay empty (see step 2).

extern "C" __global__ void __launch_bounds__(THREADS)
vecadd(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < N) C[i] = A[i] + B[i];
}
