"""Part 5: a fast FP32 matrix multiply, step by step past cuBLAS."""

import math

from cudalab.errors import BadConfig
from cudalab.expressions import cdiv
from cudalab.spec import Launch, Op, shapes

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
        emulate=shapes("257x130x70 1x1x1", DIMS),
        check=shapes("512 257x130x70 1x1x1 1x333x77 333x1x129 128x128x1 1000x1000x1000 129x255x513 4096x64x32 64x4096x33", DIMS),
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
