// Transposed: a thread has a part of several rows, and where they join, each lane keeps half of the rows.
//
// Before: a narrow row was a thread's only one: a load, then as many exchanges as halve its lanes; all of them then had it.
// Now: a thread asks for its packs of ROWS rows at once.  Two lanes exchange halves of their rows, each joins the half that it keeps, and
// so on down to one row a lane: one exchange a row instead of one a halving, and a warp writes neighbouring results.
// A warp of a block owns ROWS * 32 / LANES rows; lane t of LANES takes packs t, t + LANES, … of every (32 / LANES)th of them.
// Limited now by: memory.

#include "operation.cuh"
#include "stream.cuh"
#include "transposed.cuh"

constexpr int BESIDE = 32 / LANES;  // rows that a warp reads beside each other

static_assert(LANES <= 32 && (LANES & (LANES - 1)) == 0, "LANES is a power of 2, at most a warp");
static_assert(ROWS <= LANES && (ROWS & (ROWS - 1)) == 0, "ROWS is a power of 2, at most LANES");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a number of whole warps, at most 1024");

extern "C" __global__ void __launch_bounds__(THREADS) axis(const element* x, element* y, int M, int N, long long stride_x) {
    const Operation join;
    const int t = threadIdx.x % LANES, warp = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int first = warp * ROWS * BESIDE + threadIdx.x % 32 / LANES;

    // What lies past the end is not there: a lane reads the row's first pack, which does not count, or the last row, which it does not
    // write.
    Pack<element, VEC> held[ROWS][VECS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const element* const from = x + min(first + r * BESIDE, M - 1) * stride_x;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            const int n = (v * LANES + t) * VEC;
            held[r][v] = read<HINT, VEC>(from + (n < N ? n : 0));
        }
    }
    float values[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            float e[VEC];
            unpack(e, held[r][v]);
            float of_pack = e[0];
#pragma unroll
            for (int i = 1; i < VEC; ++i) of_pack = join(of_pack, e[i]);
            of_pack = (v * LANES + t) * VEC < N ? of_pack : Operation::neutral();
            values[r] = v == 0 ? of_pack : join(values[r], of_pack);
        }
    }
    const float joined = reduce_rows<LANES, ROWS>(values, join);
    const int row = first + t % ROWS * BESIDE;
    if (t < ROWS && row < M) y[row] = convert<element>(finish(joined, N));
}
