// Registers: the row is read once and stays in registers, so that the deviation can be taken from a mean that is known.
//
// Before: the row was read twice, and Welford's update made every element wait for the one before.
// Now: two passes over registers cost no memory: first the sum, then the squared deviations from the mean, both free of long chains and at
// least as exact as Welford's.  A warp takes the mean of its own elements; means and deviations of the warps join by Chan's formula, so
// that one barrier does where two passes across the block would need two.
// A block owns ROWS rows, LANES threads each; lane t of a row holds packs t, t + LANES, …; a row within a warp needs no barrier.
// The next launch's blocks are placed while this one's last rows end (programmatic dependent launch).
// Limited now by: memory, one read and one write; and by what registers hold of a long row.

#include "cluster.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES > 32 ? LANES / 32 : 1, WIDTH = LANES < 32 ? LANES : 32;

static_assert(LANES % 32 == 0 || (LANES < 32 && (LANES & (LANES - 1)) == 0), "LANES is a power of 2 up to 32, or whole warps");
static_assert(LANES <= 32 || ROWS == 1, "a row of several warps has a block for itself");
static_assert(LANES * ROWS % 32 == 0 && LANES * ROWS <= 1024, "a block is a number of whole warps, at most 1024 threads");

// The reciprocal of a count, to within an ulp or two.  (A division has a branch for what no count is, and takes registers for it.)
__device__ __forceinline__ float inverse(int count) { return __fdividef(1.0f, count); }

// A pack, or zeros: chosen by the word, where Pack's elements of 16 bits would be chosen one by one.
__device__ __forceinline__ Pack<element, VEC> read_or_zeros(bool there, const element* memory) {
    if constexpr (sizeof(Pack<element, VEC>) == 16 && HINT == 0) {
        uint4 words = make_uint4(0, 0, 0, 0);
        if (there) words = *reinterpret_cast<const uint4*>(memory);
        return reinterpret_cast<const Pack<element, VEC>&>(words);
    } else {
        return there ? read<HINT, VEC>(memory) : zeros<VEC>();
    }
}

// How many columns the lanes of a row's warp hold.
__device__ __forceinline__ int columns_of(int warp, int N) {
    int count = 0;
#pragma unroll
    for (int v = 0; v < VECS; ++v) count += min(max(N - (v * LANES + warp * 32) * VEC, 0), WIDTH * VEC);
    return count;
}

extern "C" __global__ void __launch_bounds__(LANES* ROWS, BLOCKS)
    layernorm(const element* x, const element* w, const element* b, element* y, int M, int N, long long stride_x, long long stride_y,
              float eps) {
    __shared__ float means[WARPS], squares[WARPS];
    const int t = threadIdx.x % LANES, row = blockIdx.x * ROWS + threadIdx.x / LANES;
    x += row * stride_x, y += row * stride_y;
    const int columns = row < M ? N : 0;  // lanes of rows past the end stay for the shuffles
    launch_dependents();  // the next launch's blocks may take the places of those that end
    wait_for_launch();    // what is read and written here may be the launch's before this one

    Pack<element, VEC> held[VECS], weights[VECS], biases[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * LANES + t) * VEC;
        held[v] = read_or_zeros(n < columns, x + n);
    }
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * LANES + t) * VEC;
        if (EARLY && n < columns) weights[v] = read<0, VEC>(w + n), biases[v] = read<0, VEC>(b + n);
    }
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += e[i];
    }
    const int warp = WARPS > 1 ? threadIdx.x / 32 : 0, own = columns_of(warp, N);
    float mean = reduce_lanes<WIDTH>(sum, Add{}) * inverse(max(own, 1));
    forget(held);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        float e[VEC];
        unpack(e, held[v]);
        if ((v * LANES + t) * VEC < N) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) square += (e[i] - mean) * (e[i] - mean);
        }
    }
    square = reduce_lanes<WIDTH>(square, Add{});
    if constexpr (WARPS > 1) {
        const int lane = threadIdx.x % 32;
        if (lane == 0) means[warp] = mean, squares[warp] = square;
        __syncthreads();  // every warp's mean and deviations are there before any reads them
        const float theirs = lane < WARPS ? means[lane] : 0.0f, count = lane < WARPS ? columns_of(lane, N) : 0.0f;
        mean = reduce_lanes<32>(count * theirs, Add{}) * inverse(N);
        square = lane < WARPS ? squares[lane] + count * (theirs - mean) * (theirs - mean) : 0.0f;
        square = reduce_lanes<32>(square, Add{});
    }
    const float factor = rsqrtf(square * inverse(N) + eps);
    forget(held);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        const int n = (v * LANES + t) * VEC;
        if (n < columns) {
            float e[VEC], f[VEC], g[VEC];
            unpack(e, held[v]);
            unpack(f, EARLY ? weights[v] : read<0, VEC>(w + n));
            unpack(g, EARLY ? biases[v] : read<0, VEC>(b + n));
#pragma unroll
            for (int i = 0; i < VEC; ++i) e[i] = (e[i] - mean) * factor * f[i] + g[i];
            write<HINT>(y + n, pack<element, VEC>(e));
        }
    }
}
