// Barriers in shared memory (mbarriers) and named barriers, one instruction a function.  PTX ISA, "mbarrier" and "bar".
//
// An mbarrier counts arrivals and bytes; its phases are numbered from 0, and a wait names the parity of the phase it waits for.
// Addresses are those of shared_address().
#pragma once

// Make a barrier whose phases end after `count` arrivals.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Make what mbarrier_init wrote visible to the blocks of the cluster and to TMA.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrive, and let this phase wait for `bytes` more from TMA.
__device__ __forceinline__ void mbarrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive when all that this thread has started to copy (cp.async) has landed.  The barrier's count has a place for it.
__device__ __forceinline__ void mbarrier_arrive_after_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrive at the barrier of the same address in the block of rank `block` of this cluster.
__device__ __forceinline__ void mbarrier_arrive_at(unsigned barrier, unsigned block) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(block) : "memory");
}

// Wait for the end of the phase of this parity.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\n"
                 "over:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// Whether the phase of this parity has ended.
__device__ __forceinline__ bool mbarrier_test(unsigned barrier, unsigned parity) {
    unsigned ended;
    asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
                 : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
    return ended;
}

// Wait where blocks of the cluster arrive: what they did before is visible after.
__device__ __forceinline__ void mbarrier_wait_cluster(unsigned barrier, unsigned parity) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@done bra over;\n"
                 "bra again;\nover:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// Wait at a named barrier (1 to 15; 0 is that of __syncthreads) until `threads` threads, whole warps, have come or arrived.
__device__ __forceinline__ void named_barrier_wait(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Arrive at a named barrier without waiting.
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
