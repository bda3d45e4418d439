"""Part 8: where the largest element of each row stands."""

from cudalab.dtypes import itemsize
from cudalab.expressions import cdiv
from cudalab.parts import rows
from cudalab.spec import Launch, Op, i64, scratch, shapes, state

TITLE = "summing across threads: argmax"

argmax = Op(
    "argmax",
    title="the place of the largest element of each row; the lowest of equals, NaN before any number, as NumPy has it",
    dims=rows.DIMS,
    dtypes=("f32", "bf16", "f16"),
    inputs=dict(x="M, N"),
    outputs=dict(index="i64: M"),
    reference=lambda x: x.argmax(1),
    scale=lambda x: None,  # a place is right or wrong
    depth=lambda p: 1,
    flops=lambda p: p.M * p.N,
    bytes=lambda p: itemsize(p.dtype) * p.M * p.N + 8 * p.M,
    samples=(dict(x=0, index=0),),
    peers=("read", "cupy"),
    shapes=dict(
        emulate=rows.SHAPES["emulate"],
        check=rows.SHAPES["check"],
        bench=shapes("1x151936 64x151936 1x32768 8x128256 4096x151936 32768x4096 1048576x64 1x16777216", rows.DIMS)),
)

ops = (argmax,)
LOADS = (1, 2, 3, 4, 5, 6, 8, 10)


@argmax.step(1, THREADS=256)
def block_a_row(p, c):
    yield Launch("argmax", grid=p.M, block=c.THREADS, args=("x", "index", "M", "N", i64(p.N)))


@argmax.step(2, VEC=rows.widest, LANES=rows.lanes, ROWS=rows.rows_read_by_block, LOADS=rows.loads_of_thread, HINT=2,
             tune=dict(LANES=rows.TUNE_REGISTERS["LANES"], VEC=(1, 2, 4, 8), LOADS=LOADS, HINT=(0, 1, 2)), zero=("HINT",))
def keys(p, c):
    rows.check_width(p, c)
    yield Launch("argmax", grid=cdiv(p.M, c.ROWS), block=c.LANES * c.ROWS, args=("x", "index", "M", "N", i64(p.N)))


def parts_of_row(p):
    """Blocks that share a row: so many that a device is full, but that each has a pack for every thread."""
    return max(1, min(cdiv(512, p.M), cdiv(rows.packs(p, rows.widest(p)), 256)))


def loads(most):
    """Loads of a thread that are under way together: all it has, up to so many."""
    return lambda p, c: min(most, cdiv(rows.packs(p, c.VEC), c.get("SPLIT", 1) * c.get("CLUSTER", 1) * c.LANES))


@argmax.step(3, SPLIT=parts_of_row, LANES=256, VEC=rows.widest, LOADS=loads(8), HINT=2,
             tune=dict(SPLIT=(1, 2, 4, 8, 16, 32, 64, 75, 128, 149, 512), LANES=(128, 256, 512, 1024), VEC=(1, 2, 4, 8), LOADS=LOADS,
                       HINT=(0, 1, 2)), zero=("HINT",))
def split(p, c):
    rows.check_width(p, c)
    rows.check_ahead(c, c.SPLIT * c.LANES)
    yield scratch("keys", (p.M, c.SPLIT), "u64")
    yield state("arrived", (p.M,), "u32")
    yield Launch("argmax", grid=p.M * c.SPLIT, block=c.LANES, args=("x", "keys", "arrived", "index", "M", "N", i64(p.N)))


FEW = 4  # rows: up to here the largest clusters are not too many for a device


@argmax.step(4, min_sm=90, CLUSTER=lambda p: 16 if p.M <= FEW else 8, LANES=lambda p: 512 if p.M <= FEW else 256, VEC=rows.widest,
             LOADS=loads(10), HINT=2,
             tune=dict(CLUSTER=(2, 4, 8, 16), LANES=(128, 256, 512, 768, 1024), VEC=(1, 2, 4, 8), LOADS=LOADS, HINT=(0, 1, 2)),
             zero=("HINT",))
def cluster(p, c):
    rows.check_width(p, c)
    yield Launch("argmax", grid=p.M * c.CLUSTER, block=c.LANES, cluster=(c.CLUSTER, 1, 1), args=("x", "index", "M", "N", i64(p.N)))


@argmax.step(5, VEC=rows.widest, LANES=rows.lanes_of_warp, VECS=rows.held, ROWS=rows.rows_of_thread, THREADS=128, HINT=2,
             tune=rows.TUNE_TRANSPOSED, zero=("HINT",), emulate="70x64 5x33 2x1 33x300")
def transposed(p, c):
    rows.check_transposed(p, c)
    yield Launch("argmax", grid=rows.blocks_of_transposed(p, c), block=c.THREADS, args=("x", "index", "M", "N", i64(p.N)))
