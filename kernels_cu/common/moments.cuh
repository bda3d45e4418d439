// Mean and squared deviation of a set of numbers, and how those of two sets join.
#pragma once

// squares: the sum of squared deviations from the mean.
struct Moments {
    float count, mean, squares;
};

// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances".
__device__ __forceinline__ Moments join(Moments a, Moments b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float distance = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}

// Join the moments of all lanes of the warp; each gets the result.  Lanes take what they join in the same order, the lower first, so that
// all results are the same to the last bit.
__device__ __forceinline__ Moments join_lanes(Moments own) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const Moments other{__shfl_xor_sync(0xffffffffu, own.count, distance), __shfl_xor_sync(0xffffffffu, own.mean, distance),
                            __shfl_xor_sync(0xffffffffu, own.squares, distance)};
        const bool upper = threadIdx.x & distance;
        own = join(upper ? other : own, upper ? own : other);
    }
    return own;
}
