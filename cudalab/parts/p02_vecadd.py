"""Part 2: the programming model.  One vector add, from one element a thread to what the memory allows, and studies of what a launch is."""

from cudalab.expressions import cdiv
from cudalab.spec import Launch, Op, shapes
from cudalab.studies import vecadd_roofs
from cudalab.studies.vecadd import STUDIES

TITLE = "the programming model, by adding two vectors"
DIMS = ("N",)
THREADS = (32, 64, 128, 192, 256, 384, 512, 768, 1024)
GRIDS = (0, 132, 264, 528, 1056, 2112)  # of an H200's 132 multiprocessors, one to sixteen blocks each; 0: a block a tile


def _sum(name: str, title: str, peers: tuple[str, ...], bench: str) -> Op:
    """C = A + B as an op."""
    return Op(
        name, title=title, dims=DIMS,
        inputs=dict(A="N", B="N"),
        outputs=dict(C="N"),
        reference=lambda A, B: A + B,
        scale=lambda A, B: abs(A) + abs(B),
        depth=lambda p: 1,
        flops=lambda p: p.N,
        bytes=lambda p: 12 * p.N,
        samples=(dict(A=0, B=0, C=0),),
        peers=peers,
        shapes=dict(
            emulate=shapes("5003 1", DIMS),
            check=shapes("1 3 33 1000 4096 65537 1000003 2097152 16777219", DIMS),
            bench=shapes(bench, DIMS),
        ),
    )


vecadd = _sum("vecadd", "C = A + B, two vectors in FP32", ("cupy_add",), "268435456 67108864 16777216 1048576 268435455")
residency = _sum("residency", "C = A + B with fewer blocks a multiprocessor", (), "134217728")


def small_integers(tensor, problem, kind, rng):
    """A path of thirty-two for every element, and a few rounds."""
    largest = dict(path=31, rounds=8).get(tensor.name)
    return None if largest is None else rng.integers(0, largest + 1, tensor.shape, dtype="int32")


paths = Op(
    "paths", title="y = x after rounds of the path each element says", dims=DIMS,
    inputs=dict(x="N", path="i32: N", rounds="i32: 1"),
    outputs=dict(y="N"),
    reference=lambda x, path, rounds: x + rounds * (path + 1),  # a round adds one more than the path's number
    scale=lambda x, path, rounds: abs(x) + rounds * (path + 1),
    depth=lambda p: 1,
    flops=lambda p: p.N,
    bytes=lambda p: 12 * p.N + 4,
    samples=(dict(x=0, path=0, y=0),),
    peers=(),
    shapes=dict(emulate=shapes("1000 1", DIMS), check=shapes("1 33 4099", DIMS), bench=shapes("4194304", DIMS)),
    draw=small_integers,
)

ops = (vecadd, residency, paths)
studies = (*STUDIES, vecadd_roofs.STUDY)


@vecadd.step(1, THREADS=32)
def one_element(p, c):
    yield Launch("vecadd", grid=cdiv(p.N, c.THREADS), block=c.THREADS, args="A B C N")


@vecadd.step(2, THREADS=256, tune=dict(THREADS=THREADS))
def block_size(p, c):
    yield Launch("vecadd", grid=cdiv(p.N, c.THREADS), block=c.THREADS, args="A B C N")


def some_blocks(p, c, elements):
    """Blocks of a launch whose blocks take `elements` at a time: GRID of them, no more than there is work for; GRID=0: as many as that."""
    needed = max(1, cdiv(p.N, elements))
    return min(c.GRID or needed, needed)


@vecadd.step(3, THREADS=256, GRID=1056, tune=dict(THREADS=THREADS[2:], GRID=GRIDS[1:]))
def grid_stride(p, c):
    yield Launch("vecadd", grid=some_blocks(p, c, c.THREADS), block=c.THREADS, args="A B C N")


@vecadd.step(4, THREADS=256, LOADS=4, GRID=1056, zero=("GRID",), tune=dict(THREADS=THREADS[2:7], LOADS=(2, 4, 8), GRID=GRIDS))
def loads_in_flight(p, c):
    yield Launch("vecadd", grid=some_blocks(p, c, c.LOADS * c.THREADS), block=c.THREADS, args="A B C N")


@vecadd.step(5, THREADS=256, LOADS=2, VEC=4, GRID=1056, zero=("GRID",),
             tune=dict(THREADS=THREADS[2:7], LOADS=(1, 2, 4, 8), VEC=(2, 4), GRID=GRIDS))
def vectors(p, c):
    yield Launch("vecadd", grid=some_blocks(p, c, c.VEC * c.LOADS * c.THREADS), block=c.THREADS, args="A B C N")


# EVICT_FIRST: whether the sums are the first to leave L2
@vecadd.step(6, THREADS=1024, EVICT_FIRST=1, zero=("EVICT_FIRST",), tune=dict(THREADS=THREADS[2:], EVICT_FIRST=(0, 1)))
def one_pass(p, c):
    yield Launch("vecadd", grid=max(1, cdiv(p.N, 4 * c.THREADS)), block=c.THREADS, args="A B C N")


# REGS: values that a path which no launch takes holds at once; SMEM: bytes of dynamic shared memory that nobody touches
@residency.step(1, THREADS=256, LOADS=1, REGS=0, SMEM=0, zero=("REGS", "SMEM"))
def held_back(p, c):
    yield Launch("residency", grid=cdiv(p.N, c.LOADS * c.THREADS), block=c.THREADS, smem=c.SMEM, args="A B C N")


# SMEM: bytes of dynamic shared memory that nobody touches, to say how many blocks fit
@paths.step(1, THREADS=128, SMEM=0, zero=("SMEM",))
def one_loop_a_path(p, c):
    yield Launch("paths", grid=cdiv(p.N, c.THREADS), block=c.THREADS, smem=c.SMEM, args="x path rounds y N")
