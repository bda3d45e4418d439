// What the variant asks for: how values join, and what becomes of the joined value.
#pragma once

#include "reduce.cuh"

#if VARIANT_MAX_LAST || VARIANT_MAX_FIRST
using Operation = LargerOrNan;
#else
using Operation = Add;
#endif

__device__ __forceinline__ float finish(float joined, int count) {
#if VARIANT_MEAN_LAST || VARIANT_MEAN_FIRST
    return joined / count;
#else
    return joined;
#endif
}
