// Shared memory: a row too long for registers lies in shared memory, brought there by asynchronous copies.
//
// Before: a row had to fit the registers of one block.
// Now: it has to fit the shared memory of one multiprocessor.  Each thread copies, waits for and reads its own packs only; the two passes,
// sum and squared deviations, each end in a reduction across the block.
// A block owns a row; thread t holds packs t, t + THREADS, …
// Limited now by: few blocks a multiprocessor, so that there is little to load while one of them computes; and by rows that are longer.

#include "ptx.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = THREADS / 32, BYTES = VEC * static_cast<int>(sizeof(element));

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS)
    layernorm(const element* x, const element* w, const element* b, element* y, int M, int N, long long stride_x, long long stride_y,
              float eps) {
    extern __shared__ __align__(16) unsigned char room[];
    element* held = reinterpret_cast<element*>(room);
    __shared__ float sums[WARPS], squares[WARPS];
    x += blockIdx.x * stride_x, y += blockIdx.x * stride_y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        if constexpr (BYTES >= 4)
            cp_async<BYTES>(shared_address(held + n), reinterpret_cast<const float*>(x + n));
        else
            *reinterpret_cast<Pack<element, VEC>*>(held + n) = read<0, VEC>(x + n);
    }
    cp_async_commit();
    cp_async_wait<0>();

    float sum = 0.0f, square = 0.0f;
    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float e[VEC];
        load<VEC>(e, held + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += e[i];
    }
    sum = reduce_lanes<32>(sum, Add{});
    if (lane == 0) sums[warp] = sum;
    __syncthreads();  // every warp's sum is there before any reads them
    const float mean = reduce_slots<WARPS>(sums, Add{}) / N;
    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float e[VEC];
        load<VEC>(e, held + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) square += (e[i] - mean) * (e[i] - mean);
    }
    square = reduce_lanes<32>(square, Add{});
    if (lane == 0) squares[warp] = square;
    __syncthreads();  // and every warp's squares
    const float factor = rsqrtf(reduce_slots<WARPS>(squares, Add{}) / N + eps);

    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float e[VEC], f[VEC], g[VEC];
        load<VEC>(e, held + n);
        load<VEC>(f, w + n);
        load<VEC>(g, b + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) e[i] = (e[i] - mean) * factor * f[i] + g[i];
        write<HINT>(y + n, pack<element, VEC>(e));
    }
}
