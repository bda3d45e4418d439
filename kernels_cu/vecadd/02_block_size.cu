// Block size: the same kernel with blocks of several warps, so that a multiprocessor is full of them.
//
// Before: one warp a block met the limit of blocks a multiprocessor before the limit of warps, and there were as many blocks
// to start as warps.
// Now: a block has warps enough that the warps run out first. More does not help: a block's places are given to the next
// one only when all its warps have ended, and the larger it is, the longer the first to end wait for the last.
// A block owns THREADS neighbouring elements of C, a thread one of them.
// Limited now by: blocks that come and go. Each computes its indices, makes two loads, and is gone, and a thread that waits
// has two loads under way and never more (see steps 3 and 4).

extern "C" __global__ void __launch_bounds__(THREADS)
vecadd(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < N) C[i] = A[i] + B[i];
}
