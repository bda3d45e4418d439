"""Part 8: the sum of a long vector."""

from cudalab.dtypes import itemsize
from cudalab.expressions import cdiv
from cudalab.spec import Fill, Launch, Op, i32, scratch, shapes, state
from cudalab.studies.summation import STUDIES

TITLE = "summing across threads: one long vector"
DIMS = ("N",)


def added_in_order(p):
    """Terms that are added one after the other, the rest in a tree: by one thread, or by atomics the sums of blocks, 4096 elements each or
    1056 of them.  An order of chance needs that bound: as the first alone allows, 2 to 7 runs of a hundred were called wrong."""
    return 32 + max(p.N // 2**16, min(1056, p.N // 2**12))


reduce = Op(
    "reduce",
    title="the sum of all elements, accumulated in FP32",
    dims=DIMS,
    dtypes=("f32", "bf16", "f16"),
    inputs=dict(x="N"),
    outputs=dict(total="1"),
    reference=lambda x: x.sum().reshape(1),
    scale=lambda x: (x * x).sum().reshape(1) ** 0.5,  # how far a sum of numbers of either sign gets from zero, and its parts with it
    depth=added_in_order,
    flops=lambda p: p.N,
    bytes=lambda p: itemsize(p.dtype) * p.N,
    samples=(dict(total=0),),
    peers=("read", "cupy"),
    shapes=dict(
        emulate=shapes("5000 77 1", DIMS),
        check=shapes("1000000 1 7 255 256 257 65536 65537 99999 4194303 16777216", DIMS),
        bench=shapes("67108864 268435456 1073741824 1048576 1000000 65536", DIMS),
    ),
)

order = Op(
    "order",
    title="M sums of N numbers each, added in an order that each step says",
    dims=("M", "N"),
    inputs=dict(x="N, M"),
    outputs=dict(y="M"),
    reference=lambda x: x.sum(0),
    scale=lambda x: (x * x).sum(0) ** 0.5,
    depth=lambda p: 8 + p.N,
    flops=lambda p: p.M * p.N,
    bytes=lambda p: 4 * p.M * (p.N + 1),
    samples=(dict(x=1, y=0),),
    peers=(),
    shapes=dict(emulate=shapes("70x37 1x1", ("M", "N")), check=shapes("1000x999 1x65537 4097x1 3x7", ("M", "N")),
                bench=shapes("16384x4096", ("M", "N"))),
)

ops = (reduce, order)
studies = STUDIES


def chain(p, c):
    """Launches until one sum is left: each leaves one partial sum for THREADS elements."""
    count = cdiv(p.N, c.THREADS)
    yield scratch("partial", (count,))
    yield scratch("fewer", (cdiv(count, c.THREADS),))
    yield Launch("reduce", grid=count, block=c.THREADS, args="x partial N")
    source, target = "partial", "fewer"
    while True:
        blocks = cdiv(count, c.THREADS)
        yield Launch("reduce_again", grid=blocks, block=c.THREADS, args=(source, target, "total", i32(count)))
        if blocks == 1:
            return
        count, source, target = blocks, target, source


@reduce.step(1, THREADS=256, tune=dict(THREADS=(128, 256, 512, 1024)))
def interleaved(p, c):
    yield from chain(p, c)


@reduce.step(2, THREADS=256, tune=dict(THREADS=(128, 256, 512, 1024)))
def sequential(p, c):
    yield from chain(p, c)


@reduce.step(3, THREADS=256, tune=dict(THREADS=(128, 256, 512, 1024)))
def shuffles(p, c):
    yield from chain(p, c)


# GRID: blocks at most; 132 multiprocessors of an H200 hold eight of 256 threads each.
@reduce.step(4, THREADS=256, GRID=1056, tune=dict(THREADS=(128, 256, 512, 1024), GRID=(264, 528, 1056, 2112)))
def several(p, c):
    blocks = min(c.GRID, cdiv(p.N, c.THREADS))
    yield scratch("partial", (blocks,))
    yield Launch("reduce", grid=blocks, block=c.THREADS, args="x partial N")
    yield Launch("reduce_last", grid=1, block=c.THREADS, args=("partial", "total", i32(blocks)))


def widest(p):
    """Elements of 16 bytes: a vector starts aligned, and what is left at its end is added one by one."""
    return 16 // itemsize(p.dtype)


WIDE = dict(THREADS=256, VEC=widest, LOADS=4, GRID=1056, HINT=2)
EVEN = WIDE | dict(THREADS=512, LOADS=8, GRID=1024)  # powers of 2 divide evenly among powers of 2
TUNE_WIDE = dict(THREADS=(128, 256, 512, 1024), LOADS=(2, 4, 8, 16), GRID=(0, 128, 132, 256, 264, 512, 528, 1024, 1056), HINT=(0, 1, 2))


def blocks_of(p, c):
    """Blocks: one a chunk, or GRID, where that is fewer."""
    chunks = max(1, cdiv(p.N // c.VEC, c.THREADS * c.LOADS))
    return min(c.GRID or chunks, chunks)


@reduce.step(5, **WIDE, tune=TUNE_WIDE, zero=("GRID", "HINT"))
def vectorised(p, c):
    blocks = blocks_of(p, c)
    yield scratch("partial", (blocks,))
    yield Launch("reduce", grid=blocks, block=c.THREADS, args="x partial N")
    yield Launch("reduce_last", grid=1, block=c.THREADS, args=("partial", "total", i32(blocks)))


@reduce.step(6, **WIDE, tune=TUNE_WIDE, zero=("GRID", "HINT"), dtypes=("f32",))
def atomic(p, c):
    yield Fill("total")
    yield Launch("reduce", grid=blocks_of(p, c), block=c.THREADS, args="x total N")


@reduce.step(7, **WIDE | dict(THREADS=512, GRID=512), tune=TUNE_WIDE, zero=("GRID", "HINT"))
def last_block(p, c):
    blocks = blocks_of(p, c)
    yield scratch("partial", (blocks,))
    yield state("arrived", (1,), "u32")
    yield Launch("reduce", grid=blocks, block=c.THREADS, args="x partial arrived total N")


def taken_as_they_come(p, c, early=False):
    blocks = blocks_of(p, c)
    yield state("partial", (blocks,), "u64")
    yield Launch("reduce", grid=blocks, block=c.THREADS, args="x partial total N", early=early)


@reduce.step(8, **EVEN, tune=TUNE_WIDE, zero=("GRID", "HINT"))
def flags(p, c):
    yield from taken_as_they_come(p, c)


@reduce.step(9, min_sm=90, **EVEN, tune=TUNE_WIDE, zero=("GRID", "HINT"))
def early(p, c):
    yield from taken_as_they_come(p, c, early=True)


# one thread a sum, in the order that the step's name says: for the study of errors, not for speed

@order.step(1, THREADS=128)
def in_order(p, c):
    yield Launch("order", grid=cdiv(p.M, c.THREADS), block=c.THREADS, args="x y M N")


@order.step(2, THREADS=128)
def pairwise(p, c):
    yield Launch("order", grid=cdiv(p.M, c.THREADS), block=c.THREADS, args="x y M N")


@order.step(3, THREADS=128)
def kahan(p, c):
    yield Launch("order", grid=cdiv(p.M, c.THREADS), block=c.THREADS, args="x y M N")


@order.step(4, THREADS=128)
def neumaier(p, c):
    yield Launch("order", grid=cdiv(p.M, c.THREADS), block=c.THREADS, args="x y M N")
