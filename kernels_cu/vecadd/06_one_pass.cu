// One pass: a thread adds one vector of sixteen bytes and ends; the grid is as large as the work again.
//
// Before: blocks that stay had their tiles dealt out before the first was read, the same number to each, and a warp went to its
// next loads only after its stores.
// Now: the device gives the next tile, in order, to whichever multiprocessor has room. Blocks that come and go were slow in
// step 2, where each moved little: here a thread moves four times as much with as many instructions, and a block is as large as
// can be. Steps 4 and 5 gain nearly as much from GRID=0: with enough bytes under way, neither more loads nor wider ones help
// much. The stores are the first to leave L2 (EVICT_FIRST), since nobody reads the sums; that is worth next to nothing.
// A block owns a tile of THREADS vectors of C, a thread one of them. The floats behind the last whole vector are left to the
// first threads of the grid.
// Limited now by: the memory itself, which has to turn round between reads and writes.

__device__ __forceinline__ float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

extern "C" __global__ void __launch_bounds__(THREADS)
vecadd(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
    const float4 *A4 = reinterpret_cast<const float4*>(A), *B4 = reinterpret_cast<const float4*>(B);
    float4* C4 = reinterpret_cast<float4*>(C);
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, vectors = N / 4;
    if (i < vectors) {
        if constexpr (EVICT_FIRST)
            __stcs(C4 + i, sum(A4[i], B4[i]));
        else
            C4[i] = sum(A4[i], B4[i]);
    }
    const unsigned rest = vectors * 4 + i;
    if (rest < N) C[rest] = A[rest] + B[rest];
}
