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
from cudalab.peers import cublaslt, traffic
from cudalab.problem import Problem


@dataclass(frozen=True)
class Peer:
    """prepare(problem, buffers: tensor name -> CuPy array, stream) -> a call that enqueues the work; it may have an attribute `note` (what
    was chosen); LabError for a problem that it cannot do.  missing() -> None, or why it cannot run and what installs it.
    version() -> text.  ops: names, empty for any.  computes: False for what only moves the same bytes: nobody looks at its result."""

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
    if problem.dtype != "f32":  # CuPy's own matmul takes neither its transpose in place nor bf16
        return cublaslt.gemm(problem, buffers, stream)
    import cupy
    from cupy._core import _routines_linalg as linalg
    # $CUPY_TF32 would turn the peer into another computation: FP32 is compared with FP32
    linalg.set_compute_type(np.float32, linalg.COMPUTE_TYPE_DEFAULT)
    return functools.partial(cupy.matmul, buffers["A"], buffers["B"], out=buffers["C"])


# -- CuPy's own kernels

def _cupy_missing() -> str | None:
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        return f"CuPy does not import ({str(error).strip().splitlines()[0]}): {cure(gpu=True)}"
    return None


def _cupy_version() -> str:
    import cupy
    return f"CuPy {cupy.__version__}"


def _cupy_add(problem: Problem, buffers: Mapping, stream) -> Callable:
    import cupy
    return functools.partial(cupy.add, buffers["A"], buffers["B"], out=buffers["C"])


# -- cublasLt through nvmath-python

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


PEERS: dict[str, Peer] = {peer.name: peer for peer in (
    Peer("cublas", "cuBLAS through CuPy, float32 sums, TF32 off in FP32", ("sgemm", "tcgemm"), _cublas, _cublas_missing, _cublas_version),
    Peer("cublaslt", f"the fastest of cublasLt's first {cublaslt.CANDIDATES} heuristics, float32 sums, TF32 off in FP32",
         ("sgemm", "tcgemm", "fp8gemm"), cublaslt.matmul, _cublaslt_missing, _cublaslt_version),
    Peer("cupy_add", "CuPy's add(out=)", ("vecadd",), _cupy_add, _cupy_missing, _cupy_version),
    Peer("copy", "a copy of the same bytes within the device", ("softmax", "rmsnorm", "layernorm"),
         traffic.copy, traffic.missing, traffic.version, computes=False),
    Peer("read", "one pass over the same bytes that only reads them", ("reduce", "argmax", "axis"),
         traffic.read, traffic.missing, traffic.version, computes=False),
    Peer("cupy", "CuPy's own function, whose sums go through CUB", ("reduce", "argmax", "axis", "softmax"),
         traffic.cupy_function, traffic.missing, traffic.version),
)}
