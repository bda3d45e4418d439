"""Clusters on the emulator: where blocks are, distributed shared memory, multicast, the cluster's barrier; and small things of sm_90."""

import numpy as np
import pytest

from cudalab.emulator import Emulator, KernelFault, PtxError
from cudalab.errors import BadLaunch
from emulated import compile_cuda
from hopper import BOTH, PRELUDE, run, words

RNG = np.random.default_rng(2)


def test_blocks_of_a_cluster_know_where_they_are():
    out, = run("""
    u32 v[8];
    asm("mov.u32 %0, %%clusterid.x; mov.u32 %1, %%clusterid.y; mov.u32 %2, %%cluster_ctaid.x; mov.u32 %3, %%cluster_ctaid.y; "
        "mov.u32 %4, %%cluster_ctarank; mov.u32 %5, %%cluster_nctarank; mov.u32 %6, %%nclusterid.x; mov.u32 %7, %%cluster_nctaid.y;"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]));
    for (int i = 0; i < 8; i++) out[(blockIdx.y * 6 + blockIdx.x) * 8 + i] = v[i];""", (6, 4), 1, words(192), cluster=(3, 2))
    for y, x in np.ndindex(4, 6):
        assert out[(y * 6 + x) * 8:][:8].tolist() == [x // 3, y // 2, x % 3, y % 2, x % 3 + 3 * (y % 2), 6, 2, 2]


@pytest.mark.parametrize("lanes", [16384, 64])
@pytest.mark.parametrize("cluster", [(4, 1, 1), (2, 2, 1), (1, 4, 1)])
def test_distributed_shared_memory(cluster, lanes):
    """Sums over a cluster: remote loads, stores and atomics, by cluster and by generic addresses; blocks of a cluster in one chunk."""
    text = PRELUDE + """extern "C" __global__ void k(u32* out, const u32* in) {
    __shared__ u32 own, sum, box[4];
    int t = threadIdx.x, block = blockIdx.y * gridDim.x + blockIdx.x;
    if (t == 0) { own = in[block]; sum = 0; }
    cluster_sync();
    if (t < 4) {
        u32 there; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(there) : "r"(mapa(shared(&own), t)));
        asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" :: "r"(mapa(shared(&sum), t)), "r"(there) : "memory");
        u64 far; asm("mapa.u64 %0, %1, %2;" : "=l"(far) : "l"(&box[rank()]), "r"(t));
        *(volatile u32*)far = own + 100 * t;
        u32 who; asm("getctarank.u64 %0, %1;" : "=r"(who) : "l"(far));
        u32 own_block; asm("{.reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(own_block) : "l"(far));
        if (who != t || own_block != (rank() == t)) out[0] = 0xdead;
    }
    cluster_sync();
    if (t == 0) { out[block * 5] = sum; for (int i = 0; i < 4; i++) out[block * 5 + 1 + i] = box[i]; }
}"""
    values = np.arange(1, 33).astype("u4")
    out, _ = Emulator(lanes=lanes, sanitize=True).run_ptx(compile_cuda(text), "k", (4, 8), 32, (words(160), values), cluster=cluster)
    out = out.reshape(32, 5)
    for y, x in np.ndindex(8, 4):
        first = [x // cluster[0] * cluster[0], y // cluster[1] * cluster[1]]
        members = [int(values[(first[1] + j) * 4 + first[0] + i]) for j in range(cluster[1]) for i in range(cluster[0])]
        own = (x - first[0]) + cluster[0] * (y - first[1])
        # every thread t adds block t's value to block t's sum: once a block
        assert out[y * 4 + x].tolist() == [4 * members[own], *(m + 100 * own for m in members)]


@BOTH
def test_stores_that_arrive_at_a_remote_barrier(delivery):
    out, = run("""
    __shared__ u64 b; __shared__ __align__(16) u32 box[8]; __shared__ u32 total;
    if (t == 0) { init(&b, 1); total = 1; expect(&b, 16 + 8 + 4 + 4); fence_init(); }
    cluster_sync();
    if (t == 0) {
        u32 other = rank() ^ 1, to = mapa(shared(box), other), at = mapa(shared(&b), other);
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %1, %1, %2}, [%3];"
                     :: "r"(to), "r"(rank() + 5), "r"(9), "r"(at) : "memory");
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];"
                     :: "r"(to + 16), "l"(0x100000002ull), "r"(at) : "memory");
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                     :: "r"(to + 24), "f"(1.5f), "r"(at) : "memory");
        asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
                     :: "r"(mapa(shared(&total), other)), "r"(41), "r"(at) : "memory");
    }
    wait(&b, 0);
    if (t < 7) out[blockIdx.x * 8 + t] = box[t];
    if (t == 7) out[blockIdx.x * 8 + 7] = total;
    cluster_sync();""", 2, 32, words(16), cluster=2, delivery=delivery)
    for block in range(2):
        who = 5 + (block ^ 1)
        assert out[block * 8:][:8].tolist() == [who, who, who, 9, 2, 1, 0x3FC00000, 42]


@BOTH
def test_a_copy_to_several_blocks_and_one_between_blocks(delivery):
    source = RNG.integers(0, 1 << 30, (4, 32)).astype("u4")
    _, out = run("""
    __shared__ __align__(128) u32 tile[64], other[64]; __shared__ u64 b, c;
    tile[t] = 0; fence_async();
    if (t == 0) { init(&b, 1); init(&c, 1); fence_init(); expect(&b, 256); expect(&c, 128); }
    cluster_sync();
    if (t == 0 && rank() % 2 == 0)  // blocks 0 and 2 each send a half to blocks 0, 1 and 3
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, [%2], %3;"
            :: "r"(shared(tile + 16 * rank())), "l"(in + 32 * rank()), "r"(shared(&b)), "h"((u16)0xB) : "memory");
    if (rank() != 2) wait(&b, 0);
    cluster_sync();
    if (t == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
            :: "r"(mapa(shared(other), (rank() + 1) % 4)), "r"(shared(tile)), "r"(mapa(shared(&c), (rank() + 1) % 4)) : "memory");
    wait(&c, 0);
    out[blockIdx.x * 64 + t] = tile[t]; out[blockIdx.x * 64 + 32 + t] = other[t];
    cluster_sync();""", 4, 32, source, words(256), parameters="const u32* in, u32* out", cluster=4, delivery=delivery)
    out = out.reshape(4, 2, 32)
    for block in (0, 1, 3):
        assert (out[block, 0] == source[0]).all()
        assert block == 3 or (out[(block + 1) % 4, 1] == source[0]).all()


@pytest.mark.parametrize("body, cluster, message", [
    ("cluster_arrive(); cluster_arrive();", 2, "arrives at the cluster's barrier twice"),
    ("cluster_wait();", 2, "waits for the cluster's barrier without having arrived"),
    ('asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(out[0]) : "r"(mapa(shared(&x), 2)));', 2, "read of 4 bytes at shared address "
                                                                                                    "16777216.*"),
    ('asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(out[0]) : "r"(mapa(shared(&x), rank() ^ 1)));', 2, "out of bounds"),
    ("cluster_sync(); if (rank()) { for (int i = 0; i < 4000; i++) __nanosleep(1);"
     'u32 v; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(mapa(shared(&x), 0))); out[0] = v; }', 2,
     "read of 4 bytes at shared address 0 of a block of the cluster that has ended"),
    ("if (rank() == 0) cluster_sync(); else { __shared__ u64 b; init(&b, 1); wait(&b, 0); }", 2,
     "waits for the other threads of the cluster at its barrier"),
    ('__shared__ u64 b; asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], 1, [%1];"'
     ' :: "r"(mapa(shared(&x), 0)), "r"(mapa(shared(&b), 0)));', None, "in a launch without clusters, an illegal instruction"),
])
def test_wrong_uses_of_a_cluster(body, cluster, message):
    with pytest.raises(KernelFault, match=message):
        run("__shared__ u32 x; x = 1;" + body, 2, 1, words(), cluster=cluster)


def test_a_cluster_that_the_kernel_asks_for():
    text = PRELUDE + 'extern "C" __global__ void __cluster_dims__(2, 1, 1) k(u32* out) { out[blockIdx.x] = rank(); }'
    assert Emulator().run_ptx(compile_cuda(text), "k", 4, 1, (words(4),))[0].tolist() == [0, 1, 0, 1]
    with pytest.raises(BadLaunch, match="do not divide the grid"):
        Emulator().run_ptx(compile_cuda(text), "k", 3, 1, (words(4),))
    with pytest.raises(BadLaunch, match="compiled for clusters of"):
        Emulator().run_ptx(compile_cuda(text), "k", 4, 1, (words(4),), cluster=4)


def test_threads_that_end_do_not_hold_the_cluster_up():
    out, = run("if (t >= 32 && rank() == 1) return; cluster_sync(); out[blockIdx.x * 64 + t] = 1;", 2, 64, words(128), cluster=2)
    assert out.sum() == 96


# -- small things


def test_elect_and_what_changes_no_value():
    out, = run("""
    u32 leader, chosen;
    asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %1, 1, 0, p;}" : "=r"(leader), "=r"(chosen));
    out[t] = leader + 100 * chosen;
    if (t % 32 >= 5) {
        asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffe0; selp.u32 %1, 1, 0, p;}" : "=r"(leader), "=r"(chosen));
        out[t] += 1000 * leader + 100000 * chosen;
    }
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    asm volatile("fence.proxy.async;\\nfence.proxy.async.global;\\nfence.proxy.alias;\\nfence.acq_rel.cluster;\\nfence.sc.cluster;");
    asm volatile("griddepcontrol.wait;\\ngriddepcontrol.launch_dependents;\\nnanosleep.u32 20;");""", 1, 128, words(128))
    lane = np.arange(128) % 32
    assert (out == (lane == 0) * 100 + (lane >= 5) * 5000 + (lane == 5) * 100000).all()


def test_setmaxnreg_needs_a_warpgroup():
    with pytest.raises(KernelFault, match="not all of its 128 threads"):
        run('asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");', 1, 64, words())
    ptx = compile_cuda(PRELUDE + 'extern "C" __global__ void k() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }')
    with pytest.raises(PtxError, match="registers that is not one of"):
        Emulator().run_ptx(ptx.replace("u32 24", "u32 20"), "k", 1, 128, ())
