// Grid-stride loop: as many blocks as the device runs at once, and each walks over the vector.
//
// Before: a block was started for every few elements, and did next to nothing before the next took its place.
// Now: the grid no longer depends on N. A block stays, and steps on by the width of the whole grid. With a grid that is not a
// multiple of what runs at once, some blocks would start late and leave the others idle at the end.
// A block owns every GRID-th piece of THREADS elements of C.
// Limited now by: one element at a time. The loop does not load the next before it has stored this one (see step 4).

extern "C" __global__ void __launch_bounds__(THREADS)
vecadd(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
    // unsigned, because the step past the end may go beyond what a signed integer holds
    const unsigned stride = gridDim.x * THREADS;
#pragma unroll 1  // unrolled by the compiler, it would be the next step
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < N; i += stride) C[i] = A[i] + B[i];
}
