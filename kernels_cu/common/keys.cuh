// Floats as integers that sort the same way, so that a maximum and its place travel in one 64-bit number.
#pragma once

#include "reduce.cuh"

// Larger floats have larger keys; NaN has the largest, as NumPy's argmax has it.  No key is 0.  x: not -0.
__device__ __forceinline__ unsigned key_of(float x) {
    const unsigned bits = __float_as_uint(x);
    const unsigned key = bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
    return x != x ? 0xffffffffu : key;
}

// The key above, the place below, turned round: of equal keys the lowest place makes the largest number.
__device__ __forceinline__ unsigned long long placed(unsigned key, unsigned place) {
    return static_cast<unsigned long long>(key) << 32 | (0xffffffffu - place);
}

// The best of the elements that a thread has taken, from left to right; it may take them again.  The first that is better than all before
// it changes the bits of their maximum: -0 is taken as +0, and every NaN becomes the same one.
struct Best {
    int place;  // that of the first, should all be -infinity
    float value = minus_infinity();

    __device__ __forceinline__ void take(float element, int at) {
        const float larger = LargerOrNan{}(value, element + 0.0f);
        if (__float_as_uint(larger) != __float_as_uint(value)) place = at;
        value = larger;
    }
    __device__ __forceinline__ unsigned long long key() const { return placed(key_of(value), place); }
};

// The largest of a warp's, by its integer reductions: first the key, then the place of those who have it.
__device__ __forceinline__ unsigned long long largest_of_warp(unsigned long long own) {
    const unsigned key = static_cast<unsigned>(own >> 32), largest = __reduce_max_sync(0xffffffffu, key);
    return static_cast<unsigned long long>(largest) << 32
           | __reduce_max_sync(0xffffffffu, key == largest ? static_cast<unsigned>(own) : 0u);
}

__device__ __forceinline__ long long place_of(unsigned long long placed) { return 0xffffffffu - static_cast<unsigned>(placed); }
