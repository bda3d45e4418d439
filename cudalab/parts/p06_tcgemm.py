"""Part 6: tensor cores, from one instruction to past cuBLAS in BF16 and FP8; what low precision costs."""

from cudalab.errors import BadConfig, BadShape
from cudalab.expressions import cdiv
from cudalab.parts.p05_sgemm import DIMS, norms_product
from cudalab.spec import Launch, Op, TensorMap, shapes
from cudalab.studies.tcgemm import STUDIES

TITLE = "tensor cores, from one instruction to past cuBLAS in BF16 and FP8"
LINE = 128  # bytes of K that one stage holds of a row, from step 6 on: one row of the widest swizzle
BYTES = dict(bf16=2, f16=2, tf32=4, fp8_e4m3=1)
MAPS = dict(bf16="bf16", f16="f16", tf32="f32", fp8_e4m3="e4m3")  # how a tensor map calls them


def is_fp8(p):
    return p.dtype.startswith("fp8")


def output_type(p):
    """C's type: float32 for tf32, bf16 for fp8, else that of A and B."""
    return dict(tf32="f32", fp8_e4m3="bf16").get(p.dtype, p.dtype)


def product(A, B, p):
    """A·B, or A·B^T where B lies N x K."""
    return A @ (B if p.variant == "nn" else B.T)


def product_norms(A, B, p):
    return norms_product(A, B if p.variant == "nn" else B.T)


def fp8_unit(p):
    """Of sums that are kept with 13 fraction bits (sources in cudalab/emulator/accumulate.py): products are added 32 at a time, so that the
    roundings are fewer than the terms, and the partial sums that they are relative to are as much smaller than the scale."""
    return 2.0**-13 * min(1, 32 / p.K) ** 0.5


def draw_small(tensor, problem, kind, rng):
    """Integers whose partial sums fp8 keeps exactly; None for the usual inputs."""
    if kind != "integers" or not is_fp8(problem) or tensor.dtype != problem.dtype:
        return None
    largest = min(4, int((2.0**13 / problem.K) ** 0.5)) or 1
    return (rng.integers(0, 2 * largest + 1, tensor.shape, dtype="int32") - largest).astype("float32")


tcgemm = Op(
    "tcgemm",
    title="C = A·B on tensor cores, float32 sums (fp8: fast accumulation)",
    dims=DIMS,
    dtypes=("bf16", "f16", "tf32", "fp8_e4m3"),
    variants=("nt", "nn"),
    inputs=dict(A="M, K", B=lambda p: "K, N" if p.variant == "nn" else "N, K"),
    outputs=dict(C=lambda p: f"{output_type(p)}: M, N"),
    reference=product,
    scale=product_norms,
    depth=lambda p: p.K,
    unit=lambda p: fp8_unit(p) if is_fp8(p) else 2.0**-22,
    flops=lambda p: 2 * p.M * p.N * p.K,
    bytes=lambda p: BYTES[p.dtype] * (p.M * p.K + p.K * p.N) + (4 if p.dtype == "tf32" else 2) * p.M * p.N,
    samples=lambda p: (dict(A=0, C=0), dict(B=int(p.variant == "nn"), C=1)),
    draw=draw_small,
    peers=("cublas", "cublaslt"),
    shapes=dict(
        emulate=shapes("72x24x528 136x72x80", DIMS),
        check=shapes("512 264x136x80 1x8x16 8x336x80 336x8x144 2056x1288x1008 4096x64x32 129x264x528 77x1792x1552", DIMS),
        bench=shapes("4096 2048 8192 16384 4096x7168x2048 1024 128x7168x2048 64x4096x7168", DIMS),
    ),
)

ops = (tcgemm,)
studies = STUDIES


def check_alignment(p):
    """Raises BadShape where a row of A, B or C is not a multiple of 16 bytes, which wide copies and tensor maps need; or for what cannot be
    multiplied as it lies."""
    size = BYTES[p.dtype]
    if p.variant == "nn" and size != 2:
        raise BadShape(f"{p.dtype} nn: tensor cores turn elements of 16 bits only; transpose B once and take --variant nt")
    rows = {"K": size, "N": 4 if p.dtype == "tf32" else 2}
    for dim, itemsize in rows.items():
        if p[dim] * itemsize % 16:
            raise BadShape(f"{dim}={p[dim]}: rows of {p[dim]} elements of {itemsize} bytes are no multiple of 16 bytes; "
                           f"pad {dim} to a multiple of {16 // itemsize}")


def map_a(p, rows):
    return TensorMap("A", MAPS[p.dtype], (p.K, p.M), (LINE // BYTES[p.dtype], rows), swizzle=LINE)


def map_b(p, columns):
    """B as tiles of `columns` columns: of rows along K, or, where they run along N, of one line of columns each."""
    depth = LINE // BYTES[p.dtype]
    if p.variant == "nn":
        return TensorMap("B", MAPS[p.dtype], (p.N, p.K), (LINE // BYTES[p.dtype], depth), swizzle=LINE)
    return TensorMap("B", MAPS[p.dtype], (p.K, p.N), (depth, columns), swizzle=LINE)


def map_c(p):
    size = 4 if p.dtype == "tf32" else 2
    return TensorMap("C", MAPS[output_type(p)] if size == 2 else "f32", (p.N, p.M), (LINE // size, 64), swizzle=LINE)


def tiles(p, c, m=1, n=1):
    """Tiles of BM x BN that cover C, or groups of m x n such tiles."""
    return cdiv(p.M, c.BM * m) * cdiv(p.N, c.BN * n)


def mma_sync(p):
    """The lowest compute capability whose mma.sync takes the type: fp8 came later."""
    return 89 if is_fp8(p) else 80


@tcgemm.step(1, min_sm=mma_sync, WARPS=4)
def fragments(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=cdiv(p.M, 16) * cdiv(p.N, 8 * c.WARPS), block=32 * c.WARPS, args="A B C M N K")


def warps(c):
    """Threads of a block whose warps own WM x WN each."""
    return c.BM // c.WM * (c.BN // c.WN) * 32


TILE = dict(BM=128, BN=128, WM=64, WN=32, LINE=64)
TUNE = dict(BM=(64, 128, 256), BN=(64, 128, 256), WM=(32, 64), WN=(32, 64), LINE=(64, 128))


@tcgemm.step(2, min_sm=mma_sync, **TILE, tune=TUNE)
def ldmatrix(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=tiles(p, c), block=warps(c), smem=(c.BM + c.BN) * c.LINE, args="A B C M N K")


@tcgemm.step(3, min_sm=mma_sync, **TILE, tune=TUNE)
def swizzled(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=tiles(p, c), block=warps(c), smem=(c.BM + c.BN) * c.LINE, args="A B C M N K")


# Rows of 128 bytes: what cp.async brings of one line of L2 goes to shared memory in one turn
@tcgemm.step(4, min_sm=mma_sync, **TILE | dict(LINE=128), STAGES=3, tune=TUNE | dict(STAGES=(2, 3, 4)))
def multistage(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=tiles(p, c), block=warps(c), smem=c.STAGES * (c.BM + c.BN) * c.LINE, args="A B C M N K")


# fp8's fragments take twice the registers on sm_90, where mma.sync turns them into f16
@tcgemm.step(5, min_sm=mma_sync, BM=128, BN=lambda p: 64 if p.N <= 64 else 128 if is_fp8(p) or p.N <= 128 else 256,
             WM=64, WN=lambda p: 32 if is_fp8(p) else 64, LINE=64, STAGES=4, RASTER=8, BLOCKS=1,
             tune=TUNE | dict(STAGES=(3, 4, 5), RASTER=(4, 8, 16), BLOCKS=(1, 2)))
def fragments_ahead(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=tiles(p, c), block=warps(c), smem=c.STAGES * (c.BM + c.BN) * c.LINE, args="A B C M N K")


HOPPER = dict(min_sm=90, max_sm=90)  # what has wgmma
MULTIPROCESSORS = 132  # of an H200: defaults are what was fastest there


def columns(most):
    """Columns of a tile, as a function of the problem: the most where that still gives half the multiprocessors a tile, else few."""
    return lambda p: most if cdiv(p.M, 128) * cdiv(p.N, most) >= MULTIPROCESSORS // 2 else 128 if p.variant == "nn" else 64


# From here on: BM rows in CONSUMERS warpgroups, BN columns, STAGES slices of LINE bytes of K
def stages(c):
    """Bytes of the stages.  Raises BadConfig for a single one: a slice is given back while the next is multiplied, so that two must fit."""
    if c.STAGES < 2:
        raise BadConfig(f"STAGES={c.STAGES}: at least 2, one to read and one to fill")
    return c.STAGES * (c.BM + c.BN) * LINE


def room(c, beside):
    """Stages for which shared memory has room in each of BLOCKS blocks, beside so many bytes."""
    return (228 * 1024 // c.BLOCKS - 1024 - 512 - beside) // ((c.BM + c.BN) * LINE)


WIDE = dict(BM=128, BN=columns(128), STAGES=4, CONSUMERS=2)
WIDER = WIDE | dict(BN=columns(256))
SIZES = dict(BM=(64, 128, 256), BN=(64, 128, 192, 256), STAGES=(3, 4, 5, 6), CONSUMERS=(1, 2))
SHARED = dict(CLUSTER_M=(1, 2), CLUSTER_N=(1, 2))


@tcgemm.step(6, **HOPPER, **WIDE, tune=SIZES)
def wgmma(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=tiles(p, c), block=128 * c.CONSUMERS, smem=stages(c), args="A B C M N K")


@tcgemm.step(7, **HOPPER, **WIDE, tune=SIZES)
def tma(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=tiles(p, c), block=128 * c.CONSUMERS, smem=stages(c) + 8 * c.STAGES,
                 args=(map_a(p, c.BM), map_b(p, c.BN), "C", "M", "N", "K"))


@tcgemm.step(8, **HOPPER, **WIDER, tune=SIZES)
def specialised(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=tiles(p, c), block=128 * (c.CONSUMERS + 1), smem=stages(c) + 16 * c.STAGES,
                 args=(map_a(p, c.BM), map_b(p, c.BN), "C", "M", "N", "K"))


def shared_launch(p, c, clusters, third, smem, **more):
    """A launch in clusters that share tiles: each block loads its part of A's and of B's."""
    size = c.CLUSTER_M * c.CLUSTER_N
    return Launch("tcgemm", grid=clusters * size, block=128 * (c.CONSUMERS + 1), smem=smem + 16 * c.STAGES,
                  cluster=(size, 1, 1) if size > 1 else None,
                  args=(map_a(p, c.BM // c.CLUSTER_N), map_b(p, c.BN // c.CLUSTER_M), third, "M", "N", "K"), **more)


def workers(p, c):
    """Clusters that stay, of those that the tiles could use."""
    return min(max(1, c.WORKERS // (c.CLUSTER_M * c.CLUSTER_N)), tiles(p, c, c.CLUSTER_M, c.CLUSTER_N))


@tcgemm.step(9, **HOPPER, **WIDER, CLUSTER_M=2, CLUSTER_N=1, tune=SIZES | SHARED)
def multicast(p, c):
    check_alignment(p)
    yield shared_launch(p, c, tiles(p, c, c.CLUSTER_M, c.CLUSTER_N), "C", stages(c))


# WORKERS: blocks that stay, best as many as the device runs at once, or fewer that need as many rounds
@tcgemm.step(10, **HOPPER, **WIDER, CLUSTER_M=2, CLUSTER_N=1, RASTER=8, WORKERS=MULTIPROCESSORS,
             tune=SIZES | SHARED | dict(RASTER=(4, 8, 16), WORKERS=(128, 132)))
def persistent(p, c):
    check_alignment(p)
    yield shared_launch(p, c, workers(p, c), "C", stages(c))


def takes_turns(p):
    """Whether tiles are many and a tile's products short (fp8, or a short K): then one consumer stores while the other multiplies."""
    return int((is_fp8(p) or p.K <= 4096 // BYTES[p.dtype]) and cdiv(p.M, 128) * cdiv(p.N, 256) > MULTIPROCESSORS)


def sharing(of_a):
    """Blocks of a cluster along N, which share rows of A, or along M, which share columns of B: two, one way, as was faster."""
    return lambda p, c: 1 if few_tiles(p, c) or (is_fp8(p) and p.N > p.M) != of_a else 2


def few_tiles(p, c):
    """Whether every tile has a multiprocessor of its own: then clusters start later than they gain."""
    return tiles(p, c) <= MULTIPROCESSORS


def overlapped_launch(p, c):
    return shared_launch(p, c, workers(p, c), map_c(p), stages(c) + c.CONSUMERS * c.STORES * 64 * LINE, early=True)


@tcgemm.step(11, **HOPPER, BM=128, BN=lambda p: 128 if takes_turns(p) else columns(256)(p),
             STAGES=lambda p: 6 if takes_turns(p) else 4, CONSUMERS=2, CLUSTER_M=sharing(of_a=False), CLUSTER_N=sharing(of_a=True),
             RASTER=8, STORES=2, PINGPONG=takes_turns, SKEW=0, WORKERS=MULTIPROCESSORS, zero=("PINGPONG", "SKEW"),
             tune=SIZES | SHARED | dict(RASTER=(4, 8, 16), STORES=(1, 2, 4), PINGPONG=(0, 1), SKEW=(0, 1, 2), WORKERS=(128, 132)))
def overlapped(p, c):
    check_alignment(p)
    yield overlapped_launch(p, c)


def exchanged(c):
    """Bytes that the blocks of a cluster send one of them."""
    return 4 * (c.SPLIT - 1) * c.BM * c.BN // c.SPLIT


def share_of_columns(p, c):
    """Columns of a tile so that the tiles, SPLIT blocks each, just fill the multiprocessors; at least 32, at most 128."""
    unit = 64 if p.variant == "nn" else 8 * c.SPLIT
    across = max(1, MULTIPROCESSORS // (c.SPLIT * cdiv(p.M, c.BM)))
    return min(128, max(cdiv(32, unit), cdiv(cdiv(p.N, across), unit)) * unit)


def split_launch(p, c):
    return Launch("tcgemm", grid=(cdiv(p.M, c.BM) * c.SPLIT, cdiv(p.N, c.BN)), block=128 * (c.CONSUMERS + 1),
                  smem=stages(c) + exchanged(c) + 16 * c.STAGES + 8,
                  cluster=(c.SPLIT, 1, 1) if c.SPLIT > 1 else None, args=(map_a(p, c.BM), map_b(p, c.BN), "C", "M", "N", "K"), early=True)


@tcgemm.step(12, **HOPPER, BM=lambda p: 64 if p.M <= 64 else 128, SPLIT=lambda p: 2 if p.M <= 64 else 1, BN=share_of_columns,
             CONSUMERS=lambda p: 1 if p.M <= 64 else 2, BLOCKS=1, STAGES=lambda p, c: min(16, room(c, exchanged(c))),
             tune=dict(BM=(64, 128), SPLIT=(1, 2, 4), BN=(32, 40, 48, 56, 64, 80, 96, 112, 128), CONSUMERS=(1, 2), BLOCKS=(1, 2)))
def split_k(p, c):
    check_alignment(p)
    yield split_launch(p, c)


@tcgemm.step(13, **HOPPER, dtypes=("bf16", "f16", "tf32"), BM=lambda p: 64 if p.M <= 64 else 128,
             BN=lambda p: 64 if p.N <= 64 else 256, WM=64, WN=64, STAGES=4, RASTER=8, WORKERS=MULTIPROCESSORS, emulate="40x24x528",
             tune=dict(BM=(64, 128, 256), BN=(64, 128, 256), STAGES=(3, 4), RASTER=(4, 8, 16), WORKERS=(128, 132)))
def mma_by_tma(p, c):
    check_alignment(p)
    yield Launch("tcgemm", grid=min(c.WORKERS, tiles(p, c)), block=128 + warps(c), smem=stages(c) + 16 * c.STAGES,
                 args=(map_a(p, c.BM), map_b(p, c.BN), "C", "M", "N", "K"), early=True)
