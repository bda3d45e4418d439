"""Matrix products by cuBLAS (through CuPy's bindings) and by cublasLt (through nvmath-python's): what stands behind two of the peers.

Both count columns first.  A row-major C is the transpose of their C, so our B is their first matrix and our A their second.
"""

import functools
from collections.abc import Callable, Mapping

import numpy as np

from cudalab.errors import LabError
from cudalab.problem import Problem

WORKSPACE = 32 * 2**20  # bytes; what NVIDIA advises for Hopper
CANDIDATES = 10  # how many of cublasLt's heuristics are tried
# cudaDataType by our name; tf32 lies in memory as float32
DATA_TYPES = dict(f32=0, tf32=0, f16=2, bf16=14, fp8_e4m3=28, fp8_e5m2=29)
REAL_32F, COMPUTE_32F, COMPUTE_TF32, DEFAULT_ALGORITHM = 0, 68, 77, -1  # cudaDataType, cublasComputeType_t, cublasGemmAlgo_t


def compute_type(problem: Problem) -> int:
    """cublasComputeType_t: float32 sums; TF32 only where the problem is of that type."""
    return COMPUTE_TF32 if problem.dtype == "tf32" else COMPUTE_32F


def turned(problem: Problem) -> bool:
    """Whether B is N x K and used transposed."""
    return problem.variant not in (None, "nn")


def result_type(problem: Problem) -> int:
    """cudaDataType of C: bf16 where A and B have 8 bits."""
    return DATA_TYPES["bf16" if problem.dtype.startswith("fp8") else problem.dtype]


def gemm(problem: Problem, buffers: Mapping, stream) -> Callable:
    """cublasGemmEx with its default algorithm: C = A·B, or A·B^T."""
    import cupy
    from cupy_backends.cuda.libs import cublas
    M, N, K = problem["M"], problem["N"], problem["K"]
    handle, one, zero = cupy.cuda.device.get_cublas_handle(), np.ones(1, np.float32), np.zeros(1, np.float32)
    A, B, C = (buffers[name].data.ptr for name in "ABC")
    stored = DATA_TYPES[problem.dtype]
    first, second = (B, stored, K if turned(problem) else N), (A, stored, K)  # each with its type and its pitch
    run = functools.partial(cublas.gemmEx, handle, int(turned(problem)), 0, N, M, K, one.ctypes.data, *first, *second, zero.ctypes.data,
                            C, result_type(problem), N, compute_type(problem), DEFAULT_ALGORITHM)

    def call():
        cublas.setStream(handle, stream.ptr)
        run()

    call.kept = one, zero, buffers  # the library reads them through bare addresses
    return call


class Matmul:
    """Row-major C = A·B (or A·B^T) by cublasLt with one of its algorithms; everything that is not the pointers, made once a problem.

    Scales of fp8: variant "fast" and "promoted" take one for A and one for B (buffers SA, SB), the first with fast accumulation; "block"
    one for each row and 128 of K of A, and for each 128 x 128 of B.
    """

    def __init__(self, problem: Problem, stream):
        import cupy
        from nvmath.bindings import cublasLt as lt
        M, N, K = problem["M"], problem["N"], problem["K"]
        self.lt, self.stream, self.problem = lt, stream, problem
        self.handle = lt.create()
        stored = DATA_TYPES[problem.dtype]
        b = (K, N) if turned(problem) else (N, K)  # rows as the library counts, columns
        sizes = ((stored, *b), (stored, K, M), (result_type(problem), N, M))
        self.layouts = tuple(lt.matrix_layout_create(dtype, rows, cols, rows) for dtype, rows, cols in sizes)
        self.one, self.zero = np.ones(1, np.float32), np.zeros(1, np.float32)
        self.workspace = cupy.empty(WORKSPACE, np.uint8)
        self.results, self.best = None, None

    def call(self, buffers: Mapping, index: int) -> Callable:
        desc = self._describe_product(buffers)
        (b, a, c), A, B, C = self.layouts, buffers["A"].data.ptr, buffers["B"].data.ptr, buffers["C"].data.ptr
        call = functools.partial(self.lt.matmul, self.handle, desc, self.one.ctypes.data, B, b, A, a, self.zero.ctypes.data, C, c, C, c,
                                 self._algorithm(index), self.workspace.data.ptr, WORKSPACE, self.stream.ptr)
        call.kept = self, buffers  # the library reads them through bare addresses
        return call

    def choose(self, buffers: Mapping) -> int:
        """The fastest of the candidates, each timed once warm.  Raises LabError where there are none."""
        if self.best is None:
            self._ask(self._describe_product(buffers))
            self.best = min(range(self.count), key=lambda i: _seconds(self.call(buffers, i), self.stream))
        return self.best

    def describe(self, index: int) -> str:
        attribute, value, written, words = self.lt.MatmulAlgoConfigAttribute, np.zeros(1, np.int32), np.zeros(1, np.uint64), []
        for label, which in (("algorithm", attribute.ID), ("tile", attribute.TILE_ID), ("stages", attribute.STAGES_ID),
                             ("split-K", attribute.SPLITK_NUM)):
            self.lt.matmul_algo_config_get_attribute(self._algorithm(index), which, value.ctypes.data, value.nbytes, written.ctypes.data)
            words.append(f"{label} {value[0]}")
        return f"candidate {index} of {self.count}: {', '.join(words)}"

    def _ask(self, desc) -> None:
        """Let the library name its candidates."""
        lt, (b, a, c) = self.lt, self.layouts
        self.results = np.zeros(CANDIDATES, lt.matmul_heuristic_result_dtype)
        preference, size, count = lt.matmul_preference_create(), np.array([WORKSPACE], np.uint64), np.zeros(1, np.int32)
        lt.matmul_preference_set_attribute(preference, lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES, size.ctypes.data, size.nbytes)
        try:
            lt.matmul_algo_get_heuristic(self.handle, desc, b, a, c, c, preference, CANDIDATES, self.results.ctypes.data, count.ctypes.data)
        except Exception as error:
            if type(error).__name__ != "cuBLASLtError":
                raise
        lt.matmul_preference_destroy(preference)
        if not count[0]:
            raise LabError(f"cublasLt has no algorithm for {self.problem}: leave it away with --peer cublas, or take another shape")
        self.count = int(count[0])

    def _describe_product(self, buffers: Mapping):
        lt, problem = self.lt, self.problem
        attribute, desc = lt.MatmulDescAttribute, lt.matmul_desc_create(compute_type(problem), REAL_32F)

        def set_attribute(which, value, dtype):
            held = np.array([value], dtype)
            lt.matmul_desc_set_attribute(desc, which, held.ctypes.data, held.nbytes)

        if turned(problem):
            set_attribute(attribute.TRANSA, 1, np.int32)
        if "SA" in buffers:
            set_attribute(attribute.A_SCALE_POINTER, buffers["SB"].data.ptr, np.uint64)
            set_attribute(attribute.B_SCALE_POINTER, buffers["SA"].data.ptr, np.uint64)
            if problem.variant == "block":
                set_attribute(attribute.A_SCALE_MODE, lt.MatmulMatrixScale.BLK128x128_32F, np.int32)
                set_attribute(attribute.B_SCALE_MODE, lt.MatmulMatrixScale.VEC128_32F, np.int32)
        if problem.variant == "fast":
            set_attribute(attribute.FAST_ACCUM, 1, np.int8)
        return desc

    def _algorithm(self, index: int) -> int:
        return self.results.ctypes.data + index * self.results.itemsize  # the algorithm is the result's first member


_matmuls: dict[tuple, Matmul] = {}  # one problem's rotating sets share the layouts, the workspace and the choice


def matmul(problem: Problem, buffers: Mapping, stream) -> Callable:
    """The fastest of cublasLt's first candidates."""
    key = problem, problem.kind, stream.ptr
    if key not in _matmuls:
        _matmuls.clear()
        _matmuls[key] = Matmul(problem, stream)
    product = _matmuls[key]
    index = product.choose(buffers)
    call = product.call(buffers, index)
    call.note = product.describe(index)
    return call


def _seconds(call: Callable, stream, calls: int = 5) -> float:
    """The least time of a call, by events, inputs warm: good enough to rank; infinite where the library refuses the algorithm."""
    import cupy
    best = float("inf")
    try:
        call()
        for _ in range(3):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            for _ in range(calls):
                call()
            end.record(stream)
            end.synchronize()
            best = min(best, cupy.cuda.get_elapsed_time(start, end) / 1e3 / calls)
    except Exception as error:
        if type(error).__name__ != "cuBLASLtError":
            raise
    return best
