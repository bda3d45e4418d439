"""Functions over CuPy arrays: the best step of a ladder for the device, the type and the shape, on CuPy's current stream.

They never wait for the device, and allocate nothing but their result (and what a step needs beside it, once a stream: so a graph of them
runs on one stream at a time).  The first call at a shape compiles, or takes from the cache.  Rows may stand apart (a view of a larger
array); another layout is copied first.
"""

import functools
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cudalab.dtypes import DTYPES, itemsize
from cudalab.errors import BadShape, LabError, Spills
from cudalab.problem import Problem
from cudalab.spec import Launch, Plan, Scalar, Step, f32, i64

_lock = threading.Lock()  # a prepared launch is one set of arguments, which two threads must not fill at once


def softmax(x, axis: int = -1, out=None):
    """e^x over its sum along an axis, of a CuPy array of f32, f16 or bf16; out: where to write it, like x and contiguous."""
    if out is not None and _axis(x, axis) != x.ndim - 1:
        raise LabError("out: only along the last axis; along another leave it out")
    rows, back = _rows(x, axis)
    y = _result(rows, out, back)
    _run("softmax", rows, dict(x=rows, y=y), (i64(_stride(rows)), i64(_stride(y))))
    return back(y)


def rms_norm(x, weight, eps: float = 1e-6, out=None):
    """x over the root of the mean of its squares along the last axis, times a weight of the same type for each place of it."""
    rows, back = _rows(x, -1)
    y = _result(rows, out, back)
    tail = i64(_stride(rows)), i64(_stride(y)), f32(eps)
    _run("rmsnorm", rows, dict(x=rows, w=_vector(weight, rows, "weight"), y=y), tail)
    return back(y)


def layer_norm(x, weight, bias, eps: float = 1e-5, out=None):
    """x less its mean over its standard deviation along the last axis, times a weight, plus a bias, both of its type."""
    rows, back = _rows(x, -1)
    y = _result(rows, out, back)
    tail = i64(_stride(rows)), i64(_stride(y)), f32(eps)
    _run("layernorm", rows, dict(x=rows, w=_vector(weight, rows, "weight"), b=_vector(bias, rows, "bias"), y=y), tail)
    return back(y)


def argmax(x, axis: int | None = None):
    """Where the largest element stands along an axis, or in the whole array as it lies flat; int64, as cupy.argmax gives it.

    The lowest place of equals; NaN comes before any number.
    """
    import cupy
    if axis is None:
        return argmax(x.reshape(1, -1), 1)[0]
    rows, _ = _rows(x, axis)
    index = cupy.empty(len(rows), cupy.int64)
    _run("argmax", rows, dict(x=rows, index=index), (i64(_stride(rows)),))
    return index.reshape(_without(x.shape, axis))


def sum(x, axis: int | None = None):
    """The sum along an axis, or of the whole array, accumulated in f32, of x's type; the same bits every time.  Of no elements it is 0."""
    _type(x)
    import cupy
    if x.size == 0:
        return cupy.zeros(() if axis is None else _without(x.shape, _axis(x, axis)), x.dtype)
    if axis is None:
        flat = cupy.ascontiguousarray(x).reshape(-1)
        total = cupy.empty(1, x.dtype)
        _run("reduce", flat, dict(x=flat, total=total), ())
        return total[0]
    axis = _axis(x, axis)
    if axis == 0 and x.ndim > 1 and x.flags.c_contiguous:
        rows, variant, length = x.reshape(len(x), -1), "sum_first", x.size // len(x)
    else:
        (rows, _), variant = _rows(x, axis), "sum_last"
        length = len(rows)
    y = cupy.empty(length, x.dtype)
    _run("axis", rows, dict(x=rows, y=y), (i64(_stride(rows)),), variant)
    return y.reshape(_without(x.shape, axis))


# -- arrays as rows

def _type(x) -> str:
    """Our name of an array's type.  Raises LabError for one that the ladders do not have."""
    return _name(x.dtype)


@functools.cache
def _name(dtype) -> str:
    names = {DTYPES[name].numpy: name for name in ("f32", "f16", "bf16")}
    if str(dtype) not in names:
        raise LabError(f"an array of {dtype}: these functions take {', '.join(names)}; convert it with astype")
    return names[str(dtype)]


def _axis(x, axis: int) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise LabError(f"axis {axis} of an array of {x.ndim} dimensions: it has {-x.ndim} to {x.ndim - 1}")
    return axis % x.ndim


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1:])


def _rows(x, axis: int):
    """The array as rows along an axis, a view where one stride leads from row to row, else a copy; and what puts a result back in shape."""
    import cupy
    _type(x)
    axis = _axis(x, axis)
    if x.size == 0:
        raise LabError(f"an array of shape {x.shape} has no elements")
    if x.ndim == 2 and axis == 1 and collapses(x.shape, x.strides, x.itemsize):  # the usual case costs a caller no more than it must
        return x, lambda y: y
    moved = cupy.moveaxis(x, axis, -1)
    shape = moved.shape
    if not collapses(shape, moved.strides, x.itemsize):
        moved = cupy.ascontiguousarray(moved)
    rows = moved if moved.ndim == 2 else moved.reshape(-1, shape[-1])
    return rows, lambda y: cupy.moveaxis(y.reshape(shape), -1, axis)


def collapses(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """Whether the last axis is packed and one stride leads through all axes before it: rows that a kernel takes as they lie."""
    outer = [(n, s) for n, s in zip(shape[:-1], strides[:-1]) if n > 1]
    packed = shape[-1] == 1 or strides[-1] == size
    return packed and all(s > 0 for _, s in outer) and all(s == m * t for (_, s), (m, t) in zip(outer, outer[1:]))


def _stride(rows) -> int:
    """Elements from one row to the next."""
    return rows.strides[0] // rows.itemsize if rows.ndim == 2 and len(rows) > 1 else rows.shape[-1]


def _result(rows, out, back):
    import cupy
    if out is None:
        return cupy.empty(rows.shape, rows.dtype)
    if out.dtype != rows.dtype or out.size != rows.size or not out.flags.c_contiguous or back(out.reshape(rows.shape)).shape != out.shape:
        raise LabError(f"out is {out.dtype} of {out.shape}: it must be {rows.dtype}, of the shape of x, and contiguous")
    return out.reshape(rows.shape)


def _vector(vector, rows, name: str):
    import cupy
    if vector.dtype != rows.dtype or vector.shape != rows.shape[-1:]:
        raise LabError(f"{name} is {vector.dtype} of {vector.shape}; rows of {rows.shape[-1]} {rows.dtype} need as many of that type")
    return cupy.ascontiguousarray(vector)


# -- steps

def choose(name: str, problem: Problem, vec: int, sm: int) -> tuple[Step, dict[str, int]]:
    """The step of an op for a problem on a device of compute capability `sm`, and tunables that differ from its defaults.

    vec: how many elements may move at once, as the arrays lie.
    """
    from cudalab.parts import rows
    from cudalab.registry import resolve_step
    if name == "reduce":
        return resolve_step("reduce/flags"), dict(VEC=vec)  # `early` gains where sums follow each other, not where a caller takes one
    vec = math.gcd(vec, rows.widest(problem))
    row = rows.packs(problem, vec)
    if name == "axis" and problem.variant.endswith("_first"):
        return resolve_step("axis/slabs"), dict(VEC=vec)
    if name in ("axis", "argmax") and row <= NARROW_ROW:
        return resolve_step(f"{name}/transposed"), dict(VEC=vec)
    if name == "axis":
        return resolve_step("axis/packs" if problem.M >= MANY_ROWS else "axis/split"), dict(VEC=vec)
    if name == "argmax":
        few = "cluster" if sm >= 90 and row <= CLUSTER_ROW and problem.M * row <= MANY_PACKS else "split"
        return resolve_step(f"argmax/{'keys' if problem.M >= ROWS_OF_KEYS else few}"), dict(VEC=vec)
    long, alone = row > BULK_ROW[name], problem.M <= A_ROW_EACH and row <= HELD_ROW
    few = problem.M <= (FEW_ROWS if alone else 2 * FEW_ROWS)
    if 90 <= sm < 120 and long and few and problem.M * row <= FEW_PACKS[name] and rows.fits(problem, vec, 1024, 16):
        idea = "cluster"
    elif sm >= 90 and long and not alone and rows.fits_bulk(problem, vec):
        many = MANY_PACKS <= problem.M * row and row <= 16 * rows.KEPT
        idea = "kept" if name != "softmax" and many and sm < 120 else "bulk"  # of 12.0 on a block has 99 KiB of shared memory
    elif row <= LONG_ROW[name] or alone:
        idea = "registers"
    elif problem.N * itemsize(problem.dtype) <= rows.SHARED_BYTES:
        idea = "shared"
    elif sm >= 90 and rows.fits(problem, vec, 1024, 16):
        idea = "cluster"
    elif rows.fits(problem, vec, 1024):
        idea = "registers"
    else:
        idea = ANY_ROW[name]
    step = resolve_step(f"{name}/{idea}")
    config = _moving(vec, step)
    if idea == "registers" and sm < 90:
        config["BLOCKS"] = 1  # ptxas for 8.0 needs a register more than the default leaves it
    return step, config


def _moving(vec: int, step: Step) -> dict[str, int]:
    """Tunables of a step that moves at most `vec` elements at once."""
    return dict(VEC=vec) if "VEC" in step.tunables else {}


ANY_ROW = dict(softmax="online", rmsnorm="two_passes", layernorm="welford")  # steps that hold nothing of a row


MANY_ROWS = 1024  # from here on a block a row fills a device
NARROW_ROW = 64  # loads: up to here a row is a part of a warp's work in sums and argmax, whose results a warp writes together
# Loads: a longer row is copied to shared memory by the copy engine, if it lies in whole packs of 16 bytes, and not where rows are few: each
# is then soonest done in the registers of a cluster or, up to HELD_ROW, of a block that has a multiprocessor for itself.
BULK_ROW = dict(softmax=1024, layernorm=1024, rmsnorm=2048)
FEW_PACKS = dict(softmax=2**19, layernorm=2**17, rmsnorm=2**19)  # loads of all rows: as many as clusters hold at once
FEW_ROWS, A_ROW_EACH, HELD_ROW = 16, 132, 4096
ROWS_OF_KEYS = 256  # in argmax they do from here on
# Loads: a longer row is too much for argmax's cluster of 16 blocks, which reads a fifth of what the device does.
CLUSTER_ROW = 2**16
# Loads: from here on (64 MiB) clusters that stay, and keep weights, are faster than those that come and go (docs/notes/reductions.md), and
# for argmax a cluster a row is no gain.
MANY_PACKS = 2**22
# Loads: up to here another row is held by the registers of one block.  One of 4096 takes 1024 threads, whose registers leave a
# multiprocessor no second block; only RMSNorm's still go there.
LONG_ROW = dict(softmax=2048, layernorm=2048, rmsnorm=4096)


def alignment(addresses: Sequence[int], size: int) -> int:
    """How many elements of so many bytes may move at once where rows begin at these addresses: a power of 2, 16 bytes at most."""
    return max(1, math.gcd(16, *addresses) // size)


def with_tail(plan: Plan, tail: tuple[Scalar, ...]) -> Plan:
    """The plan with its launches' last arguments replaced: strides, and what else a caller sets."""
    def changed(action):
        return replace(action, args=(*action.args[:len(action.args) - len(tail)], *tail)) if isinstance(action, Launch) and tail else action
    return replace(plan, actions=tuple(map(changed, plan.actions)))


@dataclass(frozen=True)
class _Ready:
    """A plan that can be enqueued.

    own: what it needs beside the caller's arrays, by the stream's address, and by thread where threads share that.
    """

    plan: Plan
    launches: tuple
    own: dict[tuple[int, int | None], dict]


def _run(name: str, x, arrays: Mapping, tail: tuple[Scalar, ...], variant: str | None = None) -> None:
    _check_device(x)
    strides = [scalar.value * x.itemsize for scalar in tail if scalar.dtype == "i64"]
    addresses = [array.data.ptr for array in arrays.values() if array.dtype == x.dtype]
    _enqueue(_ready(x.device.id, name, x.shape, _type(x), variant, alignment([*addresses, *strides], x.itemsize), tail), arrays)


def enqueue(x, name: str, sizes: tuple[int, ...], dtype: str, variant: str | None, choose, arrays: Mapping) -> None:
    """Enqueue an op over arrays by name, on x's device, which must be the current one.  choose: problem, op, capability -> a step."""
    _check_device(x)
    _enqueue(_chosen(x.device.id, name, sizes, dtype, variant, choose), arrays)


def _check_device(x) -> None:
    import cupy
    if x.device.id != cupy.cuda.runtime.getDevice():
        raise LabError(f"the array lies on device {x.device.id}, and {cupy.cuda.runtime.getDevice()} is the current one: 'with x.device:'")


def _enqueue(ready: "_Ready", arrays: Mapping) -> None:
    import cupy
    stream = cupy.cuda.get_current_stream().ptr
    # the default stream of a thread has the same address in all of them
    owner = stream, threading.get_ident() if stream == cupy.cuda.runtime.streamPerThread else None
    with _lock:
        if owner not in ready.own:
            extra = [t for t in ready.plan.tensors.values() if t.role in ("scratch", "state")]
            ready.own[owner] = {t.name: (cupy.zeros if t.role == "state" else cupy.empty)(t.shape, f"u{itemsize(t.dtype)}") for t in extra}
        pointers = {name: array.data.ptr for name, array in {**arrays, **ready.own[owner]}.items()}
        for launch in ready.launches:
            launch.enqueue(stream, pointers)


@functools.lru_cache(maxsize=1024)
def _ready(device: int, name: str, shape: tuple[int, ...], dtype: str, variant: str | None, vec: int, tail: tuple[Scalar, ...]) -> _Ready:
    from cudalab import results
    from cudalab.parts import rows
    from cudalab.registry import ops, resolve_step
    gpu = _gpu(device)
    op = ops()[name]
    problem = op.problem(dict(zip(op.dims, shape)), dtype, variant)
    step, config = choose(name, problem, vec, gpu.device.sm)
    kept = results.tuned(step, gpu.device.name, problem)
    try:
        plan = step.plan(problem, step.config(problem, kept if kept and kept.get("VEC", 1) <= vec else config))
    except BadShape as error:
        raise LabError(f"no step for {problem}: {error}") from None
    plan = with_tail(plan, tail)
    try:
        return _Ready(plan, tuple(gpu.launches(plan)), {})
    except Spills:  # on a device that nobody has measured the step's registers may not do
        if name not in ANY_ROW:
            raise
        step = resolve_step(f"{name}/{ANY_ROW[name]}")
        plan = with_tail(step.plan(problem, step.config(problem, _moving(math.gcd(vec, rows.widest(problem)), step))), tail)
        return _Ready(plan, tuple(gpu.launches(plan)), {})


@functools.lru_cache(maxsize=1024)
def _chosen(device: int, name: str, sizes: tuple[int, ...], dtype: str, variant: str | None, choose) -> _Ready:
    from cudalab import results
    from cudalab.registry import ops
    gpu, op = _gpu(device), ops()[name]
    problem = op.problem(dict(zip(op.dims, sizes)), dtype, variant)
    step = choose(problem, name, gpu.device.sm)
    plan = step.plan(problem, step.config(problem, results.tuned(step, gpu.device.name, problem) or {}))
    return _Ready(plan, tuple(gpu.launches(plan)), {})


@functools.cache
def _gpu(device: int):
    from cudalab.gpu import Gpu
    return Gpu(device)
