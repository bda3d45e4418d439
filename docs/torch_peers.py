"""PyTorch beside the lab's steps: a file of functions for `--peer FILE.py:NAME`, to be used as it is or as an example of one's own.

    python cli.py bench vecadd --peer cupy_add --peer docs/torch_peers.py:add

It is the only file here that imports PyTorch, in a build for CUDA.  A function gets the problem and the CuPy arrays by tensor name, and
returns a call that enqueues the work on the stream that was CuPy's current one.  Each gives PyTorch its fastest way to the same result:
softmax and the norms are compiled with its search over configurations, which takes its time once a shape.

The work is done on CuPy's arrays in place.  Where PyTorch has no way to write into an array that is given, the first call, which the lab
checks, also copies the result to it; the calls that are timed leave it where PyTorch put it.
"""

import functools

import cupy
import torch

from cudalab import errors


def add(problem, buffers):
    """Of `vecadd`."""
    a, b, c = _tensors(buffers, "A", "B", "C")
    return _enqueuing(lambda: torch.add(a, b, out=c))


def sgemm(problem, buffers):
    """Of `sgemm`: in FP32, without TF32."""
    a, b, c = _tensors(buffers, "A", "B", "C")
    torch.set_float32_matmul_precision("highest")
    return _enqueuing(lambda: torch.mm(a, b, out=c))


def matmul_nt(problem, buffers):
    """Of `tcgemm` in bf16, f16 and tf32, where B lies N x K."""
    if problem.variant != "nt" or problem.dtype.startswith("fp8"):
        raise errors.LabError("matmul_nt is of --variant nt and of every --dtype but fp8")
    a, b, c = _tensors(buffers, "A", "B", "C")
    torch.set_float32_matmul_precision("high" if problem.dtype == "tf32" else "highest")
    return _enqueuing(lambda: torch.mm(a, b.t(), out=c))


def fp8_per_tensor(problem, buffers):
    """Of `fp8gemm` with one scale for A and one for B."""
    return _scaled_mm(problem, buffers, lambda scale, count: scale.reshape(()))


def fp8_row_wise(problem, buffers):
    """The same, by the kernel for a scale a row of A and a column of B, which is often the faster one; all its scales are the same."""
    return _scaled_mm(problem, buffers, lambda scale, count: scale.expand(count).contiguous())


def softmax(problem, buffers):
    """Of `softmax`."""
    x, y = _tensors(buffers, "x", "y")
    return _compiled(_softmax, (x,), y)


def rmsnorm(problem, buffers):
    """Of `rmsnorm`."""
    x, w, y = _tensors(buffers, "x", "w", "y")
    return _compiled(_rmsnorm, (x, w), y)


def layernorm(problem, buffers):
    """Of `layernorm`."""
    x, w, b, y = _tensors(buffers, "x", "w", "b", "y")
    return _compiled(_layernorm, (x, w, b), y)


def total(problem, buffers):
    """Of `reduce`."""
    x, sum_of_x = _tensors(buffers, "x", "total")
    return _enqueuing(x.sum, sum_of_x)


def argmax(problem, buffers):
    """Of `argmax`."""
    x, index = _tensors(buffers, "x", "index")
    return _enqueuing(lambda: x.argmax(-1), index)


def _softmax(x):
    return torch.softmax(x, -1)


def _rmsnorm(x, w):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)


def _layernorm(x, w, b):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def _tensors(buffers, *names):
    """PyTorch's tensors over the same memory.  bf16, which CuPy has from ml_dtypes, crosses as bits."""
    found = []
    for name in names:
        array = buffers[name]
        is_bf16 = str(array.dtype) == "bfloat16"
        tensor = torch.as_tensor(array.view(cupy.uint16) if is_bf16 else array, device=f"cuda:{array.device.id}")
        found.append(tensor.view(torch.bfloat16) if is_bf16 else tensor)
    return found


def _scaled_mm(problem, buffers, spread):
    """spread(scale, how many rows or columns it is for): the scale as PyTorch wants it.  The lab's arrays of fp8 are of uint8."""
    if problem.variant == "block":
        raise errors.LabError("a scale a block is neither one a tensor nor one a row: take --variant fast or promoted")
    a, b, scale_a, scale_b, c = _tensors(buffers, "A", "B", "SA", "SB", "C")
    a, b = a.view(torch.float8_e4m3fn), b.view(torch.float8_e4m3fn).t()
    scale_a, scale_b = spread(scale_a, a.shape[0]), spread(scale_b, b.shape[1])
    if scale_a.ndim:
        scale_a, scale_b = scale_a[:, None], scale_b[None, :]
    return _enqueuing(lambda: torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16,
                                               use_fast_accum=problem.variant == "fast"), c)


def _compiled(function, inputs, out):
    run = _compile(function, *(tensor.shape for tensor in inputs), out.dtype)
    run(*inputs)  # compiles where it is the first of its kind
    return _enqueuing(lambda: run(*inputs), out)


@functools.lru_cache(maxsize=1)
def _compile(function, *kind):
    """The function for tensors of one kind, which all of a problem's rotating sets are."""
    torch.compiler.reset()  # of a function that has been compiled for several shapes PyTorch takes no more, and runs it uncompiled
    return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)


def _enqueuing(work, out=None):
    """A call of the work on CuPy's current stream; the first one copies the result to `out`, where that is given."""
    stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)
    to_fill = [] if out is None else [out]

    def call():
        with torch.cuda.stream(stream):
            result = work()
            if to_fill:
                filled = to_fill.pop()
                filled.copy_(result.reshape(filled.shape))
    return call
