// Two float32 sums rounded to two 16-bit elements of C in one register, the first in the low half.
#pragma once

#include "operands.cuh"

template <class T>
__device__ __forceinline__ unsigned pack(float first, float second) {
    unsigned both;
    if constexpr (is_f16<T>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
