"""Part 8: RMSNorm over rows of any length."""

from cudalab.dtypes import itemsize
from cudalab.errors import BadConfig
from cudalab.expressions import cdiv
from cudalab.parts import rows
from cudalab.spec import Launch, Op, f32, state

TITLE = "summing across threads: RMSNorm"
EPS = 1e-6  # as PyTorch's users take it


def reference(x, w):
    return x / ((x * x).mean(1, keepdims=True) + EPS) ** 0.5 * w


rmsnorm = Op(
    "rmsnorm",
    title="y = x over the root of the mean of its squares, times w, for each row",
    dims=rows.DIMS,
    dtypes=rows.DTYPES,
    inputs=dict(x="M, N", w="N"),
    outputs=dict(y="M, N"),
    reference=reference,
    scale=lambda x, w: abs(reference(x, w)) + 2.0**-100,  # what comes from subnormal numbers has lost digits before
    depth=rows.added_in_order,
    flops=lambda p: 4 * p.M * p.N,
    bytes=lambda p: rows.moved(p) + itemsize(p.dtype) * p.N,
    kinds=("normal",),
    samples=(dict(x=0, y=0),),
    peers=("copy",),
    shapes=rows.SHAPES,
)

ops = (rmsnorm,)


def early(p, c):
    """Weights are fetched beside the row where registers hold both."""
    return int(c.VECS <= 5)


def lanes(p, c):
    """Threads of a row: with some to spare in middling rows, if they are many or fewest; else about four packs each."""
    return rows.lanes_to_spare(p, c) if rows.middling(p, c) and (rows.fewest(p, c) or not rows.few(p, c)) else rows.lanes_of_pairs(p, c)


def early_in_block(p, c):
    """The same, but late for many middling rows, in the time that other blocks' loads take."""
    return int(early(p, c) and (rows.few(p, c) or not rows.middling(p, c)))


def arguments(p, *own):
    """Of a launch; own: tensors of the step itself."""
    return "x", "w", "y", *own, "M", "N", *rows.packed(p), f32(EPS)


@rmsnorm.step(1, THREADS=256)
def two_passes(p, c):
    yield Launch("rmsnorm", grid=p.M, block=c.THREADS, args=arguments(p))


@rmsnorm.step(2, **rows.IN_REGISTERS | dict(LANES=lanes), EARLY=early_in_block,
              tune=rows.TUNE_REGISTERS | dict(EARLY=(0, 1)), zero=("EARLY", "HINT"))
def registers(p, c):
    rows.check_held(p, c)
    yield Launch("rmsnorm", grid=cdiv(p.M, c.ROWS), block=c.LANES * c.ROWS, args=arguments(p), early=True)


@rmsnorm.step(3, **rows.IN_SHARED, tune=rows.TUNE_SHARED, zero=("HINT",))
def shared(p, c):
    rows.check_width(p, c)
    rows.check_shared(p)
    yield Launch("rmsnorm", grid=p.M, block=c.THREADS, smem=cdiv(p.N * itemsize(p.dtype), 16) * 16, args=arguments(p))


@rmsnorm.step(4, min_sm=90, **rows.ACROSS, EARLY=early, tune=rows.TUNE_ACROSS | dict(EARLY=(0, 1)), zero=("EARLY", "HINT"))
def cluster(p, c):
    rows.check_held(p, c)
    yield Launch("rmsnorm", grid=p.M * c.CLUSTER, block=c.LANES, cluster=(c.CLUSTER, 1, 1), args=arguments(p))


@rmsnorm.step(5, min_sm=90, **rows.PIPELINED, KEEP=lambda p, c: int(c.VECS <= 5), tune=rows.TUNE_PIPELINED | dict(KEEP=(0, 1)),
              zero=("HINT", "KEEP"))
def pipelined(p, c):
    rows.check_pipelined(p, c)
    cluster = (c.CLUSTER, 1, 1) if c.CLUSTER > 1 else None
    yield Launch("rmsnorm", grid=rows.clusters(p, c) * c.CLUSTER, block=c.LANES, smem=rows.room(p, c), cluster=cluster, args=arguments(p))


@rmsnorm.step(6, min_sm=90, **rows.IN_BULK, LOADS=4, tune=rows.TUNE_BULK | dict(LOADS=(1, 2, 4)))
def bulk(p, c):
    yield rows.bulk_launch(p, c, "rmsnorm", arguments(p))


def blocks_of_kept(p, c):
    """Blocks of the cluster, two at least: a block that is alone keeps its weights in `pipelined`."""
    return max(2, rows.blocks_of_bulk(p, c))


@rmsnorm.step(7, min_sm=90, **rows.IN_KEPT | dict(CLUSTER=blocks_of_kept), tune=rows.TUNE_KEPT | dict(CLUSTER=(2, 4, 8, 16)))
def kept(p, c):
    if c.CLUSTER < 2:
        raise BadConfig(f"CLUSTER={c.CLUSTER}: blocks that send to each other are two at least; `pipelined` takes one")
    yield state("claimed", (1,), "u32")
    yield rows.kept_launch(p, c, "rmsnorm", arguments(p, "claimed"))
