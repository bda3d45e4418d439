// Instructions that CUDA C++ has no name for, one a function.
#pragma once

// The 32-bit address that instructions on shared memory take.
__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Start copying BYTES (4, 8 or 16) from global to shared memory past the registers.  Both addresses are multiples of
// BYTES.  Only 16 bytes can go past L1 (.cg).
template <int BYTES>
__device__ __forceinline__ void cp_async(unsigned shared, const void* global) {
    if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(BYTES) : "memory");
}

// The same; where `inside` is false nothing is read and zeros are written.
template <int BYTES>
__device__ __forceinline__ void cp_async(unsigned shared, const void* global, bool inside) {
    const int read = inside ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(read) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(BYTES), "r"(read) : "memory");
}

// Read 16 bytes of shared memory into four registers.
__device__ __forceinline__ void load_shared(float* registers, unsigned shared) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(registers[0]), "=f"(registers[1]), "=f"(registers[2]), "=f"(registers[3]) : "r"(shared));
}

// Read a float that an earlier launch may have written: never moved to before a wait, as a plain load of constant memory could be.
__device__ __forceinline__ float load_global(const float* global) {
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(global) : "memory");
    return value;
}

// Write 8 bytes to shared memory.
__device__ __forceinline__ void store_shared(unsigned shared, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(a), "f"(b) : "memory");
}

// Write 16 bytes to shared memory.
__device__ __forceinline__ void store_shared(unsigned shared, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// sum += a * b, in the register that holds sum: to the compiler `always` might be 0, and then the old sum must be there.
__device__ __forceinline__ void multiply_add_in_place(float& sum, float a, float b, int always) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p fma.rn.f32 %0, %1, %2, %0; }"
                 : "+f"(sum) : "f"(a), "f"(b), "r"(always));
}

// Close a group: the copies this thread has started since the last group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most PENDING of this thread's newest groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Write 8 bytes that other blocks may look at meanwhile: they see all of them or none.
__device__ __forceinline__ void store_relaxed(unsigned long long* global, unsigned long long value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(global), "l"(value) : "memory");
}
