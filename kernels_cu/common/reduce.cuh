// Reductions over the lanes of a warp, and what they join with.
#pragma once

#include "types.cuh"

struct Add {
    static __device__ __forceinline__ float neutral() { return 0.0f; }
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// The larger of two numbers; NaN beside a number is ignored.
struct Larger {
    static __device__ __forceinline__ float neutral() { return minus_infinity(); }
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The larger of two, NaN if one is NaN: what NumPy's max does.
struct LargerOrNan {
    static __device__ __forceinline__ float neutral() { return minus_infinity(); }
    __device__ __forceinline__ float operator()(float a, float b) const {
        float c;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
        return c;
    }
};

// The larger of two keys (see keys.cuh).
struct LargerKey {
    static __device__ __forceinline__ unsigned long long neutral() { return 0; }
    __device__ __forceinline__ unsigned long long operator()(unsigned long long a, unsigned long long b) const { return a > b ? a : b; }
};

// Join the values of Lanes neighbouring lanes (a power of 2, at most 32); all of them get the result, the same to the last bit.
template <int Lanes, typename Join, typename Value>
__device__ __forceinline__ Value reduce_lanes(Value value, Join join) {
    static_assert(Lanes >= 1 && Lanes <= 32 && (Lanes & (Lanes - 1)) == 0, "the lanes that join are a power of 2, at most a warp");
#pragma unroll
    for (int distance = Lanes / 2; distance > 0; distance /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

// Join Count values that lie in shared memory; every lane of the warp gets the result, and every warp the same one.
template <int Count, typename Join, typename Value>
__device__ __forceinline__ Value reduce_slots(const Value* slots, Join join) {
    constexpr int Lanes = Count >= 32 ? 32 : Count > 16 ? 32 : Count > 8 ? 16 : Count > 4 ? 8 : Count > 2 ? 4 : Count > 1 ? 2 : 1;
    const int lane = threadIdx.x % Lanes;
    Value value = Join::neutral();
#pragma unroll
    for (int first = 0; first < Count; first += Lanes) {
        if (Count % Lanes == 0 || first + lane < Count) value = join(value, slots[first + lane]);
    }
    return reduce_lanes<Lanes>(value, join);
}
