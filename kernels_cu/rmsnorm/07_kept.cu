// Kept: clusters stay, and weights with them in registers; rows are claimed, not shared out.
//
// Before: every row brought its weights from L2 again, and blocks that came and went began each row by waiting for it.
// Now: a cluster takes row after row, always the same columns of each, whose weights its threads keep.  Which row is next its first block
// asks of a counter that all clusters share, for some get more of the memory than others: of equal shares, as `pipelined` has them, the
// last end late.  A warp of its own brings rows as far ahead as shared memory has room; the others add up the squares of a row before they
// wait for the sums of the one before, so that nobody waits for the exchange.
// A cluster of CLUSTER blocks owns the rows that it claims; block `rank` has an equal share of their packs, thread t of it VECS of them,
// t, t + LANES, ….  A row has a stage in every block: its number, the packs, and the sums of all the cluster's warps.
// A stage takes another row when all blocks have told each other that theirs is read.
// Limited now by: memory, one read and one write.

#include "bulk.cuh"
#include "distributed.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER;

static_assert(LANES % 32 == 0 && LANES <= 992, "LANES is a number of whole warps, at most 992");
static_assert(CLUSTER >= 2 && CLUSTER <= 16, "CLUSTER: blocks that send to each other, at most 16");
static_assert(STAGES >= 2, "STAGES: the row that is written and the next, at least");

extern "C" __global__ void __launch_bounds__(LANES + 32, 1)
    rmsnorm(const element* x, const element* w, element* y, unsigned* claimed, int M, int N, long long stride_x, long long stride_y,
            float eps) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ unsigned long long numbers[STAGES];
    __shared__ float sums[STAGES][SLOTS];
    __shared__ unsigned long long read_here[STAGES], read_out[STAGES], named[STAGES], full[STAGES], arrived[STAGES];  // barriers
    const int rank = cluster_rank(), t = threadIdx.x, warp = __shfl_sync(~0u, t / 32, 0), lane = t % 32;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    x += rank * share * VEC, y += rank * share * VEC, w += rank * share * VEC;

    if (t == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(shared_address(read_here + stage), WARPS);
            mbarrier_init(shared_address(read_out + stage), CLUSTER);
            expect_values(&named[stage], sizeof(numbers[stage]));
            mbarrier_init(shared_address(full + stage), 1);
            expect_values(&arrived[stage], sizeof(sums[stage]));
        }
        fence_mbarrier_init();
    }
    cluster_arrive(), cluster_wait();  // the barriers are ready, in every block of the cluster

    int stage = 0, round = 0;  // of the row that comes next, and how often the stage has been used, modulo 2
    const auto advance = [&] {
        if (++stage == STAGES) stage = 0, round ^= 1;
    };
    if (warp == WARPS) {
        if (lane == 0) {
            const unsigned clusters = gridDim.x / CLUSTER;
            unsigned next = rank == 0 ? atomicAdd(claimed, 1) : 0;  // asked for a row ahead: its way is not added to the stage's
            bool used = false;  // whether a row had the stage before
            for (unsigned row = 0; row < M; advance(), used |= stage == 0) {
                if (used) {
                    mbarrier_wait(shared_address(read_here + stage), round ^ 1);
                    for (int block = 0; block < CLUSTER; ++block) mbarrier_arrive_at(shared_address(read_out + stage), block);
                    mbarrier_wait_cluster(shared_address(read_out + stage), round ^ 1);
                }
                if (rank == 0) {
                    for (int block = 0; block < CLUSTER; ++block) send(&numbers[stage], block, next, &named[stage]);
                    if (next == M + clusters - 1) atomicExch(claimed, 0);  // nobody claims any more
                    if (next < M) next = atomicAdd(claimed, 1);
                }
                mbarrier_wait_cluster(shared_address(named + stage), round);
                row = numbers[stage];
                mbarrier_expect(shared_address(named + stage), sizeof(numbers[stage]));
                const unsigned bytes = row < M ? mine * 16 : 0;
                mbarrier_expect(shared_address(full + stage), bytes);
                if (bytes > 0)
                    bulk_load(shared_address(room) + stage * share * 16, x + row * stride_x, bytes, shared_address(full + stage));
            }
        }
        __syncwarp();  // the warp goes to the cluster's barrier as one
    } else {
        const int slot = rank * WARPS + warp;
        const float of_row = 1.0f / N;
        Pack<element, VEC> weights[VECS], held[VECS];
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            const int place = v * LANES + t;
            if (place < mine) weights[v] = read<0, VEC>(w + place * VEC);
        }
        const auto load = [&](int from) {
            const Pack<element, VEC>* there = reinterpret_cast<const Pack<element, VEC>*>(room) + from * share;
#pragma unroll
            for (int v = 0; v < VECS; ++v) held[v] = v * LANES + t < mine ? there[v * LANES + t] : zeros<VEC>();
        };

        // The warp's sum of the next row's squares goes to every block.  Returns which row that is, M or more if there is none.
        const auto tell = [&] {
            mbarrier_wait(shared_address(full + stage), round);
            const int row = numbers[stage];
            if (row >= M) return row;
            load(stage);
            float sum = 0.0f;
#pragma unroll
            for (int v = 0; v < VECS; ++v) {
                float e[VEC];
                unpack(e, held[v]);
#pragma unroll
                for (int k = 0; k < VEC; ++k) sum += e[k] * e[k];
            }
            sum = reduce_lanes<32>(sum, Add{});
            if (lane < CLUSTER) send(&sums[stage][slot], lane, sum, &arrived[stage]);
            return row;
        };
        for (int row = tell(); row < M;) {
            const int current = stage, landed = round;
            advance();
            const int next = tell();
            mbarrier_wait_cluster(shared_address(arrived + current), landed);  // every warp's sum of this row is here
            if (t == 0) mbarrier_expect(shared_address(arrived + current), sizeof(sums[current]));
            const float factor = rsqrtf(reduce_slots<SLOTS>(sums[current], Add{}) * of_row + eps);
            load(current);
            __syncwarp();  // every lane has read the stage
            if (lane == 0) mbarrier_arrive(shared_address(read_here + current));
            element* const to = y + row * stride_y;
#pragma unroll
            for (int v = 0; v < VECS; ++v) {
                if (v * LANES + t < mine) {
                    float e[VEC], f[VEC];
                    unpack(e, held[v]);
                    unpack(f, weights[v]);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) e[k] *= factor * f[k];
                    write<0>(to + (v * LANES + t) * VEC, pack<element, VEC>(e));
                }
            }
            forget(weights);
            row = next;
        }
    }
    cluster_arrive(), cluster_wait();  // no block ends while another still waits for what is sent
}
