// Bulk: rows lie in shared memory as they came; registers no longer say how many are under way.
//
// Before: blocks that stay begin and end their rows in step with few others; blocks that come and go held their rows in registers, room for
// one or two of them on a multiprocessor, and fetched the weights from L2 for every row.
// Now: one thread of each block asks the copy engine for its share of ROWS rows by one copy each; registers hold only what a thread works
// on.  As many blocks fit as shared memory has room for shares: some wait for their copies while others compute, exchange or write.  A
// weight is fetched once for ROWS rows, LOADS packs of them at a time, the first while the cluster exchanges sums.
// A cluster of CLUSTER blocks owns ROWS rows; block `rank` of it an equal share of their packs, LANES threads to a share.
// Limited now by: memory, one read and one write; for long rows by how soon a cluster finds room in all its blocks' places.

#include "bulk.cuh"
#include "distributed.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS) rmsnorm(const element* x, const element* w, element* y, int M, int N,
                                                                    long long stride_x, long long stride_y, float eps) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ float slots[ROWS][SLOTS];
    __shared__ unsigned long long full[ROWS], arrived;
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    const int first = blockIdx.x / CLUSTER * ROWS, rows = min(ROWS, M - first);
    const Pack<element, VEC>* held = reinterpret_cast<const Pack<element, VEC>*>(room);
    x += first * stride_x + rank * share * VEC, y += first * stride_y + rank * share * VEC, w += rank * share * VEC;

    if (threadIdx.x == 0) {
        for (int row = 0; row < ROWS; ++row) mbarrier_init(shared_address(full + row), 1);
        expect_values(&arrived, rows * SLOTS * sizeof(float));
        for (int row = 0; row < rows && mine > 0; ++row) {
            mbarrier_expect(shared_address(full + row), mine * 16);
            bulk_load(shared_address(room) + row * share * 16, x + row * stride_x, mine * 16, shared_address(full + row));
        }
    }
    __syncthreads();  // the barriers are ready
    if constexpr (CLUSTER > 1) cluster_arrive_relaxed();  // this block runs, so that others may write into it; they wait for that below

    for (int row = 0; row < rows; ++row) {
        if (mine > 0) mbarrier_wait(shared_address(full + row), 0);
        float sum = 0.0f;
#pragma unroll 2
        for (int place = threadIdx.x; place < mine; place += LANES) {
            float e[VEC];
            unpack(e, held[row * share + place]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) sum += e[k] * e[k];
        }
        sum = reduce_lanes<32>(sum, Add{});
        if constexpr (CLUSTER > 1) {
            if (row == 0) cluster_wait();  // every block of the cluster runs
            if (lane < CLUSTER) send(&slots[row][rank * WARPS + warp], lane, sum, &arrived);
        } else {
            if (lane == 0) slots[row][warp] = sum;
        }
    }
    // The first weights are asked for before the sums have come: their way from L2 is not added to that.
    Pack<element, VEC> weights[LOADS];
    const auto fetch = [&](int from) {
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (from + l * LANES < mine) weights[l] = read<0, VEC>(w + (from + l * LANES) * VEC);
        }
    };
    fetch(threadIdx.x);
    if constexpr (CLUSTER > 1) {
        mbarrier_wait(shared_address(&arrived), 0);  // every warp of the rows has sent its sums here; then nobody writes here any more
    } else {
        __syncthreads();  // every warp's sums are there before any reads them
    }
    float factors[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) factors[row] = row < rows ? rsqrtf(reduce_slots<SLOTS>(slots[row], Add{}) / N + eps) : 0.0f;

    for (int from = threadIdx.x; from < mine; from += LOADS * LANES) {
        if (from != threadIdx.x) fetch(from);
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int place = from + l * LANES;
            float f[VEC];
            unpack(f, weights[l]);
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                if (place < mine && row < rows) {
                    float e[VEC];
                    unpack(e, held[row * share + place]);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) e[k] *= factors[row] * f[k];
                    write<0>(y + row * stride_y + place * VEC, pack<element, VEC>(e));
                }
            }
        }
    }
}
