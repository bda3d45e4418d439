"""Part 6, FP8: e4m3 products with scales, from the fastest accumulation to sums promoted to FP32."""

from cudalab.errors import BadConfig
from cudalab.expressions import cdiv
from cudalab.parts import p06_tcgemm as bf16
from cudalab.parts.p05_sgemm import DIMS
from cudalab.parts.p06_tcgemm import HOPPER, MULTIPROCESSORS, check_alignment, norms_product, shared_launch, stages, workers
from cudalab.spec import Launch, Op, shapes

TITLE = "FP8 matrix products with scales"
BLOCK = 128  # of K, and of N, that a scale covers in block scaling


def scaled(A, B, SA, SB, p):
    """What A and B stand for: their elements times their scales."""
    if p.variant != "block":
        return A * SA[0], B * SB[0]
    K = A.shape[1]
    return A * SA.T.repeat(BLOCK, axis=1)[:, :K], B * SB.repeat(BLOCK, axis=0)[:len(B)].repeat(BLOCK, axis=1)[:, :K]


def product(A, B, SA, SB, p):
    A, B = scaled(A, B, SA, SB, p)
    return A @ B.T


def product_norms(A, B, SA, SB, p):
    A, B = scaled(A, B, SA, SB, p)
    return norms_product(A, B.T)


def unit(p):
    """Of sums kept with 13 fraction bits over all of K, or over one block at a time: then their errors are as independent as the blocks."""
    return bf16.fp8_unit(p) * (1 if p.variant == "fast" else min(1, 4 / cdiv(p.K, BLOCK) ** 0.5))


def draw(tensor, problem, kind, rng):
    """Elements as for any op, small where sums must be exact; scales around 1, powers of two where products must be exact."""
    if tensor.name in ("A", "B"):
        return bf16.draw_small(tensor, problem, kind, rng)
    if kind == "integers":
        return 2.0 ** (rng.integers(0, 3, tensor.shape, dtype="int32") - 1)
    return 0.5 + rng.standard_normal(tensor.shape, dtype="float32") ** 2


fp8gemm = Op(
    "fp8gemm",
    title="C = (A·SA)·(B·SB)^T of e4m3: one scale each, or one for every 1x128 of A and 128x128 of B",
    dims=DIMS,
    dtypes=("fp8_e4m3",),
    variants=("fast", "promoted", "block"),
    inputs=dict(A="M, K", B="N, K", SA=lambda p: "f32: cdiv(K, 128), M" if p.variant == "block" else "f32: 1",
                SB=lambda p: "f32: cdiv(N, 128), cdiv(K, 128)" if p.variant == "block" else "f32: 1"),
    outputs=dict(C="bf16: M, N"),
    reference=product,
    scale=product_norms,
    depth=lambda p: p.K,
    unit=unit,
    flops=lambda p: 2 * p.M * p.N * p.K,
    bytes=lambda p: p.M * p.K + p.K * p.N + 2 * p.M * p.N,
    samples=lambda p: (dict(A=0, SA=1, C=0),) if p.variant == "block" else (dict(A=0, C=0), dict(B=0, C=1)),
    draw=draw,
    peers=("cublaslt",),
    shapes=dict(
        emulate=shapes("72x24x1040 136x72x144 77x24x272", DIMS),
        check=shapes("512 264x136x80 1x8x16 8x336x80 336x8x144 2056x1288x1008 129x264x1040 77x1792x1552", DIMS),
        bench=shapes("4096 2048 8192 16384 4096x7168x2048 1024 128x7168x2048 64x4096x7168", DIMS),
    ),
)

ops = (fp8gemm,)


def with_scales(launch):
    """The launch with the scales behind the three matrices."""
    return Launch(**{**vars(launch), "entry": "fp8gemm", "args": (*launch.args[:3], "SA", "SB", *launch.args[3:])})


@fp8gemm.step(1, **HOPPER, variants=("fast",), **bf16.overlapped.tunables, zero=bf16.overlapped.zero, tune=bf16.overlapped.tune)
def fast(p, c):
    check_alignment(p)
    yield with_scales(bf16.overlapped_launch(p, c))


@fp8gemm.step(2, **HOPPER, variants=("fast",), **bf16.split_k.tunables, tune=bf16.split_k.tune)
def fast_split_k(p, c):
    check_alignment(p)
    yield with_scales(bf16.split_launch(p, c))


def rows_of_tile(p):
    """What a small M needs; else 128 where tiles of 256 x 64 would leave half the multiprocessors without one."""
    few = cdiv(p.M, 256) * cdiv(p.N, 64) <= MULTIPROCESSORS // 2
    return 64 if p.M <= 64 else 128 if p.M <= 128 or few else 256


def bytes_of_scales(c):
    """Of a slice: for each row of the tile, behind up to three with which a copy must begin, and that of B."""
    if c.BM < 64:
        raise BadConfig(f"BM={c.BM}: at least 64, the rows of an instruction")
    return 4 * c.BM + 32


def stages_that_fit(p, c):
    """Slices on their way, with their scales and two barriers each: what shared memory has room for, twelve at most."""
    return max(2, min(12, (227 * 1024 - 512) // ((c.BM + c.BN) * bf16.LINE + bytes_of_scales(c) + 16)))


@fp8gemm.step(3, **HOPPER, variants=("promoted", "block"), BM=rows_of_tile, BN=lambda p: min(128, bf16.columns(128)(p)),
              CONSUMERS=lambda p, c: min(2, c.BM // 64), STAGES=stages_that_fit, CLUSTER_M=1, CLUSTER_N=1, RASTER=8,
              WORKERS=MULTIPROCESSORS, PACE=21, zero=("PACE",), emulate="72x24x1040 136x72x144 77x24x1808",
              tune=dict(BM=(64, 128, 256), BN=(64, 128), STAGES=(3, 4, 5, 6, 9, 12), RASTER=(4, 8, 16), WORKERS=(128, 132),
                        PACE=(0, 21)) | bf16.SHARED)
def promoted(p, c):
    check_alignment(p)
    yield with_scales(shared_launch(p, c, workers(p, c), "C", stages(c) + c.STAGES * bytes_of_scales(c), early=True))
