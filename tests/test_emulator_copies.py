"""Who may touch what asynchronous copies read, and what asynchronous reductions add to: judged by order, in whichever order they come."""

import numpy as np
import pytest
import toy

from cudalab.emulator import Emulator, KernelFault
from hopper import BOTH, PRELUDE, run, words

READS = r"which the asynchronous unit issued at \S+:\d+.* is still to read: wait for it first|" \
        r"races with the asynchronous copy issued at \S+:\d+.*: wait for the phase of its mbarrier first"
WRITES = READS.replace("still to read", "still to write")


def judged(fault, *args, **more):
    """Run a kernel; fault: what must be said, None: nothing."""
    if fault is None:
        return run(*args, **more)
    with pytest.raises(KernelFault, match=fault):
        run(*args, **more)


# -- what a copy into shared memory reads

LOADS = """
    __shared__ __align__(128) u32 x[3][32]; __shared__ u64 b[3];
    if (t == 0) { for (int i = 0; i < 3; i++) init(&b[i], 1); fence_init(); }
    __syncthreads();
    if (t == 0) for (int i = 0; i < copies; i++) { expect(&b[i], 128); bulk_load(x[i], out, 128, &b[i]); }
"""
PLAIN, ATOMIC = "out[t] = 7;", "atomicAdd(&out[t], 1);"
FOUR = "__shared__ __align__(16) u32 y[4]; if (t == 0) { y[0] = y[1] = y[2] = y[3] = 1; fence_async(); }"
STORED = FOUR + "if (t == 0) { bulk_store(out, y, 16); bulk_commit(); bulk_wait<0>(); }"


@BOTH
@pytest.mark.parametrize("write", [PLAIN, ATOMIC, STORED], ids=["plain", "atomic", "bulk"])
@pytest.mark.parametrize("copies, before, fault", [
    (1, "wait(&b[0], 0);", None),
    (1, "if (t == 0) wait(&b[0], 0); __syncwarp();", None),
    (1, "if (t == 0) wait(&b[0], 0); __syncthreads();", None),
    (1, "", READS),
    (1, "if (t > 3) wait(&b[0], 0);", READS),
    (2, "wait(&b[0], 0); wait(&b[1], 0);", None),
    (2, "wait(&b[0], 0);", READS),
    (2, "wait(&b[1], 0);", READS),
    (3, "wait(&b[2], 0); wait(&b[0], 0); wait(&b[1], 0);", None),
    (3, "wait(&b[1], 0); wait(&b[2], 0);", READS),
    (3, "wait(&b[0], 0); wait(&b[2], 0);", READS)])
def test_a_write_where_a_copy_reads(copies, before, fault, write, delivery):
    """It needs the wait for the mbarrier of every copy, and no more than that."""
    judged(fault, LOADS + before + write + "for (int i = 0; i < copies; i++) wait(&b[i], 0);", 1, 32, words(), np.int32(copies),
           parameters="u32* out, int copies", delivery=delivery)


@BOTH
@pytest.mark.parametrize("order, fault", [("cluster_sync();", None), ("cluster_arrive_relaxed(); cluster_wait();", READS)])
def test_a_write_by_another_block(order, fault, delivery):
    judged(fault, LOADS.replace("if (t == 0) for", "if (rank() == 0 && t == 0) for") + "if (rank() == 0) wait(&b[0], 0);" + order
           + "if (rank() == 1) out[t] = 7;", 2, 32, words(), np.int32(1), parameters="u32* out, int copies", cluster=2, delivery=delivery)


@BOTH
def test_a_write_where_a_multicast_reads(delivery):
    """One block's mbarrier says nothing of the copy into the others; a barrier of the cluster after all waits does."""
    body = """
    __shared__ __align__(16) u32 x[4]; __shared__ u64 b;
    if (t == 0) { init(&b, 1); fence_init(); expect(&b, 16); }
    cluster_sync();
    if (rank() == 1 && t == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 16, [%2], 15;"
                     :: "r"(shared(x)), "l"(out), "r"(shared(&b)) : "memory");
    wait(&b, 0);
    """
    write = "if (rank() == 3 && t == 0) out[1] = 2;"
    judged(None, body + "cluster_sync();" + write, 4, 32, words(), cluster=4, delivery=delivery)
    judged(READS, body + write + "cluster_sync();", 4, 32, words(), cluster=4, delivery=delivery)


@BOTH
def test_a_write_by_a_block_of_a_later_chunk(delivery):
    """Blocks that never run together, so that in the emulator the copy is over long before."""
    judged(READS, LOADS.replace("if (t == 0) for", "if (blockIdx.x == 0 && t == 0) for") + "if (blockIdx.x == 0) wait(&b[0], 0);"
           "if (blockIdx.x == gridDim.x - 1) out[t] = 7;", 1200, 32, words(), np.int32(1), parameters="u32* out, int copies",
           delivery=delivery)


@BOTH
def test_launches_follow_each_other(delivery, tmp_path):
    """What copies of a launch have read, or added to, the next one may write."""
    begin = 'extern "C" __global__ void %s(const float* A, float* C, int N) {\n int t = threadIdx.x; if (blockIdx.x) return;\n'
    text = PRELUDE + begin % "fill" + "C[t] = A[t]; }\n" + begin % "load" + LOADS.replace("copies", "1").replace("out", "C") \
        + "wait(&b[0], 0); }\n" + begin % "add" + REDUCES.replace('"l"(out)', '"l"(C)') + "}\n"
    plan = toy.plan(tmp_path, text, entries=("fill", "load", "fill", "add", "fill"), block=32)
    Emulator(sanitize=True, delivery=delivery).run(plan, dict(A=np.arange(1000, dtype=np.float32)))


@BOTH
@pytest.mark.parametrize("before, fault", [
    ("if (t == 0) bulk_wait_read<0>(); __syncwarp();", None),
    ("if (t == 0) { bulk_wait_read<0>(); bulk_wait<0>(); } __syncwarp();", None),
    ("if (t == 0) bulk_wait_read<1>(); __syncwarp();", READS),
    ("if (t == 0) bulk_wait_read<0>();", "race on"),
    ("", READS)])
def test_a_write_where_a_bulk_group_reads(before, fault, delivery):
    """Two copies of one lane read the place: the wait for the first is not enough."""
    stores = "if (t == 0) { bulk_store(out, y, 16); bulk_commit(); bulk_store(out + 4, y, 16); bulk_commit(); }"
    body = FOUR + "__syncwarp();" + stores + before + "if (t == 1) y[0] = 3; if (t == 0) bulk_wait<0>();"
    judged(fault, body, 1, 32, words(), delivery=delivery)


# -- what a copy from one block of a cluster to another reads

SENDS = """
    __shared__ __align__(16) u32 x[32], own[32]; __shared__ u64 b, told;
    x[t] = own[t] = t;
    fence_async();
    if (t == 0) { init(&b, 1); init(&told, 1); fence_init(); if (rank() == 1) expect(&b, 128); }
    cluster_sync();
    if (rank() == 0 && t == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                     :: "r"(mapa(shared(x), 1)), "r"(shared(own)), "r"(mapa(shared(&b), 1)) : "memory");
"""
ARRIVED = "if (rank() == 1) { wait(&b, 0); if (t == 0) arrive_at(&told, 0); } else wait(&told, 0);"
OWN = "if (rank() == 0) own[t] = 7;"
FAR = 'if (rank() == 1) asm volatile("st.shared::cluster.u32 [%0], 7;" :: "r"(mapa(shared(&own[t]), 0)));'


@BOTH
@pytest.mark.parametrize("write, before, fault", [
    (OWN, "if (rank() == 1) wait(&b, 0); cluster_sync();", None),
    (OWN, ARRIVED, None),
    (FAR, "if (rank() == 1) wait(&b, 0);", None),
    (OWN, "", READS),
    (OWN, "cluster_sync();", READS),
    (OWN, "if (rank() == 1) wait(&b, 0); cluster_arrive_relaxed(); cluster_wait();", READS),
    (OWN, ARRIVED.replace("wait(&b, 0); if (t == 0) arrive_at(&told, 0);", "if (t == 0) arrive_at(&told, 0); wait(&b, 0);"), READS),
    (FAR, "", READS)])
def test_a_write_where_a_copy_to_another_block_reads(write, before, fault, delivery):
    """Who has waited for the mbarrier may write, and whom he told in order."""
    judged(fault, SENDS + before + write + "if (rank() == 1) wait(&b, 0); cluster_sync();", 2, 32, words(), cluster=2, delivery=delivery)


# -- what asynchronous reductions add to

ADDS = """
    __shared__ __align__(16) u32 x[4]; __shared__ u64 b[2];
    if (t < 4) x[t] = 0;
    if (t == 0) { init(&b[0], 1); init(&b[1], 1); fence_init(); if (rank() == 1) { expect(&b[0], %d); expect(&b[1], %d); } }
    cluster_sync();
    const u32 there = mapa(shared(x), 1), first = mapa(shared(&b[0]), 1), second = mapa(shared(&b[1]), 1);
"""
FROM_0, ONE = "if (rank() == 0 && t == 0) ", "if (t == 0) "
END = "if (rank() == 1) { wait(&b[0], 0); wait(&b[1], 0); } cluster_sync();"
SUM = "if (rank() == 1 && t == 9) out[0] = x[0];"


def red(operation="add.u32", barrier="first", at="there"):
    return (f'asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation} [%0], 5, [%1];"'
            f' :: "r"({at}), "r"({barrier}) : "memory");')


STORE = red().replace("red.async.relaxed.cluster", "st.async").replace("add.", "")
WRITE = 'asm volatile("st.shared::cluster.u32 [%0], 7;" :: "r"(there) : "memory");'


@BOTH
@pytest.mark.parametrize("adds, first, second, total", [
    (FROM_0 + "{" + red() + red() + "}", 8, 0, 10),
    (ONE + red(), 8, 0, 10),
    ("if (rank() == 0) " + red(), 128, 0, 160),
    ("if (rank() == 0) {" + red() + red(barrier="second") + "}", 128, 128, 320),
    (FROM_0 + "{" + red("max.u32") + red("max.u32") + "}", 8, 0, 5),
    (FROM_0 + "{" + red() + red(at="there + 4") + red(at="there + 4") + "}", 12, 0, 5)],
    ids=["lane", "blocks", "lanes", "barriers", "max", "words"])
def test_reductions_of_one_kind_may_meet(adds, first, second, total, delivery):
    body = ADDS % (first, second) + adds
    wait = "if (rank() == 1) { wait(&b[0], 0); wait(&b[1], 0); }"
    assert run(body + wait + SUM + END, 2, 32, words(), cluster=2, delivery=delivery)[0][0] == total
    # what comes after must know of each of them
    judged(WRITES, body + SUM + END, 2, 32, words(), cluster=2, delivery=delivery)
    judged(WRITES, body + SUM.replace("out[0] = x[0]", "x[0] = 3") + END, 2, 32, words(), cluster=2, delivery=delivery)
    judged(WRITES, body + SUM.replace("out[0] = x[0]", "atomicAdd(&x[0], 3)") + END, 2, 32, words(), cluster=2, delivery=delivery)
    if second:
        for one in "01":
            judged(WRITES, body + f"if (rank() == 1) wait(&b[{one}], 0);" + SUM + END, 2, 32, words(), cluster=2, delivery=delivery)


@BOTH
@pytest.mark.parametrize("one, two", [(red(), red("max.u32")), (red(), STORE), (STORE, red()), (red(), WRITE), (STORE, STORE)],
                         ids=["kinds", "red-st", "st-red", "red-write", "st-st"])
def test_reductions_and_other_writes_may_not(one, two, delivery):
    size = 4 * (one + two).count(".async")
    judged(WRITES, ADDS % (size, 0) + FROM_0 + "{" + one + two + "}" + END, 2, 32, words(), cluster=2, delivery=delivery)


@BOTH
def test_a_reduction_after_an_unordered_write(delivery):
    """That another reduction came after it in order does not help."""
    body = ADDS % (8, 0) + "if (rank() == 0 && t == 1) " + WRITE
    judged("race on", body + "if (rank() == 0 && t == 2) " + red() + END, 2, 32, words(), cluster=2, delivery=delivery)
    judged("race on", body + "if (rank() == 0 && t == 1) " + red() + "if (rank() == 0 && t == 2) " + red() + END, 2, 32, words(), cluster=2,
           delivery=delivery)


@BOTH
@pytest.mark.parametrize("use", [SUM, SUM.replace("out[0] = x[0]", "x[0] = 3"), SUM.replace("out[0] = x[0]", "atomicAdd(&x[0], 3)")],
                         ids=["read", "write", "atomic"])
def test_who_knows_of_a_reduction_knows_what_came_before(use, delivery):
    body = ADDS % (4, 0) + "if (rank() == 0 && t == 1) " + WRITE + "__syncwarp();" + FROM_0 + red()
    run(body + "if (rank() == 1) wait(&b[0], 0);" + use + END, 2, 32, words(), cluster=2, delivery=delivery)


REDUCES = FOUR + """
    __syncthreads();
    if (t == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 16;" :: "l"(out), "r"(shared(y)) : "memory");
        bulk_commit(); bulk_wait<0>();
    }
"""


@BOTH
def test_bulk_reductions_of_blocks_may_meet(delivery):
    assert run(REDUCES, 1200, 32, words(), delivery=delivery)[0][:4].tolist() == [1200] * 4
    judged("race on", REDUCES + "if (t == 0 && blockIdx.x == 1) out[1] = 3;", 2, 32, words(), delivery=delivery)
    judged("race on", REDUCES + REDUCES.replace(FOUR, "").replace("add", "max"), 2, 32, words(), delivery=delivery)
