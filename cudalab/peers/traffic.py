"""Peers of the ladders that are limited by memory: what the device does with the same bytes, and what CuPy has."""

import functools
from collections.abc import Callable, Mapping

from cudalab.errors import LabError
from cudalab.problem import Problem

READ = r"""
extern "C" __global__ void __launch_bounds__(512) read(const uint4* x, unsigned* never, long long count) {
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    unsigned all = 0;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        const uint4 a = __ldcs(x + i), b = __ldcs(x + i + step), c = __ldcs(x + i + 2 * step), d = __ldcs(x + i + 3 * step);
        all |= a.x | a.y | a.z | a.w | b.x | b.y | b.z | b.w | c.x | c.y | c.z | c.w | d.x | d.y | d.z | d.w;
    }
    for (; i < count; i += step) {
        const uint4 a = __ldcs(x + i);
        all |= a.x | a.y | a.z | a.w;
    }
    if (all == 0) never[0] = all;  // so that nothing is left out: some bit of random numbers is set
}
"""
BLOCKS = 4  # of 512 threads: what a multiprocessor holds


def missing() -> str | None:
    return None  # CuPy is there where there is a GPU


def version() -> str:
    import cupy
    return f"CuPy {cupy.__version__}"


def copy(problem: Problem, buffers: Mapping, stream) -> Callable:
    """A copy within the device of x to y."""
    x, y = buffers["x"], buffers["y"]
    return functools.partial(y.data.copy_from_device_async, x.data, x.nbytes, stream)


@functools.cache
def _read_kernel():
    import cupy
    return cupy.RawModule(code=READ, options=("-std=c++17",)).get_function("read")


def read(problem: Problem, buffers: Mapping, stream) -> Callable:
    """One pass over x that keeps nothing of it."""
    import cupy
    kernel, x = _read_kernel(), buffers["x"]
    count = x.nbytes // 16
    blocks = max(1, min(BLOCKS * cupy.cuda.Device().attributes["MultiProcessorCount"], -(-count // 512)))
    never = cupy.empty(1, cupy.uint32)
    return functools.partial(kernel, (blocks,), (512,), (x, never, cupy.int64(count)))


def cupy_function(problem: Problem, buffers: Mapping, stream) -> Callable:
    """CuPy's own function for the op; its sums go through CUB.  Raises LabError for bf16, which it cannot add up."""
    import cupy
    if problem.dtype == "bf16":
        raise LabError("CuPy has no sums, maxima or powers of bf16")
    x = buffers["x"]
    if "total" in buffers:
        return functools.partial(x.sum, out=buffers["total"].reshape(()))
    if "index" in buffers:
        return functools.partial(x.argmax, axis=1, out=buffers["index"])
    if problem.variant:
        name, _, which = problem.variant.partition("_")
        return functools.partial(getattr(x, name), axis=int(which == "last"), out=buffers["y"])
    return functools.partial(_softmax, cupy, x, buffers["y"])


def _softmax(cupy, x, y):
    cupy.exp(cupy.subtract(x, x.max(1, keepdims=True), out=y), out=y)
    cupy.divide(y, y.sum(1, keepdims=True), out=y)
