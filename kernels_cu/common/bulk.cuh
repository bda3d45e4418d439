// Copies of contiguous bytes by the copy engine (sm_90), one instruction a function.  PTX ISA, "cp.async.bulk".
#pragma once

// One thread starts copying `bytes` (a multiple of 16, as both addresses are) from global to shared memory; they count at the mbarrier.
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
