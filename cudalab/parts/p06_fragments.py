"""Part 6, looked at closely: instructions whose registers are stored as they are.  `fragments` reads from them which lane holds what."""

from cudalab.dtypes import encode, itemsize, module_of, numpy_dtype
from cudalab.errors import BadShape
from cudalab.parts.p06_tcgemm import HOPPER, mma_sync
from cudalab.spec import Launch, Op, TensorMap, shapes

TITLE = "fragments: which lane holds which element"
DTYPES = ("bf16", "f16", "tf32", "fp8_e4m3", "int8")
ROW = 32  # bytes of K that one instruction takes of a row
SWIZZLES = dict(swizzle128=128, swizzle64=64, swizzle32=32)  # variant -> bytes of a row
TILE_ROWS = 16
SHAPES = dict(emulate=shapes("2", ("P",)), check=shapes("1 3", ("P",)), bench=shapes("132", ("P",)))


def depth(p):
    """Elements of K that one instruction takes."""
    return ROW // itemsize(p.dtype)


def sum_type(p):
    return "i32" if p.dtype == "int8" else "f32"


def draw_rows(tensor, problem, kind, rng):
    """Bytes of normally distributed elements; of whole numbers where sums must be exact."""
    elements = rng.standard_normal((*tensor.shape[:-1], depth(problem)), dtype="float32") * (20 if problem.dtype == "int8" else 1)
    return encode((2 * elements).round() if kind == "integers" else elements, problem.dtype).view("uint8")


def elements(rows, p):
    """The bytes of rows as elements in float64, on the host, and as raw unsigned integers."""
    import numpy as np
    rows = rows.get() if hasattr(rows, "get") else rows
    raw = np.ascontiguousarray(rows.astype("uint8"))
    return raw.view(numpy_dtype(p.dtype)).astype("float64"), raw.view(f"u{itemsize(p.dtype)}")


def held(matrices, fragment, warps):
    """Registers of all lanes, (P, lanes, registers), of matrices that a fragment map spreads over them."""
    import numpy as np
    registers = [np.ascontiguousarray(r).view("u4")[:, 0] for r in fragment.scatter(np.ascontiguousarray(matrices))]
    return np.stack(registers, 1).reshape(-1, warps * 32, len(registers))


def fragments_of(p):
    from cudalab.emulator.fragments import FRAGMENTS
    return FRAGMENTS[f"m16n8k{depth(p)}", 8 * itemsize(p.dtype)]


def mma_registers(A, B, p):
    """By the tables of the PTX ISA that the emulator goes by."""
    import numpy as np
    maps, ((a, raw_a), (b, raw_b)) = fragments_of(p), (elements(x, p) for x in (A, B))
    sums = np.stack([r[:, 0] for r in maps.c.scatter(a @ b.transpose(0, 2, 1))], 1).reshape(-1, 32, 4)
    found = held(raw_a, maps.a, 1), held(raw_b.transpose(0, 2, 1), maps.b, 1), sums
    return tuple(module_of(A).asarray(x) for x in found)


def mma_scale(A, B, p):
    import numpy as np
    (a, _), (b, _) = (elements(x, p) for x in (A, B))
    ones = np.ones((len(a), 32, 4))
    sums = np.stack([r[:, 0] for r in fragments_of(p).c.scatter(abs(a) @ abs(b).transpose(0, 2, 1))], 1).reshape(-1, 32, 4)
    return tuple(module_of(A).asarray(x) for x in (ones, ones[..., :2], sums))


def op(name, title, inputs, outputs, reference, scale, dims=("P",), sizes=SHAPES, **more):
    """An op over P independent instructions."""
    usual = dict(depth=lambda p: 32, unit=lambda p: 2.0**-22, flops=lambda p: p.P, bytes=lambda p: 64 * p.P)
    return Op(name, title=title, dims=dims, inputs=inputs, outputs=outputs, reference=reference, scale=scale, peers=(), shapes=sizes,
              **usual | more)


mma_fragments = op(
    "mma_fragments", "what ldmatrix and mma.sync leave in the registers", dict(A="u8: P, 16, 32", B="u8: P, 8, 32"),
    dict(RA="u32: P, 32, 4", RB="u32: P, 32, 2", D=lambda p: f"{sum_type(p)}: P, 32, 4"), mma_registers, mma_scale,
    dtypes=DTYPES, draw=draw_rows, samples=(dict(A=0, B=0, RA=0, RB=0, D=0),))


@mma_fragments.step(1, min_sm=mma_sync)
def raw(p, c):
    yield Launch("mma_fragments", grid=p.P, block=32, args="A B RA RB D")


def wgmma_sums(A, B, p):
    import numpy as np
    from cudalab.emulator.fragments import C16, Map
    (a, raw_a), (b, _) = (elements(x, p) for x in (A, B))
    if p.variant == "registers":  # sixteen bytes a thread, warp by warp
        words = raw_a.reshape(-1).view("u4").reshape(-1, 4)
        kind = dict(bf16="bf16", f16="f16", tf32="tf32", fp8_e4m3="e4m3", int8="s8")[p.dtype]
        a = fragments_of(p).a.gather([np.ascontiguousarray(words[:, i]) for i in range(4)], kind).astype("f8").reshape(-1, 64, depth(p))
    product = (a @ b.transpose(0, 2, 1)).reshape(-1, 4, 16, b.shape[1] // 8, 8).transpose(0, 1, 3, 2, 4)  # warps, then columns in eights
    sums = np.stack([r[:, 0] for r in Map.of(C16).scatter(np.ascontiguousarray(product).reshape(-1, 16, 8))], 1)
    sums = sums.reshape(len(a), 4, -1, 32, 4).transpose(0, 1, 3, 2, 4).reshape(len(a), 128, -1)
    return module_of(A).asarray(sums)


def wgmma_scale(A, B, p):
    xp = module_of(A)
    return xp.full((len(A), 128, B.shape[1] // 2), 32.0)


wgmma_fragments = op(
    "wgmma_fragments", "what wgmma leaves in the registers", dict(A="u8: P, 64, 32", B="u8: P, N, 32"),
    dict(D=lambda p: f"{sum_type(p)}: P, 128, N // 2"), wgmma_sums, wgmma_scale, ("P", "N"), dict(
        emulate=shapes("2x16", ("P", "N")), check=shapes("1x8 3x24", ("P", "N")), bench=shapes("132x64", ("P", "N"))),
    dtypes=DTYPES, variants=("shared", "registers"), draw=draw_rows, samples=(dict(A=0, B=0, D=0),))


@wgmma_fragments.step(1, **HOPPER, COLS=lambda p: p.N)
def raw(p, c):
    if p.N % 8 or p.N > 256:
        raise BadShape(f"N={p.N}: wgmma takes columns in eights, at most 256")
    yield Launch("wgmma_fragments", grid=p.P, block=128, args="A B D")


def dealt(X, p):
    """Lane l gets word l % 4 of row l / 4 of each matrix; turned, elements 2 * (l % 4) and the next of column l / 4."""
    X = X.astype("u1")
    if p.variant == "turned":
        halves = X.view("u2").reshape(-1, 4, 8, 8).transpose(0, 1, 3, 2)
        X = module_of(X).ascontiguousarray(halves).view("u1")
    return module_of(X).ascontiguousarray(X.view("u4").reshape(-1, 4, 32).transpose(0, 2, 1)).astype("f8")


ldmatrix_fragments = op(
    "ldmatrix_fragments", "which bytes of four matrices ldmatrix gives each lane", dict(X="u8: P, 32, 16"), dict(R="u32: P, 32, 4"), dealt,
    lambda X: module_of(X).ones((len(X), 32, 4)), variants=("plain", "turned"), samples=(dict(X=0, R=0),))


@ldmatrix_fragments.step(1)
def raw(p, c):
    yield Launch("ldmatrix_fragments", grid=p.P, block=32, args="X R")


def tile(p):
    return f"u8: P * {TILE_ROWS}, {SWIZZLES[p.variant]}"


def moved(X, p):
    """PTX ISA, "Swizzling modes": units of sixteen bytes, exclusive-or some bits of the number of the line of 128 bytes they lie in."""
    width = SWIZZLES[p.variant]
    at = module_of(X).arange(TILE_ROWS * width // 16)
    to = at ^ at // 8 % (width // 16)
    tiles = X.reshape(-1, len(at), 16)
    placed = module_of(X).empty_like(tiles)
    placed[:, to] = tiles
    return placed.reshape(X.shape)


swizzle_units = op(
    "swizzle_units", "where TMA puts each sixteen bytes of a row", dict(X=tile), dict(Y=tile), moved, lambda X: module_of(X).ones(X.shape),
    variants=tuple(SWIZZLES), samples=(dict(X=0, Y=0),))


@swizzle_units.step(1, min_sm=90, ROWS=TILE_ROWS)
def raw(p, c):
    width = SWIZZLES[p.variant]
    tiles = TensorMap("X", "u8", (width, p.P * c.ROWS), (width, c.ROWS), swizzle=width)
    yield Launch("swizzle_units", grid=p.P, block=128, args=(tiles, "Y"))


ops = (mma_fragments, wgmma_fragments, ldmatrix_fragments, swizzle_units)
