"""Right or wrong: the only place that decides it.

The reference is NumPy in float64 on operands already rounded to the storage type.  Two kinds of input are drawn: "integers", small
enough that every sum is exact in float32, where equality is bit for bit; and "normal", where three bounds hold together:

- per element: |error| over the element's scale (for a product, the norms of its row and its column) <= 2 u sqrt(K);
- root mean square of that over the whole output <= u sqrt(K);
- both no worse than twice the peer's own on the same inputs, where there is a peer (the bound is never put below a floor of a few u,
  because a peer that splits its sums may be luckier than any kernel that adds in order).

u is the unit roundoff of the accumulator, K the number of terms of one sum.  K rounding errors, each of at most u times a partial sum that
is no larger than the scale, add up like a random walk, hence sqrt(K); one element wrong by a hundredth of its scale is far outside.
"""

import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cudalab.errors import BadConfig
from cudalab.spec import DTYPES, Op, Step, Tensor, Values

KINDS = ("normal", "integers")
ELEMENT_BOUND, RMS_BOUND = 2.0, 1.0  # times u sqrt(K)
ELEMENT_FLOOR, RMS_FLOOR = 6.0, 1.0  # times u: what a peer's own error cannot push the bounds below
PEER_FACTOR = 2.0
LARGEST_INTEGER = 8
EXACT = 2**24  # float32 holds every integer up to here
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
    problem: Values

    def __bool__(self) -> bool:
        return self.passed


def generator(seed: int, xp=np):
    """A seeded generator of NumPy, or of CuPy where `xp` is cupy (one that needs no cuRAND)."""
    return np.random.default_rng(seed) if xp is np else xp.random.Generator(xp.random.XORWOW(seed))


def draw(op: Op, problem: Values, kind: str, rng) -> dict:
    """Fresh inputs of the op from a generator of NumPy or CuPy: kind "normal", N(0, 1), or "integers", whose sums are exact."""
    inputs = [tensor for tensor in op.tensors(problem).values() if tensor.role in ("in", "inout")]
    return {tensor.name: draw_tensor(tensor, op.depth(problem), kind, rng) for tensor in inputs}


def draw_tensor(tensor: Tensor, depth: int, kind: str, rng):
    dtype = DTYPES[tensor.dtype]
    if kind == "normal":
        return rng.standard_normal(tensor.shape, dtype=np.float32).astype(dtype, copy=False)
    if kind == "integers":
        largest = min(LARGEST_INTEGER, int((EXACT / depth) ** 0.5))
        if largest < 1:
            raise BadConfig(f"sums of {depth} terms are not exact in float32, whatever the integers; check this shape with normal inputs")
        return (rng.integers(0, 2 * largest + 1, tensor.shape, dtype=np.int32) - largest).astype(dtype)
    raise BadConfig(f"no kind of input is called '{kind}'; there are {', '.join(KINDS)}")


def compare(op: Op, problem: Values, inputs: Mapping, outputs: Mapping, *, exact: bool, peer_error: Error | None = None) -> Verdict:
    """Whether `outputs` is what the op computes of `inputs`: tensor name -> array, all NumPy or all CuPy (then on the device).

    exact: integer inputs, equality bit for bit.  peer_error: the peer's own error on the same inputs.
    """
    tensors = op.tensors(problem)
    for name in op.outputs:
        if name not in outputs or outputs[name].shape != tensors[name].shape or outputs[name].dtype != DTYPES[tensors[name].dtype]:
            found = f"{outputs[name].shape} of {outputs[name].dtype}" if name in outputs else "nothing"
            return Verdict(False, np.nan, np.nan, 0.0, f"{name}: {found} where {tensors[name].shape} of {tensors[name].dtype} is due",
                           "integers" if exact else "normal", problem)
    return judge(op, problem, error_of(op, inputs, outputs), exact=exact, peer_error=peer_error)


def judge(op: Op, problem: Values, error: Error, *, exact: bool, peer_error: Error | None = None) -> Verdict:
    """The verdict on an error that was measured."""
    unit = 0.0 if exact else float(np.finfo(DTYPES[op.dtype]).eps) / 2
    root = float(op.depth(problem)) ** 0.5
    bound, rms_bound = (0.0, 0.0) if exact else (ELEMENT_BOUND * unit * root, RMS_BOUND * unit * root)
    if peer_error is not None and not exact:
        bound = min(bound, max(PEER_FACTOR * peer_error.max, ELEMENT_FLOOR * unit))
        rms_bound = min(rms_bound, max(PEER_FACTOR * peer_error.rms, RMS_FLOOR * unit))
    kind = "integers" if exact else "normal"
    if np.isnan(error.max):
        reason = "the output holds NaN or infinity: elements not written, or written from what was never set"
    elif not error.max <= bound:
        reason = f"the largest error is {error.max:.3g} of the element's scale, at most {bound:.3g} is right ({kind} inputs)"
    elif not error.rms <= rms_bound:
        reason = f"the root-mean-square error is {error.rms:.3g} of the scale, at most {rms_bound:.3g} is right ({kind} inputs)"
    else:
        reason = ""
    return Verdict(not reason, error.max, error.rms, bound, reason, kind, problem)


def error_of(op: Op, inputs: Mapping, outputs: Mapping, rows: int | None = None) -> Error:
    """The error of the outputs against float64, on whichever side the arrays are.

    rows: work through the output in blocks of that many, cut as `op.samples[0]` says, where float64 copies of everything would not fit.
    """
    cut = op.samples[0] if rows else {}
    axis_length = next(({**inputs, **outputs}[name].shape[axis] for name, axis in cut.items()), 1)
    doubles = {name: array.astype(np.float64) for name, array in inputs.items() if name not in cut}
    worst, squares, count = 0.0, 0.0, 0
    for start in range(0, axis_length, rows or 1):
        part = {n: _rows(a, cut[n], start, rows).astype(np.float64) if n in cut else doubles[n] for n, a in inputs.items()}
        got = [_rows(outputs[n], cut[n], start, rows) if n in cut else outputs[n] for n in op.outputs]
        for name, output, relative in zip(op.outputs, got, _relative(op, part, got)):
            if not bool(np.isfinite(output).all()):
                return Error(float("nan"), float("nan"))
            worst = max(worst, float(relative.max()))
            squares, count = squares + float((relative * relative).sum()), count + relative.size
    return Error(worst, (squares / count) ** 0.5)


def _relative(op: Op, inputs: Mapping, outputs: list) -> list:
    """Per output |output - reference| / scale; an element whose scale is zero is either right or infinitely wrong."""
    references, scales = op.reference(**inputs), op.scale(**inputs)
    if len(op.outputs) == 1:
        references, scales = (references,), (scales,)
    result = []
    for output, reference, scale in zip(outputs, references, scales):
        difference = np.abs(output.astype(np.float64) - reference)
        xp = sys.modules[type(difference).__module__.split(".")[0]]
        result.append(xp.where(difference == 0, 0.0, xp.where(scale == 0, np.inf, difference / xp.where(scale == 0, 1.0, scale))))
    return result


def _rows(array, axis: int, start: int, count: int):
    return array[(slice(None),) * axis + (slice(start, start + count),)]


def check_step(step: Step, problem: Values, backend, *, overrides: Mapping[str, int] = types.MappingProxyType({}),
               seed: int = 0) -> list[Verdict]:
    """A verdict on the step for each kind of input, run on a backend; outputs that the step leaves unwritten are NaN there."""
    plan = step.plan(problem, step.config(problem, overrides))
    verdicts = []
    for number, kind in enumerate(KINDS):
        inputs = draw(step.op, problem, kind, generator(seed + number))
        verdicts.append(compare(step.op, problem, inputs, backend.run(plan, inputs), exact=kind == "integers"))
    return verdicts


def check_on_device(gpu, op: Op, problem: Values, buffers: Mapping, *, exact: bool = False, seed: int = 0) -> Verdict:
    """A verdict on outputs that lie on the device (buffers: tensor name -> CuPy array), for shapes that are too large for NumPy.

    NumPy, in float64, checks sampled rows and columns as `op.samples` cuts them (first and last among them); CuPy, in float64, the whole.
    """
    import cupy
    gpu.synchronize(op.name)
    tensors = op.tensors(problem)
    rng = np.random.default_rng(seed)
    with gpu.stream:
        for cut in op.samples:
            length = next(tensors[name].shape[axis] for name, axis in cut.items())
            chosen = np.unique(np.concatenate([[0, length - 1], rng.integers(0, length, SAMPLED - 2)]))
            part = {name: buffers[name].take(cupy.asarray(chosen), axis=cut[name]) if name in cut else buffers[name] for name in tensors}
            part = {name: array.get() for name, array in part.items()}
            error = error_of(op, {n: part[n] for n in op.inputs}, {n: part[n] for n in op.outputs})
            verdict = judge(op, problem, error, exact=exact)
            if not verdict:
                return verdict
    return judge(op, problem, device_error(gpu, op, problem, buffers), exact=exact)


def device_error(gpu, op: Op, problem: Values, buffers: Mapping) -> Error:
    """The error of the whole output by CuPy in float64, in blocks of rows that fit into what memory is free."""
    tensors, cut = op.tensors(problem), op.samples[0]
    length = next(tensors[name].shape[axis] for name, axis in cut.items())
    whole = sum(8 * t.elements for name, t in tensors.items() if name not in cut) * 2  # the copy, and its square while the scale is made
    a_row = sum(8 * t.elements // length * (6 if t.role == "out" else 2) for name, t in tensors.items() if name in cut)
    gpu.require(whole + a_row, f"checking {problem} in float64")
    rows = max(1, min(length, (gpu.free_bytes() - whole) // (2 * a_row)))
    with gpu.stream:
        return error_of(op, {n: buffers[n] for n in op.inputs}, {n: buffers[n] for n in op.outputs}, rows=int(rows))
