"""Single and double precision.  PTX ISA, "Floating Point Instructions"; what hardware approximates is computed in float64 and rounded."""

import numpy as np

from cudalab.emulator.rounding import add32_rounded, canonical, flush, fma32_rounded, mul32_rounded
from cudalab.emulator.table import instruction, runtime

MODES = "rn rz rm rp"
SYMBOLS = dict(add="+", sub="-", mul="*", div="/")


def finish(code, ins, target, expression):
    """Assign a float32 or float64 result of arithmetic, with .ftz and .sat done."""
    if ins.has("ftz"):
        expression = f"flush({expression})"
    if ins.has("sat"):
        expression = f"saturate({expression})"
    code.assign(target, expression, ins.type, number=True)


def sources(code, ins, operands):
    values = [code.value(o, ins.type, number=True) for o in operands]
    return [f"flush({v})" for v in values] if ins.has("ftz") else values


def mode_of(ins) -> str:
    return ins.one_of(*MODES.split()) or "rn"


@instruction("add", "sub", "mul", types="f32 f64", modifiers=f"{MODES} ftz sat")
def add_sub_mul(code, ins):
    a, b = sources(code, ins, ins.operands[1:])
    operation, mode = ins.parts[0], mode_of(ins)
    if mode != "rn":
        if operation == "sub":
            operation, b = "add", f"(-{b})"
        finish(code, ins, ins.operands[0], f"{operation}{ins.type.bits}_rounded({a}, {b}, {mode!r})")
    else:
        finish(code, ins, ins.operands[0], f"{a} {SYMBOLS[operation]} {b}")


@instruction("add", "sub", "mul", "fma", types="f32x2", modifiers=f"{MODES} ftz")
def arithmetic_of_pairs(code, ins):
    """Two single-precision values in 64 bits."""
    values = ", ".join(code.value(o, "b64") for o in ins.operands[1:])
    code.assign(ins.operands[0], f"pair_arithmetic({ins.parts[0]!r}, {mode_of(ins)!r}, {ins.has('ftz')}, count, {values})", "b64")


@runtime
def pair_arithmetic(operation, mode, ftz, count, *values):
    """Both halves of every lane as one long vector."""
    parts = [np.ascontiguousarray(np.broadcast_to(v, count)).view(np.float32) for v in values]
    a, b, *c = [flush(part) for part in parts] if ftz else parts
    if operation == "mul":
        result = mul32_rounded(a, b, mode)
    elif operation == "fma":
        result = fma32_rounded(a.astype(np.float64), b.astype(np.float64), c[0], mode)
    else:
        result = add32_rounded(a, -b if operation == "sub" else b, mode)
    result = canonical(np.array(result))
    return (flush(result) if ftz else result).view(np.uint64)


@instruction("fma", "mad", types="f32 f64", modifiers=f"{MODES} ftz sat")
def fma(code, ins):
    target, a, b, c = ins.operands
    mode = mode_of(ins)
    if ins.type.name == "f64":
        finish(code, ins, target, f"fma64({', '.join(sources(code, ins, (a, b, c)))}, {mode!r})")
        return
    if ins.has("ftz"):
        a, b, c = sources(code, ins, (a, b, c))
        a, b = f"{a}.astype(f8)", f"{b}.astype(f8)"
    else:
        a, b, c = code.double(a), code.double(b), code.value(c, "f32", number=True)
    finish(code, ins, target, f"fma32({a}, {b}, {c})" if mode == "rn" else f"fma32_rounded({a}, {b}, {c}, {mode!r})")


@instruction("div", types="f32 f64", modifiers=f"{MODES} ftz approx full")
def div(code, ins):
    a, b = sources(code, ins, ins.operands[1:])
    if ins.has("approx"):
        finish(code, ins, ins.operands[0], f"div_approx({a}, {b})")
    elif mode_of(ins) != "rn":
        finish(code, ins, ins.operands[0], f"div{ins.type.bits}_rounded({a}, {b}, {mode_of(ins)!r})")
    else:
        finish(code, ins, ins.operands[0], f"{a} / {b}")


@runtime
def div_approx(a, b):
    """Within 2 ulp; a divisor beyond 2**126 gives 0, or NaN below an infinity."""
    huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    with_huge = np.where(np.isinf(a), np.float32(np.nan), np.copysign(np.float32(0), a) * np.sign(b))
    return np.where(huge & ~np.isnan(a), with_huge, a / b)[()]



@instruction("rcp", types="f32 f64", modifiers=f"{MODES} ftz approx")
def rcp(code, ins):
    (a,) = sources(code, ins, ins.operands[1:])
    one = code.constant(ins.type.dtype.type(1))
    if ins.type.name == "f64" and ins.has("approx"):
        code.assign(ins.operands[0], f"upper_bits(1.0 / upper_bits({code.value(ins.operands[1], 'f64')}))", "f64")
    elif mode_of(ins) != "rn":
        finish(code, ins, ins.operands[0], f"div{ins.type.bits}_rounded({one}, {a}, {mode_of(ins)!r})")
    else:
        finish(code, ins, ins.operands[0], f"{one} / {a}")


@runtime
def upper_bits(value):
    """rcp and rsqrt.approx.ftz.f64 see and give the upper 32 bits only, flush subnormals, and know one NaN."""
    flushed = np.where(np.abs(value) < 2.0**-1022, np.copysign(0.0, value), value)
    bits = np.where(np.isnan(flushed), np.uint64(0x7FFFFFFF00000000), flushed.view(np.uint64) & np.uint64(0xFFFFFFFF00000000))
    return bits.view(np.float64)[()]


@instruction("sqrt", types="f32 f64", modifiers=f"{MODES} ftz approx")
def sqrt(code, ins):
    (a,) = sources(code, ins, ins.operands[1:])
    if mode_of(ins) != "rn":
        finish(code, ins, ins.operands[0], f"sqrt{ins.type.bits}_rounded({a}, {mode_of(ins)!r})")
    else:
        finish(code, ins, ins.operands[0], f"np.sqrt({a})")


@instruction("rsqrt", types="f32 f64", modifiers="ftz approx")
def rsqrt(code, ins):
    if ins.type.name == "f64":
        a = code.value(ins.operands[1], "f64")
        code.assign(ins.operands[0], f"upper_bits(1.0 / np.sqrt(upper_bits({a})))" if ins.has("ftz") else f"1.0 / np.sqrt({a})", "f64")
    else:
        (a,) = sources(code, ins, ins.operands[1:])
        finish(code, ins, ins.operands[0], f"in_double({a}, reciprocal_root)")


@instruction("sin", "cos", "lg2", "ex2", "tanh", types="f32", modifiers="ftz approx")
def approximate(code, ins):
    (a,) = sources(code, ins, ins.operands[1:])
    function = dict(sin="np.sin", cos="np.cos", lg2="np.log2", ex2="np.exp2", tanh="np.tanh")[ins.parts[0]]
    finish(code, ins, ins.operands[0], f"in_double({a}, {function})")


@runtime
def in_double(value, function):
    """An approximate function: float64, rounded to float32, which is within every bound that PTX gives."""
    return function(value.astype(np.float64)).astype(np.float32)


@runtime
def reciprocal_root(value):
    return 1.0 / np.sqrt(value)


@instruction("abs", "neg", types="f32 f64", modifiers="ftz")
def abs_neg(code, ins):
    (a,) = sources(code, ins, ins.operands[1:])
    function = "np.abs" if ins.parts[0] == "abs" else "np.negative"
    code.assign(ins.operands[0], f"{function}({a})", ins.type)


@instruction("min", "max", types="f32 f64", modifiers="ftz NaN xorsign abs")
def min_max(code, ins):
    target, *operands = ins.operands
    values = sources(code, ins, operands)
    function = f"float_{ins.parts[0]}"
    a, b, *more = values
    signs = f"sign_of({a}, {b})" if ins.has("xorsign") else None
    if ins.has("abs"):
        a, b, *more = (f"np.abs({v})" for v in values)
    result = f"{function}({a}, {b}, {ins.has('NaN')})"
    for c in more:
        result = f"{function}({result}, {c}, {ins.has('NaN')})"
    finish(code, ins, target, f"with_sign({result}, {signs})" if signs else result)


@runtime
def float_min(a, b, nan):
    return _extreme(a, b, nan, np.fmin, np.bitwise_or)


@runtime
def float_max(a, b, nan):
    return _extreme(a, b, nan, np.fmax, np.bitwise_and)


def _extreme(a, b, nan, function, signs):
    """The one operand that is a number where the other is NaN (with .NaN: NaN); +0 is larger than -0."""
    result = function(a, b)
    zeros = (a == 0) & (b == 0)
    if zeros.any():
        bits = f"u{result.dtype.itemsize}"
        both = signs(np.asarray(a).view(bits), np.asarray(b).view(bits)).view(result.dtype)
        result = np.where(zeros, both, result)[()]
    lost = (a != a) | (b != b) if nan else (a != a) & (b != b)
    if lost.any():
        quiet = np.uint32(0x7FFFFFFF).view(np.float32) if result.dtype == np.float32 else np.float64(np.nan)
        result = np.where(lost, quiet, result)[()]
    return result


@runtime
def sign_of(a, b):
    return np.signbit(a) ^ np.signbit(b)


@runtime
def with_sign(value, negative):
    return np.where(negative, -np.abs(value), np.abs(value))[()]


@instruction("copysign", types="f32 f64")
def copysign(code, ins):
    target, a, b = ins.operands
    code.assign(target, f"np.copysign({code.value(b, ins.type)}, {code.value(a, ins.type)})", ins.type)


@instruction("testp", types="f32 f64", modifiers="finite infinite number notanumber normal subnormal")
def testp(code, ins):
    value = code.value(ins.operands[1], ins.type)
    code.assign(ins.operands[0], f"is_{ins.parts[1]}({value})", "pred")


@runtime
def is_finite(x):
    return np.isfinite(x)


@runtime
def is_infinite(x):
    return np.isinf(x)


@runtime
def is_number(x):
    return ~np.isnan(x)


@runtime
def is_notanumber(x):
    return np.isnan(x)


@runtime
def is_normal(x):
    """Zeros count as normal numbers."""
    return np.isfinite(x) & ((np.abs(x) >= np.finfo(x.dtype).tiny) | (x == 0))


@runtime
def is_subnormal(x):
    return (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)
