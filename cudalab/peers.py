"""What a step is compared with: cuBLAS, the best that cublasLt offers, or a function from a user's own file.

A peer gets the same arrays as the step, with outputs of its own, and must not allocate once it is prepared.
"""

import functools
import importlib.machinery
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cudalab.errors import LabError, UnknownName
from cudalab.installed import cure
from cudalab.problem import Problem

WORKSPACE = 32 * 2**20  # bytes; what NVIDIA advises for Hopper
CANDIDATES = 10  # how many of cublasLt's heuristics are tried


@dataclass(frozen=True)
class Peer:
    """prepare(problem, buffers: tensor name -> CuPy array, stream) -> a call that enqueues the work; it may have an attribute `note` (what
    was chosen).  missing() -> None, or why it cannot run and what installs it.  version() -> text.  ops: names, empty for any.
    computes: False for what only moves the bytes, a roof measured in the same run: its result is not looked at."""

    name: str
    title: str
    ops: tuple[str, ...]
    prepare: Callable[[Problem, Mapping, object], Callable[[], None]]
    missing: Callable[[], str | None]
    version: Callable[[], str]
    computes: bool = True


def find_peer(text: str) -> Peer:
    """The peer of that name, or the one in FILE.py:NAME.  Raises UnknownName."""
    if ":" in text:
        return load_peer(text)
    if text not in PEERS:
        raise UnknownName(f"no peer is called '{text}'; there are {', '.join(PEERS)}, or your own as FILE.py:NAME")
    return PEERS[text]


def load_peer(text: str) -> Peer:
    """A user's peer: FILE.py:NAME, where NAME(problem, buffers) returns a zero-argument call that enqueues on CuPy's current stream.

    Raises LabError where the file or the name is not there, or the file does not import.
    """
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise LabError(f"--peer {text}: there is no file '{file}'; write FILE.py:NAME")
    loader = importlib.machinery.SourceFileLoader(f"cudalab_peer_{path.stem}", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's own code: whatever it raises is what they need to see
        raise LabError(f"--peer {text}: {file} does not import: {type(error).__name__}: {' '.join(str(error).split())}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise LabError(f"--peer {text}: {file} has no function '{name}'; it has {', '.join(known) or 'none'}")
    return Peer(f"{path.name}:{name}", f"{name} of {file}", (), lambda problem, buffers, stream: _on(stream, function(problem, buffers)),
                lambda: None, lambda: "")


def _on(stream, call: Callable) -> Callable:
    if not callable(call):
        raise LabError(f"the peer's function returned {type(call).__name__}; it must return a zero-argument call that enqueues the work")
    return call


# -- cuBLAS through CuPy

def _cublas_missing() -> str | None:
    try:
        from cupy_backends.cuda.libs import cublas  # noqa: F401  CuPy loads the library here
    except ImportError as error:
        return f"cuBLAS is not there ({str(error).strip().splitlines()[0]}): {cure(gpu=True)}"
    return None


def _cublas_version() -> str:
    import cupy
    from cupy_backends.cuda.libs import cublas
    return f"cuBLAS {cublas.getVersion(cupy.cuda.device.get_cublas_handle())}"


def _cublas(problem: Problem, buffers: Mapping, stream) -> Callable:
    import cupy
    from cupy._core import _routines_linalg as linalg
    # $CUPY_TF32 would turn the peer into another computation: FP32 is compared with FP32
    linalg.set_compute_type(np.float32, linalg.COMPUTE_TYPE_DEFAULT)
    return functools.partial(cupy.matmul, buffers["A"], buffers["B"], out=buffers["C"])


# -- cublasLt through nvmath-python

COMPUTE_32F, REAL_32F = 68, 0  # cublasComputeType_t CUBLAS_COMPUTE_32F (no TF32), cudaDataType CUDA_R_32F


def _cublaslt_missing() -> str | None:
    try:
        from nvmath.bindings import cublasLt
        cublasLt.get_version()
    except ImportError:
        return 'nvmath-python is not installed: pip install -e ".[peers]"'
    except Exception as error:  # its loader raises several types where the library is not found
        return f"cublasLt does not load ({str(error).strip().splitlines()[0]}): {cure(gpu=True)}"
    return None


def _cublaslt_version() -> str:
    from nvmath.bindings import cublasLt
    return f"cublasLt {cublasLt.get_version()}"


class _Matmul:
    """Row-major C = A·B in FP32 by cublasLt with one of its algorithms; everything that is not the pointers, made once a problem."""

    def __init__(self, problem: Problem, stream):
        import cupy
        from nvmath.bindings import cublasLt as lt
        M, N, K = problem["M"], problem["N"], problem["K"]
        self.lt, self.stream = lt, stream
        self.handle = lt.create()
        self.desc = lt.matmul_desc_create(COMPUTE_32F, REAL_32F)
        # cuBLAS counts columns first: a row-major C is the transpose of its C, so B comes first and A second, neither transposed
        self.layouts = tuple(lt.matrix_layout_create(REAL_32F, rows, cols, rows) for rows, cols in ((N, K), (K, M), (N, M)))
        self.one, self.zero = np.ones(1, np.float32), np.zeros(1, np.float32)
        self.workspace = cupy.empty(WORKSPACE, np.uint8)
        self.results = np.zeros(CANDIDATES, lt.matmul_heuristic_result_dtype)
        preference, size, count = lt.matmul_preference_create(), np.array([WORKSPACE], np.uint64), np.zeros(1, np.int32)
        lt.matmul_preference_set_attribute(preference, lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES, size.ctypes.data, size.nbytes)
        b, a, c = self.layouts
        lt.matmul_algo_get_heuristic(self.handle, self.desc, b, a, c, c, preference, CANDIDATES, self.results.ctypes.data,
                                     count.ctypes.data)
        lt.matmul_preference_destroy(preference)
        if not count[0]:
            raise LabError(f"cublasLt has no algorithm for {problem}")
        self.count, self.best = int(count[0]), None

    def call(self, buffers: Mapping, index: int) -> Callable:
        (b, a, c), A, B, C = self.layouts, buffers["A"].data.ptr, buffers["B"].data.ptr, buffers["C"].data.ptr
        call = functools.partial(self.lt.matmul, self.handle, self.desc, self.one.ctypes.data, B, b, A, a,
                                 self.zero.ctypes.data, C, c, C, c, self._algorithm(index), self.workspace.data.ptr, WORKSPACE,
                                 self.stream.ptr)
        call.kept = self, buffers  # the library reads them through bare addresses
        return call

    def choose(self, buffers: Mapping) -> int:
        """The fastest of the candidates, each timed once warm."""
        if self.best is None:
            self.best = min(range(self.count), key=lambda i: _seconds(self.call(buffers, i), self.stream))
        return self.best

    def describe(self, index: int) -> str:
        attribute, value, written, words = self.lt.MatmulAlgoConfigAttribute, np.zeros(1, np.int32), np.zeros(1, np.uint64), []
        for label, which in (("algorithm", attribute.ID), ("tile", attribute.TILE_ID), ("stages", attribute.STAGES_ID),
                             ("split-K", attribute.SPLITK_NUM)):
            self.lt.matmul_algo_config_get_attribute(self._algorithm(index), which, value.ctypes.data, value.nbytes, written.ctypes.data)
            words.append(f"{label} {value[0]}")
        return f"candidate {index} of {self.count}: {', '.join(words)}"

    def _algorithm(self, index: int) -> int:
        return self.results.ctypes.data + index * self.results.itemsize  # the algorithm is the result's first member


_matmuls: dict[tuple, _Matmul] = {}  # one problem's rotating sets share the descriptors, the workspace and the choice


def _cublaslt(problem: Problem, buffers: Mapping, stream) -> Callable:
    if (problem, stream.ptr) not in _matmuls:
        _matmuls.clear()
        _matmuls[problem, stream.ptr] = _Matmul(problem, stream)
    matmul = _matmuls[problem, stream.ptr]
    index = matmul.choose(buffers)
    call = matmul.call(buffers, index)
    call.note = matmul.describe(index)
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


PEERS: dict[str, Peer] = {peer.name: peer for peer in (
    Peer("cublas", "cuBLAS FP32 through CuPy's matmul(out=), TF32 off", ("sgemm",), _cublas, _cublas_missing, _cublas_version),
    Peer("cublaslt", f"the fastest of cublasLt's first {CANDIDATES} heuristics, FP32, TF32 off", ("sgemm",),
         _cublaslt, _cublaslt_missing, _cublaslt_version),
)}
