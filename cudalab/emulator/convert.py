"""Conversions.  PTX ISA, "Data Movement and Conversion Instructions: cvt, cvt.pack"."""

import numpy as np

from cudalab.emulator.errors import PtxError
from cudalab.emulator.rounding import canonical, directed, to_f32, total_to_f32, two_sum
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.types import TYPES

TO_INTEGER = dict(rni=np.rint, rzi=np.trunc, rmi=np.floor, rpi=np.ceil)
MODES = ("rn", "rz", "rm", "rp", "rna")
PLAIN = ("f16", "bf16", "f32", "f64")


@instruction("cvt", modifiers="rn rz rm rp rna rni rzi rmi rpi ftz sat relu satfinite")
def cvt(code, ins):
    if len(ins.types) != 2:
        raise PtxError(f"this form of cvt is not supported: {ins}")
    result, source = ins.types
    target, a, *more = ins.operands
    if result.kind == "packed":
        _pack(code, ins, result, source, target, [a, *more])
    elif more:
        raise PtxError(f"this form of cvt is not supported: {ins}")
    elif result.kind == "float" and source.kind == "float":
        _float_to_float(code, ins, result, source, target, a)
    elif result.kind == "float":
        _int_to_float(code, ins, result, source, target, a)
    elif source.kind == "float":
        _float_to_int(code, ins, result, source, target, a)
    else:
        _int_to_int(code, ins, result, source, target, a)


def _mode(ins) -> str:
    return ins.one_of(*MODES) or "rn"


def _real(code, ins, operand, kind) -> str:
    """A floating-point operand as float32 or float64."""
    if kind.name in ("f16", "bf16"):
        return f"decode32({code.value(operand, f'b{kind.bits}')}, {kind.name!r})"
    if kind.name not in PLAIN:
        raise PtxError(f"this form of cvt is not supported: {ins}")
    value = code.value(operand, kind)
    return f"flush({value})" if ins.has("ftz") and kind.name == "f32" else value


def _int_to_int(code, ins, result, source, target, a):
    value = code.value(a, source)
    if ins.has("sat"):
        code.assign(target, f"narrow({value}, {code.constant(result.dtype)})", result)
    elif result.bits == source.bits:
        code.assign(target, f"{value}.astype({result.dtype.kind}{result.bytes})", result)
    else:  # the value is extended by its own sign, or cut
        code.assign(target, f"{value}.astype({result.dtype.kind}{result.bytes})", result)


@runtime
def narrow(value, dtype):
    """Clamped to the range of an integer type."""
    limits, own = np.iinfo(dtype), np.iinfo(value.dtype)
    low, high = value.dtype.type(max(limits.min, own.min)), value.dtype.type(min(limits.max, own.max))
    return np.clip(value, low, high).astype(dtype)


def _int_to_float(code, ins, result, source, target, a):
    value = code.value(a, source)
    if ins.has("sat"):  # nothing between 0 and 1 is an integer
        value = f"np.clip({value}, {code.constant(source.dtype.type(0))}, {code.constant(source.dtype.type(1))})"
    code.assign(target, f"int_to_float({value}, {result.name!r}, {_mode(ins)!r})", result if result.bits > 16 else TYPES["b16"])


@runtime
def int_to_float(value, name, mode):
    """An integer as a float, rounded once."""
    from cudalab.emulator.formats import encode
    if name == "f32" and mode == "rn":
        return value.astype(np.float32)
    if name == "f64" and mode == "rn":
        return value.astype(np.float64)
    value = np.asarray(value)
    if value.dtype.itemsize < 8:
        upper, lower = value.astype(np.float64), np.zeros(value.shape)
    else:
        upper = (value >> value.dtype.type(32)).astype(np.float64) * 4294967296.0
        lower = (value & value.dtype.type(0xFFFFFFFF)).astype(np.float64)
    if name == "f32":
        return np.where(value == 0, np.float32(0), total_to_f32(upper, lower, mode))[()]
    total, error = two_sum(upper, lower)
    if name == "f64":
        return directed(total, error < 0, error > 0, mode, total < 0)
    from cudalab.emulator.rounding import odd
    return encode(odd(total, error), name, mode)


def _float_to_int(code, ins, result, source, target, a):
    rounding = ins.one_of(*TO_INTEGER)
    if rounding is None:
        raise PtxError(f"a conversion to an integer without a rounding: {ins}")
    wide = source.name == "f64" or result.bits == 64
    code.assign(target, f"float_to_int({_real(code, ins, a, source)}, {code.constant(result.dtype)}, {rounding!r}, {wide})", result)


@runtime
def float_to_int(value, dtype, rounding, wide):
    """Rounded to an integer and clamped to its type.  NaN gives 0, or, where one side has 64 bits, the highest bit alone."""
    limits = np.iinfo(dtype)
    whole = np.asarray(TO_INTEGER[rounding](value.astype(np.float64)))
    over, under = whole >= float(limits.max) + (limits.bits < 64), whole < float(limits.min)
    plain = np.where(over | under | np.isnan(whole), 0, whole).astype(np.int64 if dtype.kind == "i" else np.uint64).astype(dtype)
    result = np.where(over, dtype.type(limits.max), np.where(under, dtype.type(limits.min), plain))
    lost = np.isnan(whole)
    if lost.any():
        alone = np.array(1 << limits.bits - 1, f"u{dtype.itemsize}").astype(dtype) if wide else dtype.type(0)
        result = np.where(lost, alone, result)
    return result[()]


def _float_to_float(code, ins, result, source, target, a):
    value = _real(code, ins, a, source)
    integral = ins.one_of(*TO_INTEGER)
    if integral:
        value = f"round_to_integer({value}, {integral!r})"
    if result.name in ("f16", "bf16", "tf32"):
        if result.name == "tf32" and source.name != "f32" or ins.has("sat") and result.name != "f16":
            raise PtxError(f"this form of cvt is not supported: {ins}")
        if ins.has("sat"):
            value = f"saturate({value})"
        code.assign(target, f"encode({value}, {result.name!r}, {_mode(ins)!r}, {ins.has('satfinite')}, {ins.has('relu')})",
                    TYPES[f"b{result.bits}"])
        return
    if result.name == "f32":
        value = f"as_float32({value}, {_mode(ins)!r})"
        if ins.has("ftz") and source.name == "f64":
            value = f"flush({value})"
    elif result.name == "f64":
        value = f"{value}.astype(f8)"
    else:
        raise PtxError(f"this form of cvt is not supported: {ins}")
    code.assign(target, f"saturate({value})" if ins.has("sat") else value, result)


@runtime
def round_to_integer(value, rounding):
    return TO_INTEGER[rounding](value)


@runtime
def as_float32(value, mode):
    """float32 of any float, NaN canonical."""
    if value.dtype == np.float32:
        return canonical(np.array(value)[()] if not value.ndim else value.copy())
    return canonical(to_f32(value, mode))


def _pack(code, ins, result, source, target, operands):
    """Two values into one register: the first operand, or the upper half of a pair, is the upper half."""
    name, flags = result.name[:-2], f"{_mode(ins)!r}, {ins.has('satfinite')}, {ins.has('relu')}"
    if source.name == "f32" and len(operands) == 2 and name in ("f16", "bf16", "e4m3", "e5m2"):
        upper, lower = (f"encode({_real(code, ins, o, source)}, {name!r}, {flags})" for o in operands)
        code.assign(target, f"join_halves({upper}, {lower})", f"b{result.bits}")
        return
    forms = source.name[:-2], name
    if forms not in (("e4m3", "f16"), ("e5m2", "f16"), ("f16", "e4m3"), ("f16", "e5m2")) or len(operands) != 1:
        raise PtxError(f"this form of cvt is not supported: {ins}")
    pair = code.temp(f"split_halves({code.value(operands[0], f'b{source.bits}')})")
    upper, lower = (f"encode(decode32({pair}[{n}], {forms[0]!r}), {name!r}, {flags})" for n in (1, 0))
    code.assign(target, f"join_halves({upper}, {lower})", f"b{result.bits}")


@runtime
def join_halves(upper, lower):
    """Two numbers of 8 or 16 bits in one of twice as many."""
    wide = np.dtype(f"u{2 * upper.dtype.itemsize}")
    return upper.astype(wide) << wide.type(8 * upper.dtype.itemsize) | lower


@runtime
def split_halves(value):
    """The lower and the upper half of numbers of 16 or 32 bits."""
    narrow = np.dtype(f"u{value.dtype.itemsize // 2}")
    return value.astype(narrow), (value >> value.dtype.type(8 * narrow.itemsize)).astype(narrow)


@instruction("cvt.pack", modifiers="sat u4 s4 u2 s2")
def cvt_pack(code, ins):
    """Two integers clamped and packed, above what is shifted up of a third."""
    kind = ins.parts[3]
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    target, a, b, *c = ins.operands
    third = code.value(c[0], "b32") if c else code.constant(np.uint32(0))
    code.assign(target, f"pack_integers({code.value(a, 's32')}, {code.value(b, 's32')}, {third}, {low}, {high}, {bits})", "b32")


@runtime
def pack_integers(a, b, c, low, high, bits):
    a, b = (np.clip(x, np.int32(low), np.int32(high)).astype(np.uint32) & np.uint32((1 << bits) - 1) for x in (a, b))
    above = c << np.uint32(2 * bits) if bits < 16 else np.uint32(0)
    return above | a << np.uint32(bits) | b
