// Loads and stores of V floats (1, 2 or 4) that say how caches shall treat them, one instruction a function.  The compiler neither drops,
// joins nor repeats them.  PTX ISA, "Cache Operators".
#pragma once

// From L2 on, past L1.
template <int V>
__device__ __forceinline__ void load_past_l1(float (&v)[V], const float* from) {
    if constexpr (V == 1) asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v[0]) : "l"(from));
    if constexpr (V == 2) asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "l"(from));
    if constexpr (V == 4)
        asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "l"(from));
}

// Read once: the first to be evicted.
template <int V>
__device__ __forceinline__ void load_once(float (&v)[V], const float* from) {
    if constexpr (V == 1) asm volatile("ld.global.cs.f32 %0, [%1];" : "=f"(v[0]) : "l"(from));
    if constexpr (V == 2) asm volatile("ld.global.cs.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "l"(from));
    if constexpr (V == 4)
        asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "l"(from));
}

// Not read again soon: the first to be evicted.
template <int V>
__device__ __forceinline__ void store_once(float* to, const float (&v)[V]) {
    if constexpr (V == 1) asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(to), "f"(v[0]) : "memory");
    if constexpr (V == 2) asm volatile("st.global.cs.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(v[0]), "f"(v[1]) : "memory");
    if constexpr (V == 4)
        asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
