"""Part 3: every level of memory, measured: its latency, bandwidth and size, and what makes an access cost more than it must."""

import math

from cudalab.expressions import cdiv
from cudalab.spec import Fill, Launch, Op, Tensor, i32, scratch, shapes
from cudalab.studies.memory import access_order, bandwidth, bank_conflicts, constant_cache, l2_parts, latency, register_file, spilling

TITLE = "every level of memory, measured"


# -- chains

def permutation(tensor, problem, kind, rng):
    """A random order of all lines."""
    return rng.random(tensor.shape).argsort() if tensor.name == "order" else None


chase = Op(
    "chase",
    title="the line that H hops along a random round trip through L lines lead to",
    dims=("L", "H"),
    inputs=dict(order="i32: L"),
    outputs=dict(last="i32: 1"),
    reference=lambda p, order: order[p.H % p.L:][:1],
    scale=lambda order: order[:1],
    depth=lambda p: 1,
    flops=lambda p: p.H,  # hops: there is nothing else to count
    bytes=lambda p: 8 * p.H,
    samples=(dict(last=0),),
    peers=(),
    shapes=dict(emulate=shapes("37x50 1x3", ("L", "H")), check=shapes("1x1 7x5 1000x1001 1536x4096", ("L", "H")),
                bench=shapes("1024x65536", ("L", "H"))),
    kinds=("integers",),  # equal bit for bit
    draw=permutation,
)


# CACHE, INDEXED and ORDER below say what is measured; there is no best of them, so nothing is tuned
@chase.step(1, STRIDE=128, CACHE=0, INDEXED=0, zero=("CACHE", "INDEXED"))
def through_caches(p, c):
    yield scratch("chain", (p.L * c.STRIDE,), "u8")
    yield Tensor("cycles", (1,), "i64", "out")
    yield Launch("chase_link", grid=cdiv(p.L, 256), block=256, args="order chain L")
    warm = p.L if p.L <= 2**20 else 2**14  # what no cache can hold need not be walked through whole
    yield Launch("chase", grid=1, block=1, args=("order", "chain", "last", "cycles", "H", i32(warm), i32(-warm % p.L)))


@chase.step(2, STRIDE=32, INDEXED=0, zero=("INDEXED",))
def shared(p, c):
    yield Tensor("cycles", (1,), "i64", "out")
    yield Launch("chase", grid=1, block=256, smem=p.L * c.STRIDE, args="order last cycles L H")


lines = Op(
    "lines",
    title="the line that every block finds behind every pointer",
    dims=("L", "S"),
    inputs=dict(order="i32: L"),
    outputs=dict(reached="i32: S, L"),
    reference=lambda p, order: order[None, :].repeat(p.S, axis=0),
    scale=lambda p, order: order[None, :].repeat(p.S, axis=0),
    depth=lambda p: 1,
    flops=lambda p: p.L * p.S,
    bytes=lambda p: 8 * p.L * p.S,
    samples=(dict(order=0, reached=1),),
    peers=(),
    shapes=dict(emulate=shapes("33x3 1x1", ("L", "S")), check=shapes("1x1 7x3 512x132", ("L", "S")), bench=shapes("4096x132", ("L", "S"))),
    kinds=("integers",),
    draw=permutation,
)


@lines.step(1, WARM=2, HOPS=8)
def every_line(p, c):
    yield scratch("chain", (p.L * 128,), "u8")
    yield Tensor("cycles", (p.S, p.L), "i32", "out")
    yield Tensor("sm", (p.S,), "i32", "out")
    yield Launch("lines_link", grid=cdiv(p.L, 256), block=256, args="chain L")
    yield Launch("lines", grid=p.S, block=1, args="order chain reached cycles sm L")


def skip(lines_: int) -> int:
    """How many lines further the next one lies: about 0.38 of all, and no divisor shared with their number."""
    return next(s for s in range(max(1, round(0.381966 * lines_)), lines_ + 1) if math.gcd(s, lines_) == 1)


constant = Op(
    "constant",
    title="the line of the constant bank that H hops lead to",
    dims=("L", "H"),
    inputs=dict(start="i32: 1"),
    outputs=dict(last="i32: 1"),
    reference=lambda p, start: (start + p.H * skip(p.L)) % p.L,
    scale=lambda start: start,
    depth=lambda p: 1,
    flops=lambda p: p.H,
    bytes=lambda p: 4 * p.H,
    samples=(dict(last=0),),
    peers=(),
    shapes=dict(emulate=shapes("20x45 1x3", ("L", "H")), check=shapes("1x1 7x5 1000x1001 1024x4096", ("L", "H")),
                bench=shapes("1024x65536", ("L", "H"))),
    kinds=("integers",),
)


@constant.step(1, STRIDE=64, LINES=lambda p: p.L, SKIP=lambda p: skip(p.L), WARM=lambda p: p.L)
def chain(p, c):
    yield Tensor("cycles", (1,), "i64", "out")
    yield Launch("constant", grid=1, block=1, args="start last cycles H")


# -- bandwidth

read = Op(
    "read",
    title="the sums of x's 64 columns, read P times over",
    dims=("R", "P"),
    inputs=dict(x="R, 64"),
    outputs=dict(sums="64"),
    reference=lambda p, x: p.P * x.sum(axis=0),
    scale=lambda p, x: p.P * abs(x).sum(axis=0),
    depth=lambda p: p.R * p.P,
    flops=lambda p: 64 * p.R * p.P,
    bytes=lambda p: 4 * 64 * p.R,
    samples=(dict(x=1, sums=0),),
    peers=(),
    shapes=dict(emulate=shapes("300x3 130x9 1x1", ("R", "P")), check=shapes("1x1 37x3 1000x2 100003x1", ("R", "P")),
                bench=shapes("4194304x1 131072x32", ("R", "P"))),
)


@read.step(1, THREADS=512, UNROLL=4, CACHE=2, BLOCKS=lambda p: min(264, cdiv(p.R * 16, 512)), zero=("CACHE",),
           tune=dict(THREADS=(256, 512, 1024), UNROLL=(2, 4, 8), CACHE=(0, 1, 2, 3)))
def interleaved(p, c):
    yield Fill("sums")
    yield Launch("read", grid=c.BLOCKS, block=c.THREADS, args="x sums R P")


@read.step(2, min_sm=90, THREADS=256, ROWS=64, STAGES=4, BLOCKS=lambda p: min(264, cdiv(p.R, 64)),
           tune=dict(THREADS=(128, 256, 512), ROWS=(32, 64, 128), STAGES=(2, 3, 4, 6)))
def bulk(p, c):
    yield Fill("sums")
    yield Launch("read", grid=c.BLOCKS, block=c.THREADS, smem=256 * c.ROWS * c.STAGES, args="x sums R P")


def pattern_in_a_row(tensor, problem, kind, rng):
    """Places in a row of E elements, at random."""
    return rng.integers(0, problem.E, tensor.shape) if tensor.name == "pattern" else None


gather = Op(
    "gather",
    title="the sums of those columns of x that `pattern` names",
    dims=("T", "C", "E"),
    inputs=dict(x="T, E", pattern="i32: C"),
    outputs=dict(sums="C"),
    reference=lambda x, pattern: x[:, pattern.astype("int64")].sum(axis=0),
    scale=lambda x, pattern: abs(x[:, pattern.astype("int64")]).sum(axis=0),
    depth=lambda p: p.T,
    flops=lambda p: p.T * p.C,
    bytes=lambda p: 4 * (p.T * p.C + 2 * p.C),
    samples=(dict(pattern=0, sums=0),),
    peers=(),
    shapes=dict(emulate=shapes("11x300x320 1x1x1", ("T", "C", "E")), check=shapes("1x1x1 9x257x1001 32x4096x65536", ("T", "C", "E")),
                bench=shapes("32x262144x262144 32x262144x2097152", ("T", "C", "E"))),
    draw=pattern_in_a_row,
)


@gather.step(1, THREADS=256, UNROLL=8)
def columns(p, c):
    yield Launch("gather", grid=cdiv(p.C, c.THREADS), block=c.THREADS, args="x pattern sums T C E")


# -- shared memory

TABLE, READS, TURN = 2048, 8, 32  # words; as in the source


def places(tensor, problem, kind, rng):
    """Random places that any access may have; a table of small integers, whose sums are exact."""
    if tensor.name == "place":
        return 4 * rng.integers(0, TABLE // 8, tensor.shape)
    return rng.integers(-15, 16, tensor.shape)


def read_over(p, table, place):
    """What each thread adds up: R times the V words at its place and READS - 1 turns of the banks behind it."""
    at = sum(table[place.astype("int64") + TURN * k + n] for k in range(READS) for n in range(p.V))
    return p.R * at


banks = Op(
    "banks",
    title="what T threads add up that read V words at a place of a table over and over",
    dims=("T", "R", "V"),
    inputs=dict(table=f"{TABLE}", place="i32: T"),
    outputs=dict(sums="T"),
    reference=read_over,
    scale=lambda p, table, place: read_over(p, abs(table), place),
    depth=lambda p: READS * p.R * p.V,
    flops=lambda p: READS * p.R * p.V * p.T,
    bytes=lambda p: 4 * (TABLE + 2 * p.T),
    samples=(dict(place=0, sums=0),),
    peers=(),
    shapes=dict(emulate=shapes("64x2x4 33x3x1", ("T", "R", "V")), check=shapes("1x1x1 33x5x1 96x7x2 1024x3x4", ("T", "R", "V")),
                bench=shapes("1024x256x1 1024x256x2 1024x256x4", ("T", "R", "V"))),
    kinds=("integers",),
    draw=places,
)


@banks.step(1, WIDTH=lambda p: 4 * p.V)
def repeated(p, c):
    yield Tensor("cycles", (1,), "i64", "out")
    yield Launch("banks", grid=1, block=p.T, args="table place sums cycles T R")


# -- registers

def mixed(x, weights):
    """Every round each value gains `weight` times its neighbour; by the time of the last one the first has changed."""
    value = x + 0
    for weight in weights:
        mix = value + weight * value[[*range(1, len(value)), 0]]
        mix[-1] = value[-1] + weight * (mix[0] if len(value) > 1 else value[0])
        value = mix
    return value


def small_weights(tensor, problem, kind, rng):
    """Weights whose rounds together leave the values about as large as they were."""
    return rng.standard_normal(tensor.shape) / problem.W**0.5 if tensor.name == "weights" else None


spill = Op(
    "spill",
    title="V values a thread, each mixed with its neighbour W times",
    dims=("V", "T", "W"),
    inputs=dict(x="V, T", weights="W"),
    outputs=dict(y="V, T"),
    reference=mixed,
    scale=lambda x, weights: mixed(abs(x), abs(weights)),
    depth=lambda p: p.W + 1,
    flops=lambda p: 2 * p.V * p.W * p.T,
    bytes=lambda p: 4 * (2 * p.V * p.T + p.W),
    samples=(dict(x=1, y=1),),
    peers=(),
    shapes=dict(emulate=shapes("64x70x3 1x1x1", "VTW"), check=shapes("1x1x1 5x129x7 64x1000x32", "VTW"),
                bench=shapes("64x67584x512", "VTW")),
    kinds=("normal",),
    draw=small_weights,
)


@spill.step(1, THREADS=128, BLOCKS=16, VALUES=lambda p: p.V, spills=True)
def live_values(p, c):
    yield Launch("spill", grid=cdiv(p.T, c.THREADS), block=c.THREADS, args="x weights y T W")


def odd_integers(tensor, problem, kind, rng):
    """Odd numbers up to 3, whose products sum up exactly whatever the order."""
    return 2 * rng.integers(-2, 2, tensor.shape) + 1


def outer_sum(p, A, B):
    """The sum of a thread's tile: each of its sums starts at its row's number and gains both products, twice a round."""
    return p.N * p.M * (p.M - 1) // 2 + 2 * p.R * (A.sum(axis=1) * B.sum(axis=1)).sum(axis=0)


outer = Op(
    "outer",
    title="the sum of an M x N tile of registers to which each thread adds two outer products, 2 R times over",
    dims=("M", "N", "T", "R"),
    inputs=dict(A="2, M, T", B="2, N, T"),
    outputs=dict(sums="T"),
    reference=outer_sum,
    scale=lambda p, A, B: outer_sum(p, abs(A), abs(B)) + 1,
    depth=lambda p: 4 * p.R * p.M * p.N,
    flops=lambda p: 8 * p.M * p.N * p.T * p.R,
    bytes=lambda p: 4 * p.T * (2 * p.M + 2 * p.N + 1),
    samples=(dict(A=2, B=2, sums=0),),
    peers=(),
    shapes=dict(emulate=shapes("4x6x70x2 1x1x1x1", "MNTR"), check=shapes("1x1x1x1 3x5x33x7 8x8x1000x16", "MNTR"),
                bench=shapes("8x8x67584x2048 8x16x33792x2048", "MNTR")),
    kinds=("integers",),
    draw=odd_integers,
)


@outer.step(1, TM=lambda p: p.M, TN=lambda p: p.N, ORDER=1, THREADS=256, BLOCKS=1, zero=("ORDER",))
def register_tile(p, c):
    yield Launch("outer", grid=cdiv(p.T, c.THREADS), block=c.THREADS, args="A B sums T R")


ops = (chase, lines, constant, read, gather, banks, spill, outer)

studies = (
    latency.study(through_caches, shared),
    latency.reach_study(through_caches),
    l2_parts.study(every_line),
    bandwidth.study(interleaved, bulk),
    access_order.study(columns),
    bank_conflicts.study(repeated),
    spilling.study(live_values),
    constant_cache.study(chain),
    register_file.study(register_tile),
)
