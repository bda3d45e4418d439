"""Part 5: a fast FP32 matrix multiply, step by step past cuBLAS."""

import numpy as np

from cudalab.expressions import cdiv
from cudalab.spec import Launch, Op, shapes

TITLE = "a fast FP32 matmul, step by step past cuBLAS"
DIMS = ("M", "N", "K")


def norms_product(A, B):
    """Per element of A·B, the product of the norms of its row of A and its column of B: no sum of its terms is larger."""
    return np.sqrt((A * A).sum(axis=1))[:, None] * np.sqrt((B * B).sum(axis=0))[None, :]


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


@sgemm.step(1, BLOCK=256)
def naive(p, c):
    yield Launch("sgemm", grid=cdiv(p.M * p.N, c.BLOCK), block=c.BLOCK, args="A B C M N K")


@sgemm.step(5, BM=128, BN=128, BK=8, TM=8, TN=8)
def blocktile_2d(p, c):
    yield Launch("sgemm", grid=(cdiv(p.N, c.BN), cdiv(p.M, c.BM)), block=c.BM * c.BN // (c.TM * c.TN), args="A B C M N K")
