"""Part 8: LayerNorm over rows of any length."""

from cudalab.dtypes import itemsize
from cudalab.expressions import cdiv
from cudalab.parts import rows
from cudalab.spec import Launch, Op, f32, state

TITLE = "summing across threads: LayerNorm"
EPS = 1e-5  # as PyTorch's users take it


def normalised(x):
    """Each row less its mean, and the root of its variance."""
    distance = x - x.mean(1, keepdims=True)
    return distance, ((distance * distance).mean(1, keepdims=True) + EPS) ** 0.5


def reference(x, w, b):
    distance, deviation = normalised(x)
    return distance / deviation * w + b


def scale(x, w, b):
    """The mean is as exact as x is large; what is left after it is taken off may be small."""
    _, deviation = normalised(x)
    return (abs(x) + abs(x).mean(1, keepdims=True)) / deviation * abs(w) + abs(b)


layernorm = Op(
    "layernorm",
    title="y = (x - mean) over the standard deviation, times w, plus b, for each row",
    dims=rows.DIMS,
    dtypes=rows.DTYPES,
    inputs=dict(x="M, N", w="N", b="N"),
    outputs=dict(y="M, N"),
    reference=reference,
    scale=scale,
    depth=rows.added_in_order,
    flops=lambda p: 8 * p.M * p.N,
    bytes=lambda p: rows.moved(p) + 2 * itemsize(p.dtype) * p.N,
    kinds=("normal",),
    samples=(dict(x=0, y=0),),
    peers=("copy",),
    shapes=rows.SHAPES,
)

ops = (layernorm,)


def arguments(p, *own):
    """Of a launch; own: tensors of the step itself."""
    return "x", "w", "b", "y", *own, "M", "N", *rows.packed(p), f32(EPS)


@layernorm.step(1, THREADS=256)
def two_moments(p, c):
    yield Launch("layernorm", grid=p.M, block=c.THREADS, args=arguments(p))


@layernorm.step(2, THREADS=512, VEC=rows.widest, tune=dict(THREADS=(128, 256, 512, 1024), VEC=(1, 2, 4, 8)))
def welford(p, c):
    rows.check_width(p, c)
    yield Launch("layernorm", grid=p.M, block=c.THREADS, args=arguments(p))


def early(p, c):
    """Weights and biases are fetched beside the row where a thread has little of it, or rows are few and registers hold all three."""
    return int(c.LANES <= 16 or rows.few(p, c) and c.VECS <= 4 and c.LANES <= 512)


def lanes(p, c):
    """Threads of a row: about four packs each; in middling rows some to spare if rows are fewest, and if they are many six packs each, so
    that more rows are under way."""
    if rows.middling(p, c) and rows.fewest(p, c):
        return rows.lanes_to_spare(p, c)
    count = rows.packs(p, c.VEC)
    return 32 * cdiv(count, 192) if 256 < count <= 768 and not rows.few(p, c) else rows.lanes_of_pairs(p, c)


@layernorm.step(3, **rows.IN_REGISTERS | dict(LANES=lanes, EARLY=early), tune=rows.TUNE_REGISTERS | dict(EARLY=(0, 1)),
                zero=("EARLY", "HINT"))
def registers(p, c):
    rows.check_held(p, c)
    yield Launch("layernorm", grid=cdiv(p.M, c.ROWS), block=c.LANES * c.ROWS, args=arguments(p), early=True)


@layernorm.step(4, **rows.IN_SHARED, tune=rows.TUNE_SHARED, zero=("HINT",))
def shared(p, c):
    rows.check_width(p, c)
    rows.check_shared(p)
    yield Launch("layernorm", grid=p.M, block=c.THREADS, smem=cdiv(p.N * itemsize(p.dtype), 16) * 16, args=arguments(p))


@layernorm.step(5, min_sm=90, **rows.ACROSS, EARLY=lambda p, c: int(rows.few(p, c) and c.VECS <= 5),
                tune=rows.TUNE_ACROSS | dict(EARLY=(0, 1)), zero=("EARLY", "HINT"))
def cluster(p, c):
    rows.check_held(p, c)
    yield Launch("layernorm", grid=p.M * c.CLUSTER, block=c.LANES, cluster=(c.CLUSTER, 1, 1), args=arguments(p))


@layernorm.step(6, min_sm=90, **rows.PIPELINED, KEEP=lambda p, c: int(c.VECS <= 3), tune=rows.TUNE_PIPELINED | dict(KEEP=(0, 1)),
                zero=("HINT", "KEEP"))
def pipelined(p, c):
    rows.check_pipelined(p, c)
    cluster = (c.CLUSTER, 1, 1) if c.CLUSTER > 1 else None
    yield Launch("layernorm", grid=rows.clusters(p, c) * c.CLUSTER, block=c.LANES, smem=rows.room(p, c), cluster=cluster, args=arguments(p))


def loads(p, c):
    """Packs of weights and of biases that a thread fetches at once: four where it has 48 registers, which hold them."""
    return 4 if c.BLOCKS * c.LANES * 48 <= 65536 else 2


def few_lanes(p, c):
    """Threads of a share: more than 256 leave each fewer registers than four packs of weights and biases take."""
    return min(256, rows.lanes_of_bulk(p, c))


def blocks(p, c):
    """Blocks that shared memory has room for, as far as threads have 48 registers then."""
    return min(rows.blocks_by_room(p, c), max(1, 65536 // (48 * c.LANES)))


@layernorm.step(7, min_sm=90, **rows.IN_BULK | dict(LANES=few_lanes, BLOCKS=blocks), LOADS=loads,
                tune=rows.TUNE_BULK | dict(LANES=(32, 64, 128, 192, 256, 320, 512), LOADS=(1, 2, 4)))
def bulk(p, c):
    yield rows.bulk_launch(p, c, "layernorm", arguments(p))


@layernorm.step(8, min_sm=90, **rows.IN_KEPT, tune=rows.TUNE_KEPT)
def kept(p, c):
    yield state("claimed", (1,), "u32")
    yield rows.kept_launch(p, c, "layernorm", arguments(p, "claimed"))
