"""How long a block of a cluster must live, and when its mbarriers are there for others: judged by what orders, whoever runs longer."""

import numpy as np
import pytest

from cudalab.check import draw, generator
from cudalab.emulator import Emulator, KernelFault
from cudalab.emulator.sanitizer import EndedBlock, Race
from hopper import BOTH, run, words
from planted import planted

LONGER = "if (rank() == slow) {\n#pragma unroll 1\nfor (int i = 0; i < 600; i++) __nanosleep(1);\n}\n"
BEGIN = """
    __shared__ __align__(16) u32 x[32]; __shared__ __align__(16) u32 own[32]; __shared__ u64 b;
    x[t] = own[t] = t;
    fence_async();
    if (t == 0) { init(&b, 1); fence_init(); }
    cluster_sync();
    const u32 there = mapa(shared(&x[t]), 1), barrier = mapa(shared(&b), 1);
""" + LONGER
ALL = "if (rank() == 0) "
ONE = "if (rank() == 0 && t == 0) "
# what block 0 does in block 1
ACCESSES = dict(
    store=ALL + 'asm volatile("st.shared::cluster.u32 [%0], 7;" :: "r"(there) : "memory");',
    load=ALL + 'asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(out[t]) : "r"(there) : "memory");',
    generic=ALL + '{ u64 far; asm("mapa.u64 %0, %1, 1;" : "=l"(far) : "l"(&x[t])); *(u32*)far = 7; }',
    atomic=ALL + 'asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" :: "r"(there) : "memory");',
    arrival=ONE + "arrive_at(&b, 1);",
    relaxed=ONE + 'asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");',
    expect_tx=ONE + 'asm volatile("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%0], 4;" :: "r"(barrier) : "memory");',
    complete_tx=ONE + 'asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], 4;" :: "r"(barrier) : "memory");')
COPIES = dict(
    st_async=ONE + 'asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {1, 2, 3, 4}, [%1];"'
                   ' :: "r"(there), "r"(barrier) : "memory");',
    red_async='if (rank() == 0 && t < 4) asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 '
              '[%0], 1, [%1];" :: "r"(there), "r"(barrier) : "memory");',
    multicast=ONE + 'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 16, '
                    '[%2], 2;" :: "r"(shared(x)), "l"(out), "r"(shared(&b)) : "memory");',
    between_blocks=ONE + 'asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];"'
                         ' :: "r"(there), "r"(shared(own)), "r"(barrier) : "memory");')
BARRIER = "cluster_sync();"
RELAXED = "cluster_arrive_relaxed(); cluster_wait();"
FENCED = 'asm volatile("fence.acq_rel.cluster;" ::: "memory"); ' + RELAXED
WAITS = "if (rank() == 1 && t == 3) wait(&b, 0);"  # one thread of the block is enough
EXPECTS = "if (rank() == 1 && t == 0) expect(&b, 16);"
SOON = r"end too early: block .*, thread .* uses its shared memory at \S+:\d+.*; a barrier of the cluster, or .* would; block .*"
LANDS = r"end too early: a copy uses its shared memory at \S+:\d+.*; a wait of this block for its mbarrier.* would; block .*"
PENDING = "a block ends while a copy has yet to (write|read) its shared memory; wait for that first"
both_ways = pytest.mark.parametrize("slow", [0, 1])  # the block that runs longer


def program(body: str, slow: int, delivery: str = "lazy"):
    run(body, 2, 32, words(), np.uint32(slow), parameters="u32* out, u32 slow", cluster=2, delivery=delivery)


@both_ways
@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES)
def test_an_access_before_the_end_of_its_block(access, slow):
    """A barrier of the cluster orders it, a relaxed one only behind a fence; without them it is a fault, whoever runs longer."""
    program(BEGIN + access + BARRIER, slow)
    program(BEGIN + access + FENCED, slow)
    for nothing in "", RELAXED, "if (rank() == 0) {%s} else return;" % RELAXED:
        ended = slow == 0 and nothing != RELAXED
        with pytest.raises(KernelFault if ended else EndedBlock, match="has ended" if ended else SOON):
            program(BEGIN + access + nothing, slow)


@both_ways
@BOTH
@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_into_a_block_that_ends(copy, slow, delivery):
    """Only who waits for its mbarrier knows that it has come; a barrier of the cluster is not enough, but for its source's block."""
    program(BEGIN + EXPECTS + copy + WAITS + (BARRIER if copy is COPIES["between_blocks"] else ""), slow, delivery)
    with pytest.raises(KernelFault, match=f"has ended|{PENDING}|{LANDS}"):
        program(BEGIN + EXPECTS + copy, slow, delivery)
    with pytest.raises(KernelFault, match=f"{PENDING}|{LANDS}"):
        program(BEGIN + EXPECTS + copy + BARRIER, slow, delivery)


TELLS = "if (rank() == 1) { wait(&b, 0); if (t == 0) arrive_at(&told, 0); } else wait(&told, 0);"


@both_ways
@BOTH
@pytest.mark.parametrize("order, right", [
    (WAITS + BARRIER, True),
    (TELLS, True),
    (WAITS + FENCED, True),
    (WAITS, False),
    (WAITS + RELAXED, False),
    (BARRIER + WAITS, False),
    (TELLS.replace("wait(&b, 0); if (t == 0) arrive_at(&told, 0);", "if (t == 0) arrive_at(&told, 0); wait(&b, 0);"), False)])
def test_a_copy_out_of_a_block_that_ends(order, right, slow, delivery):
    """The block that it reads has to be told that it has read, however soon it does."""
    body = BEGIN.replace("u64 b;", "u64 b, told; if (t == 0) { init(&told, 1); fence_init(); }")
    body += EXPECTS + COPIES["between_blocks"] + "if (rank() == 0) { %s }" % LONGER + order
    if right:
        program(body, slow, delivery)
    else:
        with pytest.raises(KernelFault, match=f"{PENDING}|{LANDS}"):
            program(body, slow, delivery)


@both_ways
@pytest.mark.parametrize("access, order, fault", [
    ("arrival", WAITS, None),
    ("relaxed", WAITS, None),
    ("store", ACCESSES["arrival"] + WAITS, SOON),  # only that lane's store is ordered
    ("store", "__syncwarp();" + ACCESSES["arrival"] + WAITS, None),
    ("load", "__syncwarp();" + ACCESSES["arrival"] + WAITS, None),
    ("store", "__syncwarp();" + ACCESSES["relaxed"] + WAITS, SOON),
    ("arrival", WAITS.replace("t == 3", "t > 99"), SOON)])
def test_order_by_an_mbarrier(access, order, fault, slow):
    if fault is None:
        program(BEGIN + ACCESSES[access] + order, slow)
    else:
        with pytest.raises(KernelFault, match=fault + "|has ended"):
            program(BEGIN + ACCESSES[access] + order, slow)


@both_ways
@pytest.mark.parametrize("body", [
    BEGIN.replace("cluster_sync();", "cluster_arrive(); " + LONGER + "cluster_wait();") + ACCESSES["store"] + "cluster_arrive();",
    BEGIN.replace("init(&b, 1)", "init(&b, 2)") + 2 * ACCESSES["arrival"] + ACCESSES["store"] + "__syncwarp();" + ACCESSES["arrival"]
    + WAITS], ids=["cluster", "mbarrier"])
def test_who_waits_for_a_phase_does_not_know_of_the_next(body, slow):
    """Although in the run it may have begun long before the wait."""
    with pytest.raises(KernelFault, match=SOON + "|has ended"):
        program(body, slow)


@both_ways
def test_a_block_that_uses_only_its_own_memory_may_end(slow):
    """By whatever instruction and address."""
    program(BEGIN + """
    asm volatile("st.shared::cluster.u32 [%0], 7;" :: "r"(mapa(shared(&x[t]), rank())) : "memory");
    x[t] += 1;
    if (t == 0) arrive_at(&b, rank());""", slow)


MAKES = "__shared__ u64 b; __shared__ __align__(16) u32 x[32];"
MADE = "if (rank() == 1 && t == 0) { %s }\n__syncwarp();"
USES = dict(arrival=ACCESSES["arrival"], relaxed=ACCESSES["relaxed"], complete_tx=ACCESSES["complete_tx"], multicast=COPIES["multicast"])
INIT, FENCE = "init(&b, 1);", 'asm volatile("fence.mbarrier_init.release.cluster;");'
UNORDERED = (r"race on .* this use of an mbarrier and the write by block .1, 0, 0., thread .0, 0, 0. at .*mbarrier.init.* are not ordered; "
             "a barrier of the cluster between them would")


@both_ways
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("made, order, right", [
    (INIT, BARRIER, True),
    (INIT + FENCE, RELAXED, True),
    (INIT, FENCED, True),
    (INIT, RELAXED, False),
    (FENCE + INIT, RELAXED, False),
    (INIT + FENCE, "", False)], ids=["barrier", "init-fence", "fence", "relaxed", "early-fence", "nothing"])
def test_an_mbarrier_is_made_before_others_use_it(use, made, order, right, slow):
    body = MAKES + LONGER + MADE % made + order + "const u32 barrier = mapa(shared(&b), 1);" + use
    if use is USES["multicast"]:
        body += "if (rank() == 1) { if (t == 0) expect(&b, 16); wait(&b, 0); }"
    if right:
        program(body + BARRIER, slow)
    else:
        early = slow == 1 and not order
        with pytest.raises(KernelFault if early else Race, match="used before anybody initialised it" if early else UNORDERED):
            program(body + BARRIER, slow)


def test_a_fence_of_mbarriers_hands_over_nothing_else():
    body = MAKES + MADE % (INIT + "x[0] = 5;" + FENCE) + RELAXED
    with pytest.raises(Race, match="a barrier of the cluster between them would"):
        program(body + "if (rank() == 0) " + 'asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(out[t]) : "r"(mapa(shared(x), 1)));'
                + BARRIER, 1)


# -- the ladders in which blocks share rows; those of tensor cores: test_tcgemm.py

MEETING = "cluster_wait();  // every block of the cluster runs\n"
ROW = f"if (row == 0) {MEETING}"
IN_LOOP = "            cluster_arrive();\n            cluster_wait();  // every warp's"
SENT = "mbarrier_wait(shared_address(&arrived), 0);"
NOT_YET = "this use of an mbarrier and the write by .*mbarrier.init.* are not ordered"
LEFT_OUT = [
    *((f"{op}/cluster", MEETING, "", NOT_YET, dict(CLUSTER=4, LANES=64)) for op in ("softmax", "rmsnorm", "layernorm", "argmax")),
    *((f"{op}/bulk", ROW, "", NOT_YET, dict(CLUSTER=2, LANES=32, ROWS=2)) for op in ("softmax", "rmsnorm", "layernorm")),
    ("layernorm/kept", "cluster_arrive(), cluster_wait();  // in", ";  // in", NOT_YET, dict(CLUSTER=4, LANES=32, STAGES=3, GRID=8)),
    # a block ends without what others send, whose stores may come later
    *((f"{op}/cluster", SENT, "return;", f"{PENDING}|{LANDS}", dict(CLUSTER=4, LANES=64))
      for op in ("softmax", "rmsnorm", "layernorm", "argmax")),
    # a block ends as soon as it has written its part into the others
    *((f"{op}/pipelined", IN_LOOP, f"if (row + clusters >= M) return;\n{IN_LOOP}", SOON, dict(CLUSTER=2, LANES=64, GRID=4, STAGES=2))
      for op in ("softmax", "rmsnorm", "layernorm"))]


@BOTH
@pytest.mark.parametrize("name, old, new, says, tunables", LEFT_OUT, ids=[f"{case[0]}-{number}" for number, case in enumerate(LEFT_OUT)])
def test_a_meeting_of_the_cluster_that_is_left_out(name, old, new, says, tunables, delivery, tmp_path):
    step = planted(name, old, new, tmp_path)
    problem = step.op.problem(dict(M=5, N=1104), "f32")
    plan = step.plan(problem, step.config(problem, tunables))
    with pytest.raises(KernelFault, match=says):
        Emulator(sanitize=True, delivery=delivery).run(plan, draw(step.op, problem, "normal", generator(0)))
