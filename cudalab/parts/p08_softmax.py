"""Part 8: softmax over rows of any length."""

from cudalab.dtypes import itemsize
from cudalab.expressions import cdiv
from cudalab.parts import rows
from cudalab.spec import Launch, Op
from cudalab.studies.stability import STUDIES

TITLE = "summing across threads: softmax"


def reference(x):
    import numpy as np  # here, so that listing stays fast
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def scale(x):
    """A power's relative error grows with its exponent; what is far below the smallest normal float may be 0."""
    return reference(x) * (2 + abs(x - x.max(1, keepdims=True))) + 2.0**-100


softmax = Op(
    "softmax",
    title="y = e^x over the sum of e^x, for each row",
    dims=rows.DIMS,
    dtypes=rows.DTYPES,
    inputs=dict(x="M, N"),
    outputs=dict(y="M, N"),
    reference=reference,
    scale=scale,
    depth=rows.added_in_order,
    flops=lambda p: 4 * p.M * p.N,
    bytes=rows.moved,
    kinds=("normal",),
    samples=(dict(x=0, y=0),),
    peers=("copy", "cupy"),
    shapes=rows.SHAPES,
)

ops = (softmax,)
studies = STUDIES


def arguments(p):
    return "x", "y", "M", "N", *rows.packed(p)


@softmax.step(1, THREADS=256)
def unshifted(p, c):
    yield Launch("softmax", grid=p.M, block=c.THREADS, args=arguments(p))


@softmax.step(2, THREADS=256)
def three_passes(p, c):
    yield Launch("softmax", grid=p.M, block=c.THREADS, args=arguments(p))


@softmax.step(3, THREADS=512, VEC=rows.widest, tune=dict(THREADS=(128, 256, 512, 1024), VEC=(1, 2, 4, 8)))
def online(p, c):
    rows.check_width(p, c)
    yield Launch("softmax", grid=p.M, block=c.THREADS, args=arguments(p))


FIVE = dict(f32=2**31, bf16=2**14, f16=0)  # rows: of bf16 the compiler's own number is better from there on; f16 would spill


def blocks(p, c):
    """Blocks that shall fit a multiprocessor: of 256 threads five, so that one has 48 registers, where no thread holds more than four
    packs; else as many as fit."""
    return 5 if c.LANES == 256 and c.VECS <= 4 and p.M <= FIVE[p.dtype] else 1


@softmax.step(4, **rows.IN_REGISTERS | dict(LANES=rows.lanes_of_pairs, BLOCKS=blocks),
              tune=rows.TUNE_REGISTERS, zero=("HINT",))
def registers(p, c):
    rows.check_held(p, c)
    yield Launch("softmax", grid=cdiv(p.M, c.ROWS), block=c.LANES * c.ROWS, args=arguments(p), early=True)


@softmax.step(5, **rows.IN_SHARED, tune=rows.TUNE_SHARED, zero=("HINT",))
def shared(p, c):
    rows.check_width(p, c)
    rows.check_shared(p)
    yield Launch("softmax", grid=p.M, block=c.THREADS, smem=cdiv(p.N * itemsize(p.dtype), 16) * 16, args=arguments(p))


@softmax.step(6, min_sm=90, **rows.ACROSS, tune=rows.TUNE_ACROSS, zero=("HINT",))
def cluster(p, c):
    rows.check_held(p, c)
    yield Launch("softmax", grid=p.M * c.CLUSTER, block=c.LANES, cluster=(c.CLUSTER, 1, 1), args=arguments(p))


@softmax.step(7, min_sm=90, **rows.PIPELINED, tune=rows.TUNE_PIPELINED, zero=("HINT",))
def pipelined(p, c):
    rows.check_pipelined(p, c)
    cluster = (c.CLUSTER, 1, 1) if c.CLUSTER > 1 else None
    yield Launch("softmax", grid=rows.clusters(p, c) * c.CLUSTER, block=c.LANES, smem=rows.room(p, c), cluster=cluster, args=arguments(p))


def lanes(p, c):
    """Threads of a block: 512 in a cluster of up to 8, for a cluster of 16 such blocks seldom finds room."""
    return 512 if 1 < c.CLUSTER <= 8 else rows.lanes_of_bulk(p, c)


@softmax.step(8, min_sm=90, **rows.IN_BULK | dict(LANES=lanes), tune=rows.TUNE_BULK)
def bulk(p, c):
    yield rows.bulk_launch(p, c, "softmax", arguments(p))
