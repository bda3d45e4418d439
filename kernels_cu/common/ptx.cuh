// Instructions that CUDA C++ has no name for, one a function.
#pragma once

// Start copying BYTES (4, 8 or 16) from global to shared memory past the registers; where `inside` is false nothing is
// read and zeros are written.  Both addresses are multiples of BYTES.  Only 16 bytes can go past L1 (.cg).
template <int BYTES>
__device__ __forceinline__ void cp_async(float* shared, const float* global, bool inside) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const int read = inside ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(read) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(read) : "memory");
}

// Close a group: the copies this thread has started since the last group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most PENDING of this thread's newest groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
