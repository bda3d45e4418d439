// Bulk: rows lie in shared memory as they came; registers no longer say how many are under way.
//
// Before: blocks that stay begin and end their rows in step with few others; blocks that come and go held their rows in registers, room for
// one or two of them on a multiprocessor.
// Now: one thread of each block asks the copy engine for its share of ROWS rows by one copy each; registers hold only what a thread works
// on.  As many blocks fit as shared memory has room for shares: some wait for their copies while others compute, exchange or write.
// The maximum of 16-bit elements is taken two at a time, as they lie.
// A cluster of CLUSTER blocks owns ROWS rows; block `rank` of it an equal share of their packs, LANES threads to a share.
// Limited now by: memory, one read and one write; for long rows by how soon a cluster finds room in all its blocks' places.

#include "bulk.cuh"
#include "distributed.cuh"
#include "exponential.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 1024 && CLUSTER <= 16, "LANES is a number of whole warps, at most 1024; CLUSTER at most 16");

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS) softmax(const element* x, element* y, int M, int N, long long stride_x,
                                                                    long long stride_y) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ float maxima[ROWS][SLOTS], sums[ROWS][SLOTS];
    __shared__ unsigned long long full[ROWS], arrived;
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    const int first = blockIdx.x / CLUSTER * ROWS, rows = min(ROWS, M - first);
    const Pack<element, VEC>* held = reinterpret_cast<const Pack<element, VEC>*>(room);
    x += first * stride_x + rank * share * VEC, y += first * stride_y + rank * share * VEC;

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

    for (int row = 0; row < rows; ++row) {
        if (mine > 0) mbarrier_wait(shared_address(full + row), 0);
        float largest = minus_infinity(), sum = 0.0f, top[VEC];
        Pack<element, VEC> tops = lowest<VEC>();
#pragma unroll 2
        for (int pack = threadIdx.x; pack < mine; pack += LANES) tops = larger(tops, held[row * share + pack]);
        unpack(top, tops);
#pragma unroll
        for (int k = 0; k < VEC; ++k) largest = fmaxf(largest, top[k]);
        largest = reduce_lanes<32>(largest, Larger{});
        const float shift = shift_of(largest);
#pragma unroll 2
        for (int pack = threadIdx.x; pack < mine; pack += LANES) {
            float e[VEC];
            unpack(e, held[row * share + pack]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) sum += exponential(e[k] - shift);
        }
        sum = reduce_lanes<32>(sum, Add{});
        if constexpr (CLUSTER > 1) {
            if (row == 0) cluster_wait();  // every block of the cluster runs
            if (lane < CLUSTER) {
                send(&maxima[row][rank * WARPS + warp], lane, largest, &arrived);
                send(&sums[row][rank * WARPS + warp], lane, sum, &arrived);
            }
        } else {
            if (lane == 0) maxima[row][warp] = largest, sums[row][warp] = sum;
        }
    }
    if constexpr (CLUSTER > 1) {
        mbarrier_wait(shared_address(&arrived), 0);  // every warp of the rows has sent its pairs here; then nobody writes here any more
    } else {
        __syncthreads();  // every warp's pairs are there before any reads them
    }
    for (int row = 0; row < rows; ++row) {
        const float shift = shift_of(reduce_slots<SLOTS>(maxima[row], Larger{}));
        float sum = 0.0f;
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot += 32) {
            if (slot + lane < SLOTS) sum += sums[row][slot + lane] * exponential(maxima[row][slot + lane] - shift);
        }
        const float factor = 1.0f / reduce_lanes<32>(sum, Add{});
#pragma unroll 2
        for (int pack_of_row = threadIdx.x; pack_of_row < mine; pack_of_row += LANES) {
            float e[VEC];
            unpack(e, held[row * share + pack_of_row]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) e[k] = exponential(e[k] - shift) * factor;
            write<0>(y + row * stride_y + pack_of_row * VEC, pack<element, VEC>(e));
        }
    }
}
