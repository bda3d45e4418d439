// Bulk: rows lie in shared memory as they came; registers no longer say how many are under way.
//
// Before: blocks that stay begin and end their rows in step with few others; blocks that come and go held their rows in registers, room for
// one or two of them on a multiprocessor, and fetched weights and biases from L2 for every row: three reads there for one of memory.
// Now: one thread of each block asks the copy engine for its share of ROWS rows by one copy each; registers hold only what a thread works
// on.  As many blocks fit as shared memory has room for shares: some wait for their copies while others compute, exchange or write.  A
// weight and a bias are fetched once for ROWS rows, LOADS packs of them at a time, the first while the cluster exchanges moments.
// The moments take one pass over what lies there instead of two: a thread adds how far its elements lie from a pivot, the mean of its first
// pack, and the squares of that.  Squares from the pivot exceed those from the thread's mean by its n elements times the square of the
// distance of pivot and mean, while the first pack alone has VEC times that: what is taken off again is at most n / VEC times what stays,
// so it costs few digits whatever the row looks like.
// A cluster of CLUSTER blocks owns ROWS rows; block `rank` of it an equal share of their packs, LANES threads to a share.
// Limited now by: memory, one read and one write; for long rows by how soon a cluster finds room in all its blocks' places, and by L2.

#include "bulk.cuh"
#include "distributed.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

// How many columns a warp of the cluster has: of each round of LANES packs 32, and what the last round leaves it.
__device__ __forceinline__ int columns_of(int slot, int packs, int share) {
    const int rank = slot / WARPS, warp = slot % WARPS, theirs = min(max(packs - rank * share, 0), share);
    return (theirs / LANES * 32 + min(max(theirs % LANES - warp * 32, 0), 32)) * VEC;
}

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS)
    layernorm(const element* x, const element* w, const element* b, element* y, int M, int N, long long stride_x, long long stride_y,
              float eps) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ float means[ROWS][SLOTS], squares[ROWS][SLOTS];
    __shared__ unsigned long long full[ROWS], arrived;
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = rank * WARPS + warp;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    const int first = blockIdx.x / CLUSTER * ROWS, rows = min(ROWS, M - first);
    const Pack<element, VEC>* held = reinterpret_cast<const Pack<element, VEC>*>(room);
    x += first * stride_x + rank * share * VEC, y += first * stride_y + rank * share * VEC;
    w += rank * share * VEC, b += rank * share * VEC;

    if (threadIdx.x == 0) {
        for (int row = 0; row < ROWS; ++row) mbarrier_init(shared_address(full + row), 1);
        expect_values(&arrived, rows * 2 * SLOTS * sizeof(float));
        for (int row = 0; row < rows && mine > 0; ++row) {
            mbarrier_expect(shared_address(full + row), mine * 16);
            bulk_load(shared_address(room) + row * share * 16, x + row * stride_x, mine * 16, shared_address(full + row));
        }
    }
    __syncthreads();  // the barriers are ready
    if constexpr (CLUSTER > 1) cluster_arrive_relaxed();  // this block runs, so that others may write into it; they wait for that below

    const float own = max(columns_of(slot, packs, share), 1);
    const float count = max((mine - static_cast<int>(threadIdx.x) + LANES - 1) / LANES, 0) * VEC, inverse = 1.0f / fmaxf(count, 1.0f);
    for (int row = 0; row < rows; ++row) {
        if (mine > 0) mbarrier_wait(shared_address(full + row), 0);
        const Pack<element, VEC>* own_packs = held + row * share + threadIdx.x;
        float pivot = 0.0f, sum = 0.0f, square = 0.0f, e[VEC];
        if (count > 0.0f) unpack(e, own_packs[0]);
#pragma unroll
        for (int k = 0; k < VEC; ++k) pivot += count > 0.0f ? e[k] * (1.0f / VEC) : 0.0f;
#pragma unroll 2
        for (int place = 0; place < mine - static_cast<int>(threadIdx.x); place += LANES) {
            unpack(e, own_packs[place]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const float distance = e[k] - pivot;
                sum += distance, square += distance * distance;
            }
        }
        // The thread's own moments, then the warp's.  A square that has overflowed stays infinite.
        const float above = sum * inverse, mean = reduce_lanes<32>(count * (pivot + above), Add{}) / own, from_mean = pivot + above - mean;
        square = square < -minus_infinity() ? fmaxf(square - above * sum, 0.0f) : square;
        square = reduce_lanes<32>(square + count * from_mean * from_mean, Add{});
        if constexpr (CLUSTER > 1) {
            if (row == 0) cluster_wait();  // every block of the cluster runs
            if (lane < CLUSTER) {
                send(&means[row][slot], lane, mean, &arrived);
                send(&squares[row][slot], lane, square, &arrived);
            }
        } else {
            if (lane == 0) means[row][slot] = mean, squares[row][slot] = square;
        }
    }
    // The first weights and biases are asked for before the moments have come: their way from L2 is not added to that.
    Pack<element, VEC> weights[LOADS], biases[LOADS];
    const auto fetch = [&](int from) {
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int n = (from + l * LANES) * VEC;
            if (n < mine * VEC) weights[l] = read<0, VEC>(w + n), biases[l] = read<0, VEC>(b + n);
        }
    };
    fetch(threadIdx.x);
    if constexpr (CLUSTER > 1) {
        mbarrier_wait(shared_address(&arrived), 0);  // every warp of the rows has sent its moments here; then nobody writes here any more
    } else {
        __syncthreads();  // every warp's moments are there before any reads them
    }
    float shifts[ROWS], factors[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        if (row >= rows) break;
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int from = 0; from < SLOTS; from += 32) {
            if (from + lane < SLOTS) sum += columns_of(from + lane, packs, share) * means[row][from + lane];
        }
        const float mean = reduce_lanes<32>(sum, Add{}) / N;
#pragma unroll
        for (int from = 0; from < SLOTS; from += 32) {
            if (from + lane < SLOTS) {
                const float distance = means[row][from + lane] - mean;
                square += squares[row][from + lane] + columns_of(from + lane, packs, share) * distance * distance;
            }
        }
        factors[row] = rsqrtf(reduce_lanes<32>(square, Add{}) / N + eps);
        shifts[row] = -mean * factors[row];
    }
    for (int from = threadIdx.x; from < mine; from += LOADS * LANES) {
        if (from != threadIdx.x) fetch(from);
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int place = from + l * LANES;
            float f[VEC], g[VEC];
            unpack(f, weights[l]);
            unpack(g, biases[l]);
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                if (place < mine && row < rows) {
                    float e[VEC];
                    unpack(e, held[row * share + place]);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) e[k] = fmaf(fmaf(e[k], factors[row], shifts[row]), f[k], g[k]);
                    write<0>(y + row * stride_y + place * VEC, pack<element, VEC>(e));
                }
            }
        }
    }
}
