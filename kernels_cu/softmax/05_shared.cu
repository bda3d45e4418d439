// Shared memory: a row too long for registers lies in shared memory, brought there by asynchronous copies.
//
// Before: a row had to fit the registers of one block.
// Now: it has to fit the shared memory of one multiprocessor.  Each thread copies, waits for and reads its own packs only, so that no
// barrier stands between the copy and its use; the copies need no registers while they are under way.
// A block owns a row; thread t holds packs t, t + THREADS, …
// Limited now by: one or two blocks a multiprocessor, so that there is little to load while one of them computes; and by rows that are
// longer than shared memory.

#include "exponential.cuh"
#include "ptx.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = THREADS / 32, BYTES = VEC * static_cast<int>(sizeof(element));

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const element* x, element* y, int M, int N, long long stride_x,
                                                              long long stride_y) {
    extern __shared__ __align__(16) unsigned char room[];
    element* held = reinterpret_cast<element*>(room);
    __shared__ float maxima[WARPS], sums[WARPS];
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

    float largest = minus_infinity(), sum = 0.0f;
    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float e[VEC];
        load<VEC>(e, held + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) largest = fmaxf(largest, e[i]);
    }
    largest = reduce_lanes<32>(largest, Larger{});
    float shift = shift_of(largest);
    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float e[VEC];
        load<VEC>(e, held + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += exponential(e[i] - shift);
    }
    sum = reduce_lanes<32>(sum, Add{});
    if (lane == 0) maxima[warp] = largest, sums[warp] = sum;
    __syncthreads();  // every warp's pair is there before any reads them
    shift = shift_of(reduce_slots<WARPS>(maxima, Larger{}));
    const float factor = 1.0f / reduce_lanes<32>(lane < WARPS ? sums[lane] * exponential(maxima[lane] - shift) : 0.0f, Add{});

    for (int n = VEC * threadIdx.x; n < N; n += VEC * THREADS) {
        float e[VEC];
        load<VEC>(e, held + n);
#pragma unroll
        for (int i = 0; i < VEC; ++i) e[i] = exponential(e[i] - shift) * factor;
        write<HINT>(y + n, pack<element, VEC>(e));
    }
}
