"""matmul over CuPy matrices: the best step of the product ladders for the device, the type and the shape, on CuPy's current stream.

It never waits for the device, and allocates nothing but its result, what a step needs beside it once a stream, and copies of operands that
do not lie as the step reads them.  The first call at a shape compiles, or takes from the cache.
"""

from cudalab.dtypes import bits, device_dtype, itemsize
from cudalab.errors import LabError
from cudalab.expressions import cdiv
from cudalab.problem import Problem
from cudalab.spec import Step

TYPES = dict(float32=("f32", "tf32"), float16=("f16",), bfloat16=("bf16",), uint8=("fp8_e4m3",))  # CuPy's name -> what it may be read as
RESULTS = dict(f32="f32", tf32="f32", f16="f16", bf16="bf16", fp8_e4m3="bf16")
FEW_TILES = 66  # of 128 x 256: half the multiprocessors of an H200
BLOCK = 128  # of K, and of N, that a scale covers in block scaling


def matmul(a, b, out=None, *, dtype: str | None = None, scales=None, accumulate: str = "promoted"):
    """a (M x K) times b (K x N), CuPy matrices of one type: float32, float16, bfloat16, or uint8 that holds fp8_e4m3; sums are FP32.

    b may be the transpose of a matrix that lies N x K; tf32 and fp8 are fastest so, for else b is copied.  dtype: "tf32" for float32 on
    tensor cores (the low bits of the elements are cut off).  out: where to write, contiguous, of a's type, bfloat16 for fp8.
    scales, fp8 only: (SA, SB), float32: one element each, or SA of K/128 x M and SB of N/128 x K/128, rounded up.
    accumulate, fp8 with one scale each: "fast" leaves sums to the tensor cores, with fewer bits than FP32; "promoted" adds up in FP32.
    Raises LabError for what does not fit together, BadShape where rows are no multiple of 16 bytes, which tensor cores' copies need.
    """
    import cupy
    from cudalab.functions import enqueue
    dtype = _type(a, b, dtype)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise LabError(f"a is {a.shape} and b is {b.shape}: they must be matrices, M x K and K x N")
    (M, K), N = a.shape, b.shape[1]
    result = device_dtype(RESULTS[dtype])
    if out is None:
        out = cupy.empty((M, N), f"u{result.itemsize}").view(result)
    elif out.shape != (M, N) or out.dtype != result or not out.flags.c_contiguous or out.data.ptr % 16:
        raise LabError(f"out is {out.dtype} of {out.shape}: it must be {result} of {(M, N)}, contiguous, from a multiple of 16 bytes on")
    name, variant = kind(dtype, b, scales, accumulate, (M, N, K))
    arrays = dict(A=_packed(a), B=_packed(b if variant in (None, "nn") else b.T), C=out)
    if scales is not None:
        arrays |= dict(zip(("SA", "SB"), map(_packed, scales)))
    enqueue(a, name, (M, N, K), dtype, variant, choose, arrays)
    return out


def kind(dtype: str, b, scales, accumulate: str, sizes: tuple[int, int, int]) -> tuple[str, str | None]:
    """The op and its variant for a type, and for how b lies.  Raises LabError for what does not fit."""
    M, N, K = sizes
    if accumulate not in ("fast", "promoted"):  # whatever the type: a mistyped word would pass until the arrays are fp8
        raise LabError(f"accumulate is 'fast' or 'promoted', not '{accumulate}'")
    if dtype != "fp8_e4m3":
        if scales is not None:
            raise LabError(f"scales are for fp8; these are matrices of {dtype}: multiply the result")
        if dtype == "f32":
            return "sgemm", None
        lies_turned = b.T.flags.c_contiguous and not b.flags.c_contiguous
        return "tcgemm", "nt" if lies_turned or itemsize(dtype) != 2 else "nn"
    if scales is None:
        raise LabError("fp8 needs scales=(SA, SB): one element each, or one for each block; ones where there is nothing to scale")
    if not isinstance(scales, (tuple, list)) or len(scales) != 2 or not all(hasattr(s, "shape") and hasattr(s, "dtype") for s in scales):
        raise LabError("scales is a pair of arrays, (SA, SB)")
    shapes = tuple(tuple(s.shape) for s in scales)
    if all(s.dtype == "float32" for s in scales):
        if shapes == ((cdiv(K, BLOCK), M), (cdiv(N, BLOCK), cdiv(K, BLOCK))):
            return "fp8gemm", "block"
        if all(s.size == 1 for s in scales):
            return "fp8gemm", accumulate
    raise LabError(f"scales of {shapes}: float32, one element each, or {(cdiv(K, BLOCK), M)} and {(cdiv(N, BLOCK), cdiv(K, BLOCK))}")


def choose(problem: Problem, name: str, sm: int) -> Step:
    """The step of an op for a problem on a device of compute capability `sm`.  Raises LabError where none runs there."""
    from cudalab.registry import resolve_step
    few = cdiv(problem.M, 128) * cdiv(problem.N, 256) < FEW_TILES
    ideas = dict(sgemm=("stream_k",), tcgemm=("split_k" if few else "overlapped", "fragments_ahead"),
                 fp8gemm=(("fast_split_k" if few else "fast") if problem.variant == "fast" else "promoted",))
    for idea in ideas[name]:
        step = resolve_step(f"{name}/{idea}")
        if step.runs_on(sm, problem):
            return step
    raise LabError(f"{problem} needs {step.capabilities(problem)}, and this device has {sm / 10}")


def _type(a, b, dtype: str | None) -> str:
    names = TYPES.get(str(a.dtype), ())
    if a.dtype != b.dtype or not names:
        raise LabError(f"a is {a.dtype}, b is {b.dtype}: both must be of one of {', '.join(TYPES)}")
    if dtype is not None and dtype not in names:
        raise LabError(f"an array of {a.dtype} cannot be read as {dtype}, only as {' or '.join(names)}")
    return dtype or names[0]


def _packed(x):
    """The matrix with its rows one behind the other, from a multiple of 16 bytes on: itself where it lies so."""
    import cupy
    raw = bits(x)  # CuPy copies the bits of types that it knows little of
    if not x.flags.c_contiguous:
        return cupy.ascontiguousarray(raw)
    return raw if x.data.ptr % 16 == 0 else raw.copy()
