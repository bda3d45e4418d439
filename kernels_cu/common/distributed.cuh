// Values for the other blocks of a cluster (sm_90), written or sent.  PTX ISA, "st" and "st.async".
#pragma once

#include "cluster.cuh"
#include "mbarrier.cuh"
#include "ptx.cuh"

// Write to where `shared` would be in the block of that rank; a barrier of the cluster makes it seen.
__device__ __forceinline__ void store_remote(float* shared, unsigned rank, float value) {
    const unsigned there = cluster_address(shared_address(shared), rank);
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}

// Send to where `shared` would be in the block of that rank; the bytes count at its mbarrier where `barrier` would be, so that nobody waits
// for anything but them.  A barrier of the cluster would first wait until all that a thread has written is seen by the whole device, and
// then throw out what L1 holds.
__device__ __forceinline__ void send(float* shared, unsigned rank, float value, unsigned long long* barrier) {
    const unsigned there = cluster_address(shared_address(shared), rank), counter = cluster_address(shared_address(barrier), rank);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 ::"r"(there), "f"(value), "r"(counter) : "memory");
}
__device__ __forceinline__ void send(unsigned long long* shared, unsigned rank, unsigned long long value, unsigned long long* barrier) {
    const unsigned there = cluster_address(shared_address(shared), rank), counter = cluster_address(shared_address(barrier), rank);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
                 ::"r"(there), "l"(value), "r"(counter) : "memory");
}

// One thread: make the mbarrier at which so many bytes will arrive, once.
__device__ __forceinline__ void expect_values(unsigned long long* barrier, unsigned bytes) {
    mbarrier_init(shared_address(barrier), 1);
    fence_mbarrier_init();
    mbarrier_expect(shared_address(barrier), bytes);
}
