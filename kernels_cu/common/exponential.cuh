// The exponential function, as one multiplication and one instruction of the special function unit.
#pragma once

#include "types.cuh"

// e^x: exact to a few units in the last place near 0, to 2 |x| of them elsewhere; results below the smallest normal number are 0.
__device__ __forceinline__ float exponential(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.4426950408889634f));
    return power;
}

// What to take off before the exponential of numbers of which `largest` is the largest: that, unless it is -infinity (there are none, or
// all are), where taking it off would make NaN of what adds nothing.
__device__ __forceinline__ float shift_of(float largest) { return largest == minus_infinity() ? 0.0f : largest; }
