// The type of C for each type of A and B: the same for 16 bits, the float32 sums themselves for tf32, bf16 for fp8.
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
