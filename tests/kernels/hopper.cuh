// Hopper's instructions, one a function, for the emulator's tests.
typedef unsigned u32; typedef unsigned long long u64; typedef unsigned short u16; typedef unsigned char u8;
struct alignas(64) Map { u8 opaque[128]; };
#define DEV __device__ __forceinline__

DEV u32 shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEV u32 mapa(u32 a, u32 r) { u32 m; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(r)); return m; }
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEV void cluster_sync() { cluster_arrive(); cluster_wait(); }

DEV void init(u64* b, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared(b)), "r"(n) : "memory"); }
DEV void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory"); }
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void expect(u64* b, u32 n) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared(b)), "r"(n) : "memory");
}
DEV u64 arrive(u64* b) {
    u64 s;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(s) : "r"(shared(b)) : "memory");
    return s;
}
DEV void arrive_at(u64* b, u32 r) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(shared(b), r)) : "memory");
}
DEV u32 test(u64* b, u64 s) {
    u32 d;
    asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(d) : "r"(shared(b)), "l"(s) : "memory");
    return d;
}
DEV u32 test_parity(u64* b, u32 p) {
    u32 d;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(d) : "r"(shared(b)), "r"(p) : "memory");
    return d;
}
DEV void wait(u64* b, u32 parity) {
    asm volatile("{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra W;\nD:\n}"
                 :: "r"(shared(b)), "r"(parity) : "memory");
}

DEV void load_1d(void* to, const Map* m, u64* b, int x) {
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];"
                 :: "r"(shared(to)), "l"(m), "r"(shared(b)), "r"(x) : "memory");
}
DEV void load_2d(void* to, const Map* m, u64* b, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 :: "r"(shared(to)), "l"(m), "r"(shared(b)), "r"(x), "r"(y) : "memory");
}
DEV void load_2d_all(void* to, const Map* m, u64* b, int x, int y, u16 blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(shared(to)), "l"(m), "r"(shared(b)), "r"(x), "r"(y), "h"(blocks) : "memory");
}
DEV void load_3d(void* to, const Map* m, u64* b, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(shared(to)), "l"(m), "r"(shared(b)), "r"(x), "r"(y), "r"(z) : "memory");
}
DEV void store_2d(const Map* m, void* from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 :: "l"(m), "r"(shared(from)), "r"(x), "r"(y) : "memory");
}
DEV void bulk_load(void* to, const void* from, u32 n, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared(to)), "l"(from), "r"(n), "r"(shared(b)) : "memory");
}
DEV void bulk_store(void* to, const void* from, u32 n) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(shared(from)), "r"(n) : "memory");
}
DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEV void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" :: "n"(N) : "memory"); }
template <int N> DEV void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory"); }

DEV void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
DEV u64 descriptor(u32 at, u32 leading, u32 stride, u32 swizzle) {  // swizzle: 0 none, 1 128, 2 64, 3 32 bytes
    return (u64)((at & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)swizzle << 62;
}
