"""Right or wrong: the only place that decides it.

The reference is NumPy in float64 on operands already rounded to the storage type.  Two kinds of input are usual (an op may leave one out or
add its own): "integers", small enough that every sum is exact in the accumulator, where equality is bit for bit; and "normal", where three
bounds hold together:

- per element: |error| over the element's scale (for a product, the norms of its row and its column) <= 2 u sqrt(K);
- root mean square of that over the whole output <= u sqrt(K); an output of one element has no mean of its own, and is held to the first;
- both no worse than twice the peer's own on the same inputs, where there is a peer (the bound is never put below a floor of a few u,
  because a peer that splits its sums may be luckier than any kernel that adds in order; nor, for an output of one element, below an
  eighth of itself, because there all hangs on one draw).

u is the unit roundoff of the accumulator, K the number of terms of one sum.  K rounding errors, each of at most u times a partial sum that
is no larger than the scale, add up like a random walk, hence sqrt(K); one element wrong by a hundredth of its scale is far outside.
An output of a type narrower than the accumulator is rounded once more: what rounding to nearest allows there is taken off first, so that
the same bounds hold and truncation fails.  Integer outputs are equal or wrong.  Where the reference is NaN or infinite, so is the output.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cudalab.dtypes import bits, decode, device_dtype, encode, is_float, least, module_of, numpy_dtype, overflow, unit
from cudalab.errors import BadConfig, LabError, WrongResult
from cudalab.problem import Problem
from cudalab.spec import Op, Plan, Step, Tensor

KINDS = ("normal", "integers")
ELEMENT_BOUND, RMS_BOUND = 2.0, 1.0  # times u sqrt(K)
ELEMENT_FLOOR, RMS_FLOOR = 6.0, 1.0  # times u: what a peer's own error cannot push the bounds below
ONE_FLOOR = 1 / 8  # of its bound: the same for an output of one element, a single draw, which a peer's lucky one says little about
PEER_FACTOR = 2.0
LARGEST_INTEGER = 8
EXACT = dict(f32=2**24, fp8_e4m3=2**13, fp8_e5m2=2**13)  # integers up to here are exact in float32, and in what sums fp8 on tensor cores
INTEGERS = dict(i8=(-127, 127), int8=(-127, 127), u8=(0, 255), u16=(0, 1000), u32=(0, 1000), u64=(0, 1000), i32=(-1000, 1000))
WORKSPACE = 4 * 10**9  # bytes: what the check of a whole output on the device takes at once, beside the output
SAMPLED = 4  # rows, and columns, that NumPy checks of an output too large for it


@dataclass(frozen=True)
class Error:
    """How far an output is from the reference, in units of each element's scale.  max is NaN where a value is missing or not finite."""

    max: float
    rms: float


@dataclass(frozen=True)
class Verdict:
    """passed; error (largest over scale) and rms; bound that `error` had to meet; reason: one line, empty where passed; kind of input."""

    passed: bool
    error: float
    rms: float
    bound: float
    reason: str
    kind: str
    problem: Problem

    def __bool__(self) -> bool:
        return self.passed


def generator(seed: int, xp=np):
    """A seeded generator of NumPy, or of CuPy where `xp` is cupy (one that needs no cuRAND)."""
    return np.random.default_rng(seed) if xp is np else xp.random.Generator(xp.random.XORWOW(seed))


def draw(op: Op, problem: Problem, kind: str, rng) -> dict:
    """Fresh inputs of the op from a generator of NumPy or CuPy, of one of the op's kinds: see the top of this module."""
    inputs = [tensor for tensor in op.tensors(problem).values() if tensor.role in ("in", "inout")]
    own = {tensor.name: op.draw(tensor, problem, kind, rng) if op.draw else None for tensor in inputs}
    return {t.name: draw_tensor(t, op.depth(problem), kind, rng) if own[t.name] is None else encode(own[t.name], t.dtype) for t in inputs}


def draw_tensor(tensor: Tensor, depth: int, kind: str, rng):
    """An array of the tensor's shape and type; depth: how many products of its elements are added up."""
    if kind == "normal":
        if is_float(tensor.dtype):
            return encode(rng.standard_normal(tensor.shape, dtype=np.float32), tensor.dtype)
        low, high = INTEGERS.get(tensor.dtype, INTEGERS["i32"])
        return encode(rng.integers(low, high + 1, tensor.shape, dtype=np.int32), tensor.dtype)
    if kind == "integers":
        largest = min(LARGEST_INTEGER, int((EXACT.get(tensor.dtype, EXACT["f32"]) / depth) ** 0.5))
        if largest < 1:
            raise BadConfig(f"sums of {depth} terms are not exact in float32, whatever the integers; check this shape with normal inputs")
        return encode(rng.integers(0, 2 * largest + 1, tensor.shape, dtype=np.int32) - largest, tensor.dtype)
    raise BadConfig(f"no kind of input is called '{kind}'; there are {', '.join(KINDS)}")


def refuse_changed(plan: Plan, inputs: Mapping, now: Callable[[str], np.ndarray]) -> None:
    """Raise WrongResult where a run has changed an input.  inputs: what was given; now(name): what lies there afterwards (bytes count)."""
    for name, tensor in plan.tensors.items():
        if tensor.role == "in":
            given = np.ascontiguousarray(inputs[name], numpy_dtype(tensor.dtype))
            if not np.array_equal(given.reshape(-1).view(np.uint8), np.ascontiguousarray(now(name)).reshape(-1).view(np.uint8)):
                raise WrongResult(f"{plan.step.path} writes to its input {name}: the next run would find other values; write to an output, "
                                  f"or to scratch")


def compare(op: Op, problem: Problem, inputs: Mapping, outputs: Mapping, *, exact: bool, peer_error: Error | None = None) -> Verdict:
    """Whether `outputs` is what the op computes of `inputs`: tensor name -> array, all NumPy or all CuPy (then on the device).

    exact: integer inputs, equality bit for bit.  peer_error: the peer's own error on the same inputs.
    """
    tensors = op.tensors(problem)
    for name in op.outputs:
        wanted = numpy_dtype(tensors[name].dtype), device_dtype(tensors[name].dtype)
        if name not in outputs or outputs[name].shape != tensors[name].shape or outputs[name].dtype not in wanted:
            found = f"{outputs[name].shape} of {outputs[name].dtype}" if name in outputs else "nothing"
            return Verdict(False, np.nan, np.nan, 0.0, f"{name}: {found} where {tensors[name].shape} of {tensors[name].dtype} is due",
                           "integers" if exact else "normal", problem)
    return judge(op, problem, error_of(op, problem, inputs, outputs, exact=exact), exact=exact, peer_error=peer_error)


def judge(op: Op, problem: Problem, error: Error, *, exact: bool, peer_error: Error | None = None, slack: float = 0.0) -> Verdict:
    """The verdict on an error that was measured.  slack: what is added to the bounds."""
    u = 0.0 if exact else op.unit(problem)
    root = float(op.depth(problem)) ** 0.5
    one = sum(op.tensors(problem)[name].elements for name in op.outputs) == 1
    bound, rms_bound = (0.0, 0.0) if exact else (ELEMENT_BOUND * u * root, RMS_BOUND * u * root)
    if peer_error is not None and not exact:
        floor = max(ELEMENT_FLOOR * u, bound * ONE_FLOOR) if one else ELEMENT_FLOOR * u
        bound = min(bound, max(PEER_FACTOR * peer_error.max, floor))
        rms_bound = min(rms_bound, max(PEER_FACTOR * peer_error.rms, RMS_FLOOR * u))
    if one:
        rms_bound = bound
    bound, rms_bound = bound + slack, rms_bound + slack
    kind = "integers" if exact else "normal"
    if np.isnan(error.max):
        reason = "the output holds NaN or infinity where it must not, or lacks one: not written, or written from what was never set"
    elif np.isinf(error.max):
        reason = f"an element that must be exact is not ({kind} inputs)"
    elif not error.max <= bound:
        reason = f"the largest error is {error.max:.3g} of the element's scale, at most {bound:.3g} is right ({kind} inputs)"
    elif not error.rms <= rms_bound:
        reason = f"the root-mean-square error is {error.rms:.3g} of the scale, at most {rms_bound:.3g} is right ({kind} inputs)"
    else:
        reason = ""
    return Verdict(not reason, error.max, error.rms, bound, reason, kind, problem)


def judge_peer(op: Op, problem: Problem, error: Error, ours: Error) -> Verdict:
    """Whether a peer computes the same thing: as exactly as the step, but for one more rounding to the type of an output than it needs."""
    types_of_outputs = [op.tensors(problem)[name].dtype for name in op.outputs]
    slack = 2 * max((unit(dtype) for dtype in types_of_outputs if unit(dtype) > op.unit(problem)), default=0.0)
    return judge(op, problem, error, exact=False, peer_error=ours, slack=slack)


def error_of(op: Op, problem: Problem, inputs: Mapping, outputs: Mapping, rows: int | None = None, exact: bool = False) -> Error:
    """The error of the outputs against float64, on whichever side the arrays are.

    rows: work through the output in blocks of that many, cut as the op's first sample says, where float64 copies of everything would not
    fit.  exact: the reference counts as it is stored, so that any difference is an error.
    """
    tensors, cut = op.tensors(problem), op.cuts(problem)[0] if rows else {}
    axis_length = next(({**inputs, **outputs}[name].shape[axis] for name, axis in cut.items()), 1)
    doubles = {name: decode(array, tensors[name].dtype) for name, array in inputs.items() if name not in cut}
    worst, squares, count = 0.0, 0.0, 0
    for start in range(0, axis_length, rows or 1):
        part = {n: decode(_rows(a, cut[n], start, rows), tensors[n].dtype) if n in cut else doubles[n] for n, a in inputs.items()}
        references, scales = (_call(function, problem, part) for function in (op.reference, op.scale))
        if len(op.outputs) == 1:
            references, scales = (references,), (scales,)
        for name, reference, scale in zip(op.outputs, references, scales):
            got = _rows(outputs[name], cut[name], start, rows) if name in cut else outputs[name]
            relative = _relative(op, problem, tensors[name].dtype, got, reference, scale, exact)
            largest = float(relative.max())
            if np.isnan(largest):
                return Error(largest, largest)
            worst = max(worst, largest)
            squares, count = squares + float((relative * relative).sum()), count + relative.size
    return Error(worst, (squares / count) ** 0.5)


def _call(function: Callable, problem: Problem, inputs: Mapping):
    kind = dict(p=problem) if "p" in inspect.signature(function).parameters else {}
    with np.errstate(all="ignore"):  # of inputs that hold infinities
        return function(**kind, **inputs)


def _relative(op: Op, problem: Problem, dtype: str, output, reference, scale, exact: bool):
    """|output - reference| / scale of each element; infinity where an exact one is wrong, NaN where one is not finite and must be, or must
    not be and is."""
    got, xp = decode(output, dtype), module_of(output)
    reference = xp.where(xp.abs(reference) >= overflow(dtype), xp.copysign(xp.inf, reference), reference)
    if exact:
        reference = decode(encode(reference, dtype), dtype)
    with np.errstate(invalid="ignore"):  # of what is not finite
        difference = xp.where((got == reference) | xp.isnan(got) & xp.isnan(reference), 0.0, xp.abs(got - reference))
    if exact or not is_float(dtype):
        return xp.where(xp.isfinite(difference), xp.where(difference == 0, 0.0, xp.inf), xp.nan)
    allowed = least(dtype) / 2  # what rounding to the type allows is no error of the sum
    if unit(dtype) > op.unit(problem):
        allowed = allowed + unit(dtype) * xp.abs(xp.where(xp.isfinite(reference), reference, 0.0))
    difference = xp.maximum(difference - allowed, 0.0)
    with np.errstate(invalid="ignore"):
        relative = xp.where(difference == 0, 0.0, xp.where(scale == 0, xp.inf, difference / xp.where(scale == 0, 1.0, scale)))
    return xp.where(xp.isfinite(difference), relative, xp.nan)


def _rows(array, axis: int, start: int, count: int):
    return array[(slice(None),) * axis + (slice(start, start + count),)]


def check_step(step: Step, problem: Problem, backend, *, overrides: Mapping[str, int] = types.MappingProxyType({}),
               seed: int = 0) -> list[Verdict]:
    """A verdict on the step for each kind of input, run on a backend; outputs that the step leaves unwritten are NaN there."""
    plan = step.plan(problem, step.config(problem, overrides))
    verdicts = []
    for number, kind in enumerate(step.op.kinds):
        inputs = draw(step.op, problem, kind, generator(seed + number))
        verdicts.append(verdict_of(plan, inputs, backend, kind))
    return verdicts


def verdict_of(plan: Plan, inputs: Mapping, backend, kind: str, fault: type[LabError] = WrongResult) -> Verdict:
    """Run a plan and judge what comes out; a changed input is a verdict too, as is a `fault`: an error of the backend's own."""
    try:
        return compare(plan.step.op, plan.problem, inputs, backend.run(plan, inputs), exact=kind == "integers")
    except (WrongResult, fault) as error:
        return Verdict(False, np.nan, np.nan, 0.0, str(error), kind, plan.problem)


def check_on_device(gpu, op: Op, problem: Problem, buffers: Mapping, *, exact: bool = False, seed: int = 0) -> Verdict:
    """A verdict on outputs that lie on the device (buffers: tensor name -> CuPy array), for shapes that are too large for NumPy.

    NumPy, in float64, checks sampled rows and columns as `op.samples` cuts them (first and last among them); CuPy, in float64, the whole.
    """
    import cupy
    gpu.synchronize(op.name)
    tensors = op.tensors(problem)
    rng = np.random.default_rng(seed)
    with gpu.stream:
        for cut in op.cuts(problem):
            length = next(tensors[name].shape[axis] for name, axis in cut.items())
            chosen = np.unique(np.concatenate([[0, length - 1], rng.integers(0, length, SAMPLED - 2)]))
            part = {name: bits(buffers[name]) for name in tensors}
            part = {name: raw.take(cupy.asarray(chosen), axis=cut[name]) if name in cut else raw for name, raw in part.items()}
            part = {name: raw.get().view(numpy_dtype(tensors[name].dtype)) for name, raw in part.items()}
            error = error_of(op, problem, {n: part[n] for n in op.inputs}, {n: part[n] for n in op.outputs}, exact=exact)
            verdict = judge(op, problem, error, exact=exact)
            if not verdict:
                return verdict
    return judge(op, problem, device_error(gpu, op, problem, buffers, exact), exact=exact)


def device_error(gpu, op: Op, problem: Problem, buffers: Mapping, exact: bool = False) -> Error:
    """The error of the whole output by CuPy in float64, in blocks of rows that fit into what memory is free."""
    tensors, cut = op.tensors(problem), op.cuts(problem)[0]
    length = next(tensors[name].shape[axis] for name, axis in cut.items())
    whole = sum(8 * t.elements for name, t in tensors.items() if name not in cut) * 2  # the copy, and its square while the scale is made
    a_row = sum(8 * t.elements // length * (10 if t.role == "out" else 4) for name, t in tensors.items() if name in cut)
    gpu.require(whole + a_row, f"checking {problem} in float64")
    rows = max(1, min(length, min(WORKSPACE, gpu.free_bytes() - whole) // (2 * a_row)))
    with gpu.stream:
        return error_of(op, problem, {n: buffers[n] for n in op.inputs}, {n: buffers[n] for n in op.outputs}, int(rows), exact)
