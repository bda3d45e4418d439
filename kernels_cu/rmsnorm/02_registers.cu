// Registers: the row is read once, several elements a load, and stays in registers until it is written.
//
// Before: the row was read twice, one element at a time.
// Now: each thread keeps its VECS packs of VEC elements as they came; all loads are under way before the first is used.  With EARLY the
// weights are asked for before the sum, too, so that their way from the cache is not added to the end of the row's.
// A block owns ROWS rows, LANES threads each; lane t of a row holds packs t, t + LANES, …; a row within a warp needs no barrier.
// The next launch's blocks are placed while this one's last rows end (programmatic dependent launch).
// Limited now by: memory, one read and one write; and by what registers hold of a long row.

#include "cluster.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES > 32 ? LANES / 32 : 1;

static_assert(LANES % 32 == 0 || (LANES < 32 && (LANES & (LANES - 1)) == 0), "LANES is a power of 2 up to 32, or whole warps");
static_assert(LANES <= 32 || ROWS == 1, "a row of several warps has a block for itself");
static_assert(LANES * ROWS % 32 == 0 && LANES * ROWS <= 1024, "a block is a number of whole warps, at most 1024 threads");

extern "C" __global__ void __launch_bounds__(LANES* ROWS, BLOCKS)
    rmsnorm(const element* x, const element* w, element* y, int M, int N, long long stride_x, long long stride_y, float eps) {
    __shared__ float slots[WARPS];
    const int t = threadIdx.x % LANES, row = blockIdx.x * ROWS + threadIdx.x / LANES;
    x += row * stride_x, y += row * stride_y;
    const int columns = row < M ? N : 0;  // lanes of rows past the end stay for the shuffles
    launch_dependents();  // the next launch's blocks may take the places of those that end
    wait_for_launch();    // what is read and written here may be the launch's before this one

    Pack<element, VEC> held[VECS], weights[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * LANES + t) * VEC;
        held[v] = n < columns ? read<HINT, VEC>(x + n) : zeros<VEC>();
    }
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * LANES + t) * VEC;
        if (EARLY && n < columns) weights[v] = read<0, VEC>(w + n);
    }
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += e[i] * e[i];
    }
    sum = reduce_lanes<(LANES < 32 ? LANES : 32)>(sum, Add{});
    if constexpr (WARPS > 1) {
        if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = sum;
        __syncthreads();  // every warp's sum is there before any reads them
        sum = reduce_slots<WARPS>(slots, Add{});
    }
    const float factor = rsqrtf(sum / N + eps);
    forget(held);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * LANES + t) * VEC;
        if (n < columns) {
            float e[VEC], f[VEC];
            unpack(e, held[v]);
            unpack(f, EARLY ? weights[v] : read<0, VEC>(w + n));
#pragma unroll
            for (int i = 0; i < VEC; ++i) e[i] *= factor * f[i];
            write<HINT>(y + n, pack<element, VEC>(e));
        }
    }
}
