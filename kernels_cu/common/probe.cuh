// What measuring kernels need and CUDA C++ has no name for: counters of the machine, and loads that the compiler neither drops,
// joins nor moves past each other.  One instruction a function.
#pragma once

// Cycles of this multiprocessor.
__device__ __forceinline__ long long cycle_count() {
    long long cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
    return cycles;
}

// The number of the multiprocessor that runs this block.
__device__ __forceinline__ int multiprocessor() {
    int number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

// Nothing behind it is issued before `value` is in its register: the branch that is never taken needs it.  No address is all ones.
__device__ __forceinline__ void await(unsigned long long value) {
    asm volatile("{ .reg .pred p; setp.eq.u64 p, %0, 0xffffffffffffffff; @p trap; }" ::"l"(value) : "memory");
}
__device__ __forceinline__ void await(unsigned value) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0xffffffff; @p trap; }" ::"r"(value) : "memory");
}

// One word from where `address` points: through L1 (From 0), or from L2 on (1).
template <int From>
__device__ __forceinline__ unsigned long long load_word(unsigned long long address) {
    unsigned long long word;
    if constexpr (From == 0) asm volatile("ld.global.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
    else asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
    return word;
}

// One word of shared memory, of the constant bank.
__device__ __forceinline__ unsigned load_shared_word(unsigned address) {
    unsigned word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}
__device__ __forceinline__ unsigned load_constant_word(unsigned long long address) {
    unsigned word;
    asm volatile("ld.const.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    return word;
}

// One, two or four floats of shared memory.  Volatile in PTX, too: without it ptxas moves a load that is the same in every round out of
// the loop, however volatile the asm is.
template <int Floats>
__device__ __forceinline__ void load_shared_floats(float* registers, unsigned address) {
    if constexpr (Floats == 1) asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(registers[0]) : "r"(address));
    else if constexpr (Floats == 2)
        asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(registers[0]), "=f"(registers[1]) : "r"(address));
    else asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                      : "=f"(registers[0]), "=f"(registers[1]), "=f"(registers[2]), "=f"(registers[3]) : "r"(address));
}

// 16 bytes of global memory.  From 0: through L1; 1: from L2 on; 2: read once, first to be evicted; 3: past L1, L2 fetches 256 bytes.
template <int From>
__device__ __forceinline__ float4 load_vector(const float4* p) {
    float4 v;
    if constexpr (From == 0)
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    if constexpr (From == 1)
        asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    if constexpr (From == 2)
        asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    if constexpr (From == 3)
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
