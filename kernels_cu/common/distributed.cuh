// Values sent to the other blocks of a cluster (sm_90).
#pragma once

#include "cluster.cuh"
#include "ptx.cuh"

// Write to where `shared` would be in the block of that rank.
__device__ __forceinline__ void store_remote(float* shared, unsigned rank, float value) {
    const unsigned there = cluster_address(shared_address(shared), rank);
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}
__device__ __forceinline__ void store_remote(unsigned long long* shared, unsigned rank, unsigned long long value) {
    const unsigned there = cluster_address(shared_address(shared), rank);
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(there), "l"(value) : "memory");
}
