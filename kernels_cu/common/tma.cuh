// Copies of tiles by the tensor memory accelerator (sm_90), one instruction a function.  PTX ISA, "cp.async.bulk.tensor".
//
// One thread starts a copy.  A tile is named by the coordinates of its first element, innermost first; what lies outside the tensor is read
// as zero and never written.  Loads add their bytes to an mbarrier, stores belong to the thread's bulk groups.
#pragma once

// A tensor map: a kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

// Fetch the map itself into the cache.
__device__ __forceinline__ void tma_prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, int x, int y, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// The same into every block of the cluster whose bit is set in `blocks`: to the same place, counted by the same barrier of each.
__device__ __forceinline__ void tma_load_multicast(unsigned to, const TensorMap& map, int x, int y, unsigned barrier,
                                                   unsigned short blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(blocks) : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
}

// Close a group: the stores this thread has started since the last group.
__device__ __forceinline__ void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until at most PENDING of this thread's newest groups still read shared memory.
template <int PENDING>
__device__ __forceinline__ void tma_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
