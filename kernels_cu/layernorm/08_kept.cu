// Kept: clusters stay, and weights and biases with them in registers.
//
// Before: every row brought its weights and biases from L2 again, three reads there for one of memory: all that L2 gives.
// Now: a cluster takes row after row, always the same columns of each, whose weights and biases its threads keep.  Which row is next its
// first block asks of a counter that all clusters share, for some get more of the memory than others: of equal shares the last would end
// late.  A warp of its own brings rows as far ahead as shared memory has room; the others take the moments of a row before they wait for
// those of the one before, so that nobody waits for the exchange.
// A cluster of CLUSTER blocks owns the rows that it claims; block `rank` has an equal share of their packs, thread t of it VECS of them,
// t, t + LANES, ….  A row has a stage in every block: its number, the packs, and the moments of all the cluster's warps.
// A stage takes another row when all blocks have told each other that theirs is read.
// Limited now by: memory, one read and one write.

#include "bulk.cuh"
#include "distributed.cuh"
#include "mbarrier.cuh"
#include "reduce.cuh"
#include "stream.cuh"

constexpr int WARPS = LANES / 32, SLOTS = WARPS * CLUSTER, ROUNDS = (SLOTS + 31) / 32;

static_assert(LANES % 32 == 0 && LANES <= 992 && CLUSTER <= 16, "LANES is a number of whole warps, at most 992; CLUSTER at most 16");
static_assert(STAGES >= 2, "STAGES: the row that is written and the next, at least");

// How many columns a warp of the cluster has: of each round of LANES packs 32, and what the last round leaves it.
__device__ __forceinline__ int columns_of(int slot, int packs, int share) {
    const int rank = slot / WARPS, warp = slot % WARPS, theirs = min(max(packs - rank * share, 0), share);
    return (theirs / LANES * 32 + min(max(theirs % LANES - warp * 32, 0), 32)) * VEC;
}

// Words for a block of the cluster, and the mbarrier of which a phase ends when `count` of them are there.  A block that is alone stores
// and arrives, for only in a cluster can a block send.
__device__ __forceinline__ void expect_words(unsigned long long* barrier, int count) {
    if constexpr (CLUSTER > 1) expect_values(barrier, count * sizeof(*barrier));
    else mbarrier_init(shared_address(barrier), count);
}
__device__ __forceinline__ void expect_more_words(unsigned long long* barrier, int count) {
    if constexpr (CLUSTER > 1) mbarrier_expect(shared_address(barrier), count * sizeof(*barrier));
}
__device__ __forceinline__ void send_word(unsigned long long* shared, int rank, unsigned long long word, unsigned long long* barrier) {
    if constexpr (CLUSTER > 1) send(shared, rank, word, barrier);
    else *shared = word, mbarrier_arrive(shared_address(barrier));
}

struct Moments {
    float mean, square;  // square: of the distances from the mean, added up
};

extern "C" __global__ void __launch_bounds__(LANES + 32, 1)
    layernorm(const element* x, const element* w, const element* b, element* y, unsigned* claimed, int M, int N, long long stride_x,
              long long stride_y, float eps) {
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ unsigned long long numbers[STAGES], moments[STAGES][SLOTS];
    __shared__ unsigned long long read_here[STAGES], read_out[STAGES], named[STAGES], full[STAGES], arrived[STAGES];  // barriers
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, t = threadIdx.x, warp = __shfl_sync(~0u, t / 32, 0), lane = t % 32;
    const int packs = N / VEC, share = (packs + CLUSTER - 1) / CLUSTER, mine = min(max(packs - rank * share, 0), share);
    x += rank * share * VEC, y += rank * share * VEC, w += rank * share * VEC, b += rank * share * VEC;

    if (t == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(shared_address(read_here + stage), WARPS);
            mbarrier_init(shared_address(read_out + stage), CLUSTER);
            expect_words(&named[stage], 1);
            mbarrier_init(shared_address(full + stage), 1);
            expect_words(&arrived[stage], SLOTS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();  // the barriers are ready
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();  // in every block of the cluster

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
                    if constexpr (CLUSTER > 1) {
                        for (int block = 0; block < CLUSTER; ++block) mbarrier_arrive_at(shared_address(read_out + stage), block);
                        mbarrier_wait_cluster(shared_address(read_out + stage), round ^ 1);
                    }
                }
                if (rank == 0) {
                    for (int block = 0; block < CLUSTER; ++block) send_word(&numbers[stage], block, next, &named[stage]);
                    if (next == M + clusters - 1) atomicExch(claimed, 0);  // nobody claims any more
                    if (next < M) next = atomicAdd(claimed, 1);
                }
                mbarrier_wait_cluster(shared_address(named + stage), round);
                row = numbers[stage];
                expect_more_words(&named[stage], 1);
                const unsigned bytes = row < M ? mine * 16 : 0;
                mbarrier_expect(shared_address(full + stage), bytes);
                if (bytes > 0)
                    bulk_load(shared_address(room) + stage * share * 16, x + row * stride_x, bytes, shared_address(full + stage));
            }
        }
        __syncwarp();  // the warp goes to the cluster's barrier as one
    } else {
        const int slot = rank * WARPS + warp;
        Pack<element, VEC> weights[VECS], biases[VECS], held[VECS] = {};
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            const int pack = v * LANES + t;
            if (pack < mine) weights[v] = read<0, VEC>(w + pack * VEC), biases[v] = read<0, VEC>(b + pack * VEC);
        }
        const float of_own = 1.0f / max(columns_of(slot, packs, share), 1), of_row = 1.0f / N;  // reciprocals
        const float count = max((mine - t + LANES - 1) / LANES, 0) * VEC, inverse = 1.0f / fmaxf(count, 1.0f);
        float columns[ROUNDS];
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) columns[r] = 32 * r + lane < SLOTS ? columns_of(32 * r + lane, packs, share) : 0;
        const auto load = [&](int from) {
            const Pack<element, VEC>* there = reinterpret_cast<const Pack<element, VEC>*>(room) + from * share;
#pragma unroll
            for (int v = 0; mine > 0 && v < VECS; ++v) held[v] = there[min(v * LANES + t, mine - 1)];  // past the end: not used
        };

        // The warp's moments of the next row go to every block.  Returns which row that is, M or more if there is none.
        const auto tell = [&] {
            mbarrier_wait(shared_address(full + stage), round);
            const int row = numbers[stage];
            if (row >= M) return row;
            load(stage);
            // in one pass, from a pivot: see the step before
            float pivot = 0.0f, sum = 0.0f, square = 0.0f, e[VEC];
            unpack(e, held[0]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) pivot += e[k] * (1.0f / VEC);
#pragma unroll
            for (int v = 0; v < VECS; ++v) {
                if (v * LANES + t < mine) {
                    unpack(e, held[v]);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) {
                        const float distance = e[k] - pivot;
                        sum += distance, square += distance * distance;
                    }
                }
            }
            const float above = sum * inverse, mean = reduce_lanes<32>(count * (pivot + above), Add{}) * of_own,
                        from_mean = pivot + above - mean;
            square = square < -minus_infinity() ? fmaxf(square - above * sum, 0.0f) : square;
            square = reduce_lanes<32>(square + count * from_mean * from_mean, Add{});
            if (lane < CLUSTER) {
                const unsigned long long both = static_cast<unsigned long long>(__float_as_uint(square)) << 32 | __float_as_uint(mean);
                send_word(&moments[stage][slot], lane, both, &arrived[stage]);
            }
            return row;
        };
        for (int row = tell(); row < M;) {
            const int current = stage, landed = round;
            advance();
            const int next = tell();
            mbarrier_wait_cluster(shared_address(arrived + current), landed);  // every warp's moments of this row are here
            if (t == 0) expect_more_words(&arrived[current], SLOTS);
            Moments theirs[ROUNDS];
            float sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                const unsigned long long both = 32 * r + lane < SLOTS ? moments[current][32 * r + lane] : 0;
                theirs[r] = {__uint_as_float(both), __uint_as_float(both >> 32)};
                sum += columns[r] * theirs[r].mean;
            }
            const float middle = reduce_lanes<32>(sum, Add{}) * of_row;
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                const float distance = theirs[r].mean - middle;
                square += theirs[r].square + columns[r] * distance * distance;
            }
            const float factor = rsqrtf(reduce_lanes<32>(square, Add{}) * of_row + eps), shift = -middle * factor;
            load(current);
            __syncwarp();  // every lane has read the stage
            if (lane == 0) mbarrier_arrive(shared_address(read_here + current));
            element* const to = y + row * stride_y;
#pragma unroll
            for (int v = 0; v < VECS; ++v) {
                if (v * LANES + t < mine) {
                    float e[VEC], f[VEC], g[VEC];
                    unpack(e, held[v]);
                    unpack(f, weights[v]);
                    unpack(g, biases[v]);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) e[k] = fmaf(fmaf(e[k], factor, shift), f[k], g[k]);
                    write<0>(to + (v * LANES + t) * VEC, pack<element, VEC>(e));
                }
            }
            forget(weights), forget(biases);
            row = next;
        }
    }
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();  // no block ends while another still waits for what is sent
}
