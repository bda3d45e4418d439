"""Part 8: sum, mean and maximum of a matrix along either axis."""

from cudalab.dtypes import itemsize
from cudalab.expressions import cdiv
from cudalab.parts import rows
from cudalab.spec import Launch, Op, i64, scratch, shapes, state

TITLE = "summing across threads: a matrix along either axis"
LAST, FIRST = (("sum_last", "mean_last", "max_last"), ("sum_first", "mean_first", "max_first"))


def along(p):
    """The axis that is joined: 1 for the last, 0 for the first."""
    return int(p.variant in LAST)


def joined(p):
    """How many elements each result joins."""
    return (p.M, p.N)[along(p)]


def reference(p, x):
    return getattr(x, p.variant.split("_")[0])(along(p))


def scale(p, x):
    """How far a sum of numbers of either sign gets from zero, and its parts with it; a maximum is exact."""
    norm = (x * x).sum(along(p)) ** 0.5
    return norm * dict(sum=1.0, mean=1.0 / x.shape[along(p)], max=0.0)[p.variant.split("_")[0]]


axis = Op(
    "axis",
    title="sum, mean or maximum of a matrix along the last or the first axis",
    dims=rows.DIMS,
    dtypes=rows.DTYPES,
    variants=LAST + FIRST,
    inputs=dict(x="M, N"),
    outputs=dict(y=lambda p: "M" if along(p) else "N"),
    reference=reference,
    scale=scale,
    depth=lambda p: 8 + joined(p),
    flops=lambda p: p.M * p.N,
    bytes=lambda p: itemsize(p.dtype) * (p.M * p.N + p.M * p.N // joined(p)),
    samples=lambda p: (dict(x=1 - along(p), y=0),),
    peers=("read", "cupy"),
    shapes=dict(
        emulate=shapes("21x70 3x300 1x1 300x40", rows.DIMS),
        check=shapes("1000x77 1x4097 4097x1 1x1 33x65537 20000x24 3x1048576 7x9 512x512", rows.DIMS),
        bench=shapes("32768x4096 16384x16384 1048576x64 64x1048576 4096x151936", rows.DIMS)),
)

ops = (axis,)


def arguments(p, *extra):
    return "x", *extra, "y", "M", "N", i64(p.N)


@axis.step(1, THREADS=256, variants=LAST)
def block_a_row(p, c):
    yield Launch("axis", grid=p.M, block=c.THREADS, args=arguments(p))


@axis.step(2, VEC=rows.widest, LANES=rows.lanes, ROWS=rows.rows_read_by_block, LOADS=rows.loads_of_thread, HINT=2, variants=LAST,
           tune=dict(LANES=rows.TUNE_REGISTERS["LANES"], VEC=(1, 2, 4, 8), LOADS=(1, 2, 4, 8), HINT=(0, 1, 2)), zero=("HINT",))
def packs(p, c):
    rows.check_width(p, c)
    yield Launch("axis", grid=cdiv(p.M, c.ROWS), block=c.LANES * c.ROWS, args=arguments(p))


def parts_of_row(p):
    """Blocks that share a row: so many that a device is full, but that each has a pack for every thread."""
    return max(1, min(1024 // p.M, cdiv(rows.packs(p, rows.widest(p)), 256)))


@axis.step(3, SPLIT=parts_of_row, LANES=256, VEC=rows.widest, LOADS=4, HINT=2, variants=LAST,
           tune=dict(SPLIT=(1, 2, 4, 8, 16, 32, 64, 128), LANES=(128, 256, 512, 1024), VEC=(1, 2, 4, 8), LOADS=(1, 2, 4, 8),
                     HINT=(0, 1, 2)), zero=("HINT",))
def split(p, c):
    rows.check_width(p, c)
    rows.check_ahead(c, c.SPLIT * c.LANES)
    yield scratch("partial", (p.M, c.SPLIT))
    yield state("arrived", (p.M,), "u32")
    yield Launch("axis", grid=p.M * c.SPLIT, block=c.LANES, args=arguments(p, "partial", "arrived"))


@axis.step(4, THREADS=128, variants=FIRST, tune=dict(THREADS=(32, 64, 128, 256, 512)))
def thread_a_column(p, c):
    yield Launch("axis", grid=cdiv(p.N, c.THREADS), block=c.THREADS, args=arguments(p))


def wide(p):
    """Threads beside each other: a warp, or as many as there are packs in a row."""
    return next(threads for threads in (1, 2, 4, 8, 16, 32) if threads >= min(32, rows.packs(p, rows.widest(p))))


def deep(p, c):
    """Threads above each other: a block has 1024 threads where each gets eight rows, else 512."""
    return next((threads // c.WIDE for threads in (1024,) if p.M >= 8 * threads // c.WIDE), 512 // c.WIDE)


def stacked(p, c):
    """Blocks above each other: as many as make one a multiprocessor, but that each thread has a few rows."""
    return max(1, min(132 // cdiv(p.N, c.WIDE * rows.widest(p)), cdiv(p.M, 4 * c.DEEP)))


@axis.step(5, WIDE=wide, DEEP=deep, SLABS=stacked, VEC=rows.widest, LOADS=4, HINT=2, variants=FIRST,
           tune=dict(WIDE=(1, 2, 4, 8, 16, 32, 64), DEEP=(4, 8, 16, 32, 64, 128, 256, 512),
                     SLABS=(1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 132, 264, 396), VEC=(1, 2, 4, 8),
                     LOADS=(1, 2, 4, 8), HINT=(0, 1, 2)), zero=("HINT",))
def slabs(p, c):
    rows.check_width(p, c)
    columns, tiles = c.WIDE * c.VEC, cdiv(p.N, c.WIDE * c.VEC)
    yield scratch("partial", (tiles, c.SLABS, columns))
    yield state("arrived", (tiles,), "u32")
    yield Launch("axis", grid=tiles * c.SLABS, block=c.WIDE * c.DEEP, args=arguments(p, "partial", "arrived"))


@axis.step(6, VEC=rows.widest, LANES=rows.lanes_of_warp, VECS=rows.held, ROWS=rows.rows_of_thread, THREADS=128, HINT=2, variants=LAST,
           tune=rows.TUNE_TRANSPOSED, zero=("HINT",), emulate="70x64 5x33 2x1 33x300")
def transposed(p, c):
    rows.check_transposed(p, c)
    yield Launch("axis", grid=rows.blocks_of_transposed(p, c), block=c.THREADS, args=arguments(p))
