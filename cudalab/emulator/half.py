"""Half precision and bfloat16, one value or two in a register.  PTX ISA, "Half Precision Floating Point Instructions",
"Half Precision Comparison Instructions".

Values are decoded to float64, where a sum or product of two is exact or rounded to odd, and encoded with one rounding.
"""

import numpy as np

from cudalab.emulator.compare import BOOLEANS, COMPARISONS, MODIFIERS, ORDERED
from cudalab.emulator.errors import PtxError
from cudalab.emulator.formats import FORMATS, decode, encode
from cudalab.emulator.program import Pair
from cudalab.emulator.rounding import odd, two_sum
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.types import TYPES

SMALL = "f16 f16x2 bf16 bf16x2"


def bits(code, operand, kind) -> str:
    return code.value(operand, f"b{kind.bits}")


def form_of(kind) -> str:
    return kind.name.removesuffix("x2")


@instruction("add", "sub", "mul", "fma", types=SMALL, modifiers="rn ftz sat relu")
def arithmetic(code, ins):
    values = ", ".join(bits(code, o, ins.type) for o in ins.operands[1:])
    code.assign(ins.operands[0], f"half_arithmetic({ins.parts[0]!r}, {form_of(ins.type)!r}, {ins.has('ftz')}, {ins.has('sat')}, "
                                 f"{ins.has('relu')}, {values})", f"b{ins.type.bits}")


@instruction("ex2", "tanh", types=SMALL, modifiers="approx ftz")
def approximate(code, ins):
    arithmetic(code, ins)


@instruction("min", "max", types=SMALL, modifiers="ftz NaN xorsign abs")
def min_max(code, ins):
    values = ", ".join(bits(code, o, ins.type) for o in ins.operands[1:])
    code.assign(ins.operands[0], f"half_extreme({ins.parts[0]!r}, {form_of(ins.type)!r}, {ins.has('ftz')}, {ins.has('NaN')}, "
                                 f"{ins.has('xorsign')}, {values})", f"b{ins.type.bits}")


@instruction("neg", "abs", types=SMALL, modifiers="ftz")
def neg_abs(code, ins):
    code.assign(ins.operands[0], f"half_sign({ins.parts[0]!r}, {form_of(ins.type)!r}, {ins.has('ftz')}, "
                                 f"{bits(code, ins.operands[1], ins.type)})", f"b{ins.type.bits}")


def halves(value) -> np.ndarray:
    """The 16-bit values in a register, a row a lane."""
    flat = np.ascontiguousarray(np.atleast_1d(value))
    return flat.view(np.uint16).reshape(len(flat), -1)


def whole(rows: np.ndarray, like: tuple) -> np.ndarray:
    """Rows of 16-bit values back as registers like the operands."""
    joined = np.ascontiguousarray(rows).view(like[0].dtype)[:, 0]
    return joined if any(v.ndim for v in like) else joined[0]


def opened(value, form: str, ftz: bool) -> np.ndarray:
    numbers = np.atleast_2d(decode(halves(value), form))
    return flushed(numbers, form) if ftz else numbers


def flushed(numbers: np.ndarray, form: str) -> np.ndarray:
    return np.where(np.abs(numbers) < 2.0 ** FORMATS[form].lowest, numbers * 0.0, numbers)


@runtime
def half_arithmetic(operation, form, ftz, sat, relu, *values):
    a, *more = (opened(v, form, ftz) for v in values)
    if operation in ("add", "sub"):
        result = odd(*two_sum(a, -more[0] if operation == "sub" else more[0]))
    elif operation == "mul":
        result = a * more[0]
    elif operation == "fma":
        result = odd(*two_sum(a * more[0], more[1]))
    else:
        result = dict(ex2=np.exp2, tanh=np.tanh)[operation](a)
    if sat:
        result = np.fmin(np.fmax(result, 0.0), 1.0) + 0.0
    if ftz:
        result = flushed(decode(encode(result, form), form), form)
    return whole(np.atleast_2d(encode(result, form, relu=relu)), values)


@runtime
def half_extreme(operation, form, ftz, nan, xorsign, *values):
    rows = np.broadcast_arrays(*(opened(v, form, ftz) for v in values))
    negative = np.logical_xor.reduce([np.signbit(r) for r in rows])
    if xorsign:
        rows = [np.abs(r) for r in rows]
    result = rows[0]
    for other in rows[1:]:
        both = np.signbit(result) | np.signbit(other) if operation == "min" else np.signbit(result) & np.signbit(other)
        zeros = (result == 0) & (other == 0)
        lost = np.isnan(result) | np.isnan(other)
        result = (np.fmin if operation == "min" else np.fmax)(result, other)
        result = np.where(zeros, np.where(both, -0.0, 0.0), result)
        result = np.where(lost, np.nan, result) if nan else result
    if xorsign:
        result = np.where(negative, -result, result)
    return whole(np.atleast_2d(encode(result, form)), values)


@runtime
def half_sign(operation, form, ftz, value):
    rows = halves(value)
    if ftz:
        small = (rows & np.uint16(0x7FFF)) < np.uint16(1 << FORMATS[form].precision - 1)
        rows = np.where(small, rows & np.uint16(0x8000), rows)
    rows = rows ^ np.uint16(0x8000) if operation == "neg" else rows & np.uint16(0x7FFF)
    return whole(rows, (value,))


@instruction("setp", types=SMALL, modifiers=MODIFIERS)
def setp(code, ins):
    """For a pair, the two results are those of its halves; for one value the second is the opposite."""
    target, a, b, *third = ins.operands
    kind = ins.type
    compared = code.temp(_compared(code, ins, a, b, kind))
    boolean = ins.one_of(*BOOLEANS)
    with_third = f" {BOOLEANS[boolean]} {code.value(third[0], 'pred')}" if boolean else ""
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    if kind.kind == "packed":
        results = [code.temp(f"own({compared}[:, {number}][()] if {compared}.shape[0] > 1 else {compared}[0, {number}]){with_third}")
                   for number in range(len(targets))]
    else:
        first = code.temp(f"own({compared}[:, 0] if {compared}.shape[0] > 1 else {compared}[0, 0])")
        results = [code.temp(f"{sign}{first}{with_third}") for sign in ("", "~")[:len(targets)]]
    for into, result in zip(targets, results):
        code.assign(into, result, "pred", alias=True)


def _compared(code, ins, a, b, kind) -> str:
    values, which = f"{bits(code, a, kind)}, {bits(code, b, kind)}", ins.one_of(*COMPARISONS)
    if which is None:
        raise PtxError(f"a comparison that is missing: {ins}")
    return f"half_compare({which!r}, {form_of(kind)!r}, {ins.has('ftz')}, {values})"


@runtime
def half_compare(which, form, ftz, a, b):
    """Rows of booleans: how each value of one compares with that of the other."""
    one, other = np.broadcast_arrays(opened(a, form, ftz), opened(b, form, ftz))
    lost = np.isnan(one) | np.isnan(other)
    if which in ("num", "nan"):
        return lost if which == "nan" else ~lost
    unordered = which.endswith("u") and which not in ORDERED
    functions = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
    result = functions[ORDERED[which[:2]]](one, other)
    return result | lost if unordered else result & ~lost


@instruction("set", types=SMALL, modifiers=MODIFIERS)
def set_(code, ins):
    """1.0 (or all ones, for integers) in each value for which the comparison holds."""
    target, a, b, *third = ins.operands
    result, compared = ins.types
    rows = _compared(code, ins, a, b, compared)
    if boolean := ins.one_of(*BOOLEANS):
        rows = f"({rows} {BOOLEANS[boolean]} np.atleast_1d({code.value(third[0], 'pred')})[:, None])"
    one = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}.get(form_of(result), 0xFFFFFFFF)
    code.assign(target, f"half_flags({rows}, {one}, {result.bits}, {compared.kind == 'packed'})", TYPES[f"b{result.bits}"])


@runtime
def half_flags(rows, one, bits_wide, packed):
    if packed:
        values = np.where(rows, np.uint16(one & 0xFFFF), np.uint16(0)).view(np.uint32)[:, 0]
    else:
        values = np.where(rows[:, 0], one & (1 << bits_wide) - 1, 0).astype(f"u{bits_wide // 8}")
    return values if len(values) > 1 else values[0]
