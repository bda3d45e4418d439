// The type of C for each type of A and B: the same for 16 bits, the float32 sums themselves for tf32, bf16 for fp8; and how sums get there.
#pragma once

#include "types.cuh"

#if DTYPE_TF32
using output = float;
#elif DTYPE_F16
using output = f16;
#else
using output = bf16;
#endif

#if !DTYPE_TF32
// Two neighbours of C in one register.
__device__ __forceinline__ unsigned pack_two(float first, float second) { return pack(first, second, output{}); }
#endif

// Transpose 4 x 4 words among four neighbouring lanes: lane i's word j becomes lane j's word i.
__device__ __forceinline__ void turn_four(unsigned (&w)[4], int lane) {
    const auto swap = [&](unsigned& low, unsigned& high, int distance) {
        const unsigned other = __shfl_xor_sync(~0u, lane & distance ? low : high, distance);
        if (lane & distance) low = other;
        else high = other;
    };
    swap(w[0], w[1], 1), swap(w[2], w[3], 1);
    swap(w[0], w[2], 2), swap(w[1], w[3], 2);
}

// A warp writes 16 rows of C from (row, col) on, as far as they lie inside; `sums` as wgmma leaves them: four a lane for each of GROUPS
// groups of 8 columns. Memory takes sectors of 32 bytes whole: four lanes hold that of a row in float32, but half of it in 16 bits, and
// there they turn four groups among them, so that each writes 16 bytes of one.
template <int GROUPS>
__device__ __forceinline__ void store_rows(output* C, int row, int col, int M, int N, const float* sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int m = row + 8 * half + lane / 4;
#if DTYPE_TF32
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int n = col + 8 * g + lane % 4 * 2;
            if (n < N && m < M) store<2>(C + static_cast<size_t>(m) * N + n, sums + 4 * g + 2 * half);
        }
#else
#pragma unroll
        for (int first = 0; first < GROUPS; first += 4) {
            unsigned w[4] = {};
#pragma unroll
            for (int g = first; g < GROUPS && g < first + 4; ++g)
                w[g - first] = pack_two(sums[4 * g + 2 * half], sums[4 * g + 2 * half + 1]);
            turn_four(w, lane);
            const int own = first + lane % 4, n = col + 8 * own;
            if (own < GROUPS && n < N && m < M)
                *reinterpret_cast<uint4*>(C + static_cast<size_t>(m) * N + n) = make_uint4(w[0], w[1], w[2], w[3]);
        }
#endif
    }
}
