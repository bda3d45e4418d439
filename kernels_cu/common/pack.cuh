// Two float32 sums rounded to two 16-bit elements of C in one register, the first in the low half.
#pragma once

#include "operands.cuh"

// The type of C for the dtype of A and B: float32 for tf32, else 16 bits (bf16 for fp8).
template <int BYTES> struct Output { using type = unsigned short; };
template <> struct Output<4> { using type = float; };
using output = Output<Operand::bytes>::type;

template <class T>
__device__ __forceinline__ unsigned pack(float first, float second) {
    unsigned both;
    if constexpr (is_f16<T>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
