// Blocks of a cluster and the launch they belong to (sm_90), one instruction a function.
#pragma once

// This block's number in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Arrive at the cluster's barrier: all of a warp's lanes together.  What this thread wrote is visible to who waits.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

// Arrive to say that this block runs and has set up its mbarriers, and no more: unlike the above it does not wait until what this thread
// wrote is seen by the whole device.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

// Wait until all threads of the cluster have arrived.
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address of what lies at `shared` here, in the block of rank `block`.
__device__ __forceinline__ unsigned cluster_address(unsigned shared, unsigned block) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(block));
    return there;
}

// Start writing 16 bytes into the shared memory of a block of the cluster; they count at that block's mbarrier (both addresses there).
__device__ __forceinline__ void store_cluster_async(unsigned there, float a, float b, float c, float d, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(there), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}

// The launch behind this one may start as soon as all blocks have said so or ended; it waits itself for what it needs.  Before sm_90
// a launch starts when the one before it has ended, so there is nothing to say and nothing to wait for.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Wait until the launch before this one has ended and what it wrote is visible.
__device__ __forceinline__ void wait_for_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
