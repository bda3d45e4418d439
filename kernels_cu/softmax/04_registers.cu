// Registers: the row is read once and stays in registers, as it came, until it is written.
//
// Before: the row was read again for the result.
// Now: each thread keeps its VECS packs of VEC elements in the type of the memory, half the registers of floats where that is narrow;
// they are all asked for before the first is used, so that much of the row is under way at once.
// Sums are taken relative to the maximum of their own warp and rescaled when warps meet: one barrier instead of two.
// A block owns ROWS rows, LANES threads each; lane t of a row holds packs t, t + LANES, …; a row within a warp needs no barrier at all.
// The next launch's blocks are placed while this one's last rows end (programmatic dependent launch).
// Limited now by: memory, one read and one write; and by what registers hold of a long row.

#include "cluster.cuh"
#include "exponential.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES > 32 ? LANES / 32 : 1;

static_assert(LANES % 32 == 0 || (LANES < 32 && (LANES & (LANES - 1)) == 0), "LANES is a power of 2 up to 32, or whole warps");
static_assert(LANES <= 32 || ROWS == 1, "a row of several warps has a block for itself");
static_assert(LANES * ROWS % 32 == 0 && LANES * ROWS <= 1024, "a block is a number of whole warps, at most 1024 threads");

extern "C" __global__ void __launch_bounds__(LANES* ROWS, BLOCKS) softmax(const element* x, element* y, int M, int N, long long stride_x,
                                                                          long long stride_y) {
    __shared__ float maxima[WARPS], sums[WARPS];
    const int t = threadIdx.x % LANES, row = blockIdx.x * ROWS + threadIdx.x / LANES;
    x += row * stride_x, y += row * stride_y;
    const int columns = row < M ? N : 0;  // lanes of rows past the end stay for the shuffles
    launch_dependents();  // the next launch's blocks may take the places of those that end
    wait_for_launch();    // what is read and written here may be the launch's before this one

    Pack<element, VEC> held[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * LANES + t) * VEC;
        held[v] = n < columns ? read<HINT, VEC>(x + n) : lowest<VEC>();
    }
    float largest = minus_infinity(), sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) largest = fmaxf(largest, e[i]);
    }
    largest = reduce_lanes<(LANES < 32 ? LANES : 32)>(largest, Larger{});
    forget(held);
    float shift = shift_of(largest);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += exponential(e[i] - shift);
    }
    sum = reduce_lanes<(LANES < 32 ? LANES : 32)>(sum, Add{});
    if constexpr (WARPS > 1) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) maxima[warp] = largest, sums[warp] = sum;
        __syncthreads();  // every warp's pair is there before any reads them
        shift = shift_of(reduce_slots<WARPS>(maxima, Larger{}));
        sum = reduce_lanes<32>(lane < WARPS ? sums[lane] * exponential(maxima[lane] - shift) : 0.0f, Add{});
    }
    const float factor = 1.0f / sum;
    forget(held);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * LANES + t) * VEC;
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) e[i] = exponential(e[i] - shift) * factor;
        if (n < columns) write<HINT>(y + n, pack<element, VEC>(e));
    }
}
