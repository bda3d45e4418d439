// The shared memory of a cluster's blocks.  PTX ISA, "Cooperative thread arrays and clusters", "barrier.cluster", "mapa".
#pragma once

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Write to where `shared` would be in the block of that rank.
__device__ __forceinline__ void store_remote(float* shared, unsigned rank, float value) {
    const unsigned here = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}
__device__ __forceinline__ void store_remote(unsigned long long* shared, unsigned rank, unsigned long long value) {
    const unsigned here = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(there), "l"(value) : "memory");
}

// The two halves of a barrier of all threads of the cluster's blocks: what they wrote before they arrive is seen by all after the wait.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
