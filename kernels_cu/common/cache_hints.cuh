// Loads and stores that tell the caches what to keep: 16 bytes a lane, the address a multiple of 16.  PTX ISA, "Cache Operators" and "Cache
// Eviction Priority Hints".
#pragma once

// WAY 0: as any load of what nobody writes.  1: first to be evicted, in L1 and L2.  2: no copy in L1.  3: no copy in L1, and L2
// fetches the 256 bytes around it.
template <int WAY>
__device__ __forceinline__ float4 load_hinted(const float4* memory) {
    float4 v;
    if constexpr (WAY == 0)
        asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(memory));
    else if constexpr (WAY == 1)
        asm("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(memory));
    else if constexpr (WAY == 2)
        asm("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
            : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(memory));
    else
        asm("ld.global.nc.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];"
            : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(memory));
    return v;
}

// WAY 0: as any store.  1: first to be evicted.  2: no copy in L1.
template <int WAY>
__device__ __forceinline__ void store_hinted(float4* memory, float4 v) {
    if constexpr (WAY == 0)
        asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(memory), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
    else if constexpr (WAY == 1)
        asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(memory), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
    else
        asm volatile("st.global.L1::no_allocate.v4.f32 [%0], {%1, %2, %3, %4};"
                     ::"l"(memory), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
