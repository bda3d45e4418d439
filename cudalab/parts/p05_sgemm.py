"""Part 5: a fast FP32 matrix multiply, step by step past cuBLAS."""

import math

from cudalab.errors import BadConfig
from cudalab.expressions import cdiv
from cudalab.spec import Launch, Op, i32, scratch, shapes, state

TITLE = "a fast FP32 matmul, step by step past cuBLAS"
DIMS = ("M", "N", "K")


def norms_product(A, B):
    """Per element of A·B, the product of the norms of its row of A and its column of B: no sum of its terms is larger."""
    return (A * A).sum(axis=1)[:, None] ** 0.5 * (B * B).sum(axis=0)[None, :] ** 0.5


sgemm = Op(
    "sgemm",
    title="C = A·B in FP32, row-major, without TF32",
    dims=DIMS,
    inputs=dict(A="M, K", B="K, N"),
    outputs=dict(C="M, N"),
    reference=lambda A, B: A @ B,
    scale=norms_product,
    depth=lambda p: p.K,
    flops=lambda p: 2 * p.M * p.N * p.K,
    bytes=lambda p: 4 * (p.M * p.K + p.K * p.N + p.M * p.N),
    samples=(dict(A=0, C=0), dict(B=1, C=1)),
    peers=("cublas", "cublaslt"),
    shapes=dict(
        emulate=shapes("130x260x66 1x1x1", DIMS),
        check=shapes("512 257x130x70 1x1x1 1x333x77 333x1x129 128x128x1 1000 129x255x513 4096x64x32 64x4096x33 1537x1793x65", DIMS),
        bench=shapes("4096 2048 8192 4096x4096x1024 8192x1024x4096 4095x4097x4093 1024 1000", DIMS),
    ),
)

ops = (sgemm,)


def tiles(p, c):
    """Blocks that cover C, one a BM x BN tile, numbered along its rows; in one dimension, whose limit no shape reaches."""
    return cdiv(p.M, c.BM) * cdiv(p.N, c.BN)


def rows_of(dim):
    """Floats that one instruction may move along rows of length `dim`, as a function of the problem: as many as stay aligned."""
    return lambda p: math.gcd(p[dim], 4)


def check_vectors(p, c):
    """Raises BadConfig where VEC_K or VEC_N was set to more floats than rows of that length keep aligned."""
    for name in ("VEC_K", "VEC_N"):
        dim = name[-1]
        if name in c and (c[name] not in (1, 2, 4) or p[dim] % c[name]):
            raise BadConfig(f"{name}={c[name]}: rows of {dim}={p[dim]} floats can move {math.gcd(p[dim], 4)} at once, or fewer: 1, 2 or 4")


@sgemm.step(1, BM=32, BN=32)
def naive(p, c):
    yield Launch("sgemm", grid=tiles(p, c), block=c.BM * c.BN, args="A B C M N K")


@sgemm.step(2, BM=32, BN=32)
def coalesced(p, c):
    yield Launch("sgemm", grid=tiles(p, c), block=c.BM * c.BN, args="A B C M N K")


@sgemm.step(3, BM=32, BN=32, BK=32)
def shared_tile(p, c):
    yield Launch("sgemm", grid=tiles(p, c), block=c.BM * c.BN, args="A B C M N K")


@sgemm.step(4, BM=64, BN=64, BK=16, TM=8, tune=dict(BM=(64, 128), BN=(64, 128), BK=(8, 16, 32), TM=(8, 16)))
def blocktile_1d(p, c):
    yield Launch("sgemm", grid=tiles(p, c), block=c.BM // c.TM * c.BN, args="A B C M N K")


@sgemm.step(5, BM=128, BN=128, BK=8, TM=8, TN=8, BLOCKS=2,
            tune=dict(BM=(64, 128), BN=(64, 128), BK=(8, 16), TM=(4, 8), TN=(4, 8), BLOCKS=(1, 2)))
def blocktile_2d(p, c):
    yield Launch("sgemm", grid=tiles(p, c), block=(c.BM // c.TM) * (c.BN // c.TN), args="A B C M N K")


@sgemm.step(6, BM=128, BN=128, BK=16, TM=8, TN=8, BLOCKS=2, VEC_K=rows_of("K"), VEC_N=rows_of("N"),
            tune=dict(BM=(64, 128), BN=(64, 128), BK=(8, 16), TM=(4, 8), TN=(4, 8), BLOCKS=(1, 2)))
def vectorised(p, c):
    check_vectors(p, c)
    yield Launch("sgemm", grid=tiles(p, c), block=(c.BM // c.TM) * (c.BN // c.TN), args="A B C M N K")


@sgemm.step(7, BM=128, BN=128, BK=16, TM=8, TN=8, BLOCKS=2, VEC_K=rows_of("K"), VEC_N=rows_of("N"),
            tune=dict(BM=(64, 128), BN=(64, 128, 256), BK=(8, 16), TM=(8, 16), TN=(4, 8), BLOCKS=(1, 2)))
def warptile(p, c):
    check_vectors(p, c)
    yield Launch("sgemm", grid=tiles(p, c), block=(c.BM // c.TM) * (c.BN // c.TN), args="A B C M N K")


@sgemm.step(8, BM=128, BN=128, BK=8, TM=8, TN=8, STAGES=4, BLOCKS=2, VEC_N=rows_of("N"),
            tune=dict(BM=(64, 128), BN=(64, 128, 256), BK=(8, 16), TM=(8, 16), TN=(4, 8), STAGES=(3, 4), BLOCKS=(1, 2)))
def pipelined(p, c):
    check_vectors(p, c)
    yield Launch("sgemm", grid=tiles(p, c), block=(c.BM // c.TM) * (c.BN // c.TN), smem=4 * c.STAGES * c.BK * (c.BM + c.BN),
                 args="A B C M N K")


@sgemm.step(9, BM=128, BN=128, BK=8, TM=8, TN=8, STAGES=4, BLOCKS=2, RASTER=8, VEC_N=rows_of("N"),
            tune=dict(BM=(64, 128), BN=(64, 128, 256), BK=(8, 16), TM=(8, 16), TN=(4, 8), STAGES=(3, 4), BLOCKS=(1, 2)))
def conflict_free(p, c):
    check_vectors(p, c)
    yield Launch("sgemm", grid=tiles(p, c), block=(c.BM // c.TM) * (c.BN // c.TN), smem=4 * c.STAGES * c.BK * (c.BM + 4 + c.BN),
                 args="A B C M N K")


# From step 10 on the compiler's choice of registers decides, and small changes of the schedule (LEAD, SPACING, COPY_AT, PINNED)
# move it: `tune` draws from them.
SCHEDULE = dict(LEAD=(0, 2, 4, 8, 12, 16, 24), SPACING=(1, 2, 4, 8, 12, 16), COPY_AT=(0, 1, 2, 3, 4, 5), PINNED=(2, 4, 8), STAGES=(3, 4, 5))


def ragged(p):
    """1 where K or N may end inside a slice or a tile, so that copies need a guard."""
    return int(p.K % 32 != 0 or p.N % 256 != 0)


def check_ragged(c, k, depth, columns):
    """Raises BadConfig where RAGGED=0 would read past the edge of A or B, of which `k` and `columns` are in tiles."""
    if not c.RAGGED and (k % depth or columns % c.BN):
        raise BadConfig(f"RAGGED=0: K={k} and {columns} columns do not end with a slice of {depth} and a tile of {c.BN}; set RAGGED=1")


def shared_bytes(c, slices=1, apart=False):
    """Dynamic shared memory of steps 10 to 12: the stages and, in the same room or apart, what the end needs (sums, rows)."""
    threads = (c.BM // c.TM) * (c.BN // c.TN) * slices
    stages, sums, rows = c.STAGES * c.BK * slices * (c.BM + 4 + c.BN), slices * c.TN * threads, threads // 32 * 4 * (8 * c.TN + 1)
    return 4 * (stages + rows if apart else max(stages, rows, sums if slices > 1 else 0))


@sgemm.step(10, BM=128, BN=256, BK=8, TM=8, TN=16, STAGES=4, BLOCKS=1, RASTER=8, LEAD=0, SPACING=1, COPY_AT=0, PINNED=4,
            VEC_N=rows_of("N"), RAGGED=ragged, tune=SCHEDULE, zero=("RAGGED",), emulate="130x260x66 1x4x1")
def register_banks(p, c):
    check_vectors(p, c)
    check_ragged(c, p.K, c.BK, p.N)
    yield Launch("sgemm", grid=tiles(p, c), block=(c.BM // c.TM) * (c.BN // c.TN), smem=shared_bytes(c), args="A B C M N K")


def few_tiles(small, large):
    """A tunable that is `small` where tiles of 128 x 256 would leave most multiprocessors of a large device idle, else `large`."""
    return lambda p: small if p.M * p.N <= 1536 * 1536 else large


# the shape of a tile: shared K and small tiles where C is small
TILE = dict(BM=few_tiles(64, 128), BN=few_tiles(128, 256), BK=few_tiles(4, 8), SLICES=few_tiles(4, 1), STAGES=few_tiles(5, 4))


@sgemm.step(11, **TILE, TM=8, TN=16, BLOCKS=1, RASTER=8, LEAD=0, SPACING=1, COPY_AT=0, PINNED=4,
            VEC_N=rows_of("N"), RAGGED=ragged, tune=SCHEDULE, zero=("RAGGED",), emulate="67x131x163 1x1x1")
def sliced_k(p, c):
    check_vectors(p, c)
    check_ragged(c, p.K, c.BK * c.SLICES, p.N)
    yield Launch("sgemm", grid=tiles(p, c), block=(c.BM // c.TM) * (c.BN // c.TN) * c.SLICES, smem=shared_bytes(c, c.SLICES),
                 args="A B C M N K")


def in_tiles(p, c):
    """(k, columns) that step 12 works on in tiles: with ALIGN, k goes on with zeros to a whole slice, and the few columns past the last
    full tile are left to the kernel that aligns A."""
    depth = c.BK * c.SLICES
    few = c.ALIGN and p.N > c.BN and p.N % c.BN <= c.FRINGE
    return (cdiv(p.K, depth) * depth if c.ALIGN else p.K), p.N - few * (p.N % c.BN)


def ragged_in_tiles(p, c):
    k, columns = in_tiles(p, c)
    return int(k % (c.BK * c.SLICES) != 0 or columns % c.BN != 0)


# WORKERS: blocks that stay for the whole product, best as many as the device runs at once (132 multiprocessors on an H200); 0: one
# a tile.  ALIGN=1: A and B are copied first to where rows start at multiples of 16 bytes, which costs about as much as 50 rows and
# 50 columns of C.  FRINGE: with it, as many columns past the last full tile are no tile's.
@sgemm.step(12, **TILE, TM=8, TN=16, BLOCKS=1, RASTER=8, LEAD=24, SPACING=few_tiles(4, 1), COPY_AT=few_tiles(0, 3), PINNED=2,
            ALIGN=lambda p: int(min(p.M, p.N) >= 1024 and (p.N % 4 != 0 or p.N % 256 in (1, 2, 3, 4))), FRINGE=4,
            VEC_N=lambda p, c: 4 if c.ALIGN else math.gcd(p.N, 4), RAGGED=ragged_in_tiles, WORKERS=few_tiles(0, 132), tune=SCHEDULE,
            zero=("ALIGN", "RAGGED", "WORKERS", "FRINGE"), emulate="66x130x162 1x2x1")
def stream_k(p, c):
    (k, columns), depth = in_tiles(p, c), c.BK * c.SLICES
    pitch = cdiv(columns, 4) * 4 if c.ALIGN else p.N  # floats from one row of B to the next
    if c.VEC_N not in (1, 2, 4) or pitch % c.VEC_N:
        raise BadConfig(f"VEC_N={c.VEC_N}: rows of {pitch} floats can move {math.gcd(pitch, 4)} at once, or fewer: 1, 2 or 4")
    check_ragged(c, k, depth, columns)
    tiles_of_c = cdiv(p.M, c.BM) * cdiv(columns, c.BN)
    workers = min(c.WORKERS, tiles_of_c * cdiv(k, depth)) or tiles_of_c
    yield scratch("partial", (workers, c.BM, c.BN))
    yield state("flags", (workers,), "i32")
    A, B = "A", "B"
    if c.ALIGN:
        A, B = "aligned_a", "aligned_b"
        yield scratch(A, (p.M, k))
        yield scratch(B, (k, pitch))
        yield scratch("edge", (max(1, p.N - columns), p.K))
        yield Launch("sgemm_align_b", grid=k, block=256, args=("B", B, "edge", "N", "K", i32(columns), i32(pitch)))
        yield Launch("sgemm_align_a", grid=p.M, block=256, args=("A", "edge", A, "C", "N", "K", i32(columns), i32(k)))
    yield Launch("sgemm", grid=workers, block=(c.BM // c.TM) * (c.BN // c.TN) * c.SLICES,
                 smem=shared_bytes(c, c.SLICES, apart=c.SLICES == 1),
                 args=(A, B, "C", "partial", "flags", "M", "N", i32(k), i32(columns), i32(pitch)), early=True)
