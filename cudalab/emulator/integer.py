"""Integer arithmetic.  PTX ISA, "Integer Arithmetic Instructions", "Extended-Precision Integer Arithmetic Instructions"."""

import numpy as np

from cudalab.emulator.errors import PtxError
from cudalab.emulator.segments import CARRY
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.types import INTEGERS, TYPES

SIGNED = "s16 s32 s64"
PAIRS = "u16x2 s16x2"


def unsigned(kind):
    """The unsigned type of the same width: arithmetic modulo a power of two needs no sign."""
    return TYPES[f"u{kind.bits}"]


@instruction("add", "sub", types=INTEGERS, modifiers="sat")
def add_sub(code, ins):
    target, a, b = ins.operands
    if ins.has("sat"):
        wide = {k: f"{code.value(o, ins.type)}.astype(i8)" for k, o in (("a", a), ("b", b))}
        sign = "+" if ins.parts[0] == "add" else "-"
        code.assign(target, f"np.clip({wide['a']} {sign} {wide['b']}, -2147483648, 2147483647).astype(i4)", "s32")
        return
    kind = unsigned(ins.type)
    code.assign(target, f"{code.value(a, kind)} {'+' if ins.parts[0] == 'add' else '-'} {code.value(b, kind)}", kind)


@instruction("add.cc", "addc", "addc.cc", "sub.cc", "subc", "subc.cc", types="u32 s32 u64 s64")
def add_with_carry(code, ins):
    target, a, b = ins.operands
    kind = unsigned(ins.type)
    subtract, uses = ins.parts[0].startswith("sub"), ins.parts[0].endswith("c")
    carry = code.register(CARRY) if uses else code.constant(np.uint32(subtract))
    result = code.temp(f"{'sub' if subtract else 'add'}_carry({code.value(a, kind)}, {code.value(b, kind)}, {carry})")
    if ins.has("cc"):
        code.assign(CARRY, f"{result}[1]", "u32")
    code.assign(target, f"{result}[0]", kind)


@runtime
def add_carry(a, b, carry):
    """Sum and carry out (0 or 1)."""
    part = a + b
    total = part + carry.astype(part.dtype)
    return total, ((part < a) | (total < part)).astype(np.uint32)


@runtime
def sub_carry(a, b, carry):
    """Difference and carry out of a + ~b + carry: 1 where nothing was borrowed.

    The ISA speaks of a borrow, but NVIDIA's own 128-bit division reads the flag of a subtraction by addc, and needs it so.
    """
    return add_carry(a, ~b, carry)


@instruction("mul", "mad", types=INTEGERS, modifiers="lo hi wide sat")
def mul_mad(code, ins):
    target, a, b, *c = ins.operands
    kind, adds = ins.type, ins.parts[0] == "mad"
    if not ins.one_of("lo", "hi", "wide"):
        raise PtxError(f"which half of the product is missing: {ins}")
    if ins.has("wide"):
        wide = TYPES[f"{kind.name[0]}{2 * kind.bits}"]
        product, result = f"{code.widened(a, kind, wide)} * {code.widened(b, kind, wide)}", wide
    elif ins.has("hi"):
        product, result = f"mul_high({code.value(a, kind)}, {code.value(b, kind)})", kind
    else:
        result = unsigned(kind)
        product = f"{code.value(a, result)} * {code.value(b, result)}"
    if adds and ins.has("sat"):
        total = f"({product}).astype(i8) + {code.value(c[0], kind)}.astype(i8)"
        code.assign(target, f"np.clip({total}, -2147483648, 2147483647).astype(i4)", kind)
    else:
        code.assign(target, f"{product} + {code.value(c[0], result)}" if adds else product, result)


@instruction("mad.lo.cc", "mad.hi.cc", "madc.lo", "madc.hi", "madc.lo.cc", "madc.hi.cc", types="u32 s32 u64 s64")
def mad_with_carry(code, ins):
    target, a, b, c = ins.operands
    kind = unsigned(ins.type)
    if ins.has("hi"):
        product = f"mul_high({code.value(a, ins.type)}, {code.value(b, ins.type)}).view(u{kind.bytes})"
    else:
        product = f"({code.value(a, kind)} * {code.value(b, kind)})"
    carry = code.register(CARRY) if ins.parts[0] == "madc" else code.constant(np.uint32(0))
    result = code.temp(f"add_carry({product}, {code.value(c, kind)}, {carry})")
    if ins.has("cc"):
        code.assign(CARRY, f"{result}[1]", "u32")
    code.assign(target, f"{result}[0]", kind)


@runtime
def mul_high(a, b):
    """The upper half of a product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return (a.astype(wide) * b.astype(wide) >> wide.type(bits)).astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    cross = (x & low) * (y & low) >> half
    first = (x >> half) * (y & low) + cross
    second = (x & low) * (y >> half) + (first & low)
    high = (x >> half) * (y >> half) + (first >> half) + (second >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(a.dtype)


@instruction("mul24", "mad24", types="u32 s32", modifiers="lo hi sat")
def mul24(code, ins):
    target, a, b, *c = ins.operands
    if not ins.one_of("lo", "hi"):
        raise PtxError(f"which half of the product is missing: {ins}")
    product = f"mul24_{ins.one_of('lo', 'hi')}({code.value(a, ins.type)}, {code.value(b, ins.type)})"
    if c and ins.has("sat"):
        product = f"np.clip({product}.astype(i8) + {code.value(c[0], ins.type)}.astype(i8), -2147483648, 2147483647).astype(i4)"
    elif c:
        product = f"({product} + {code.value(c[0], ins.type)})"
    code.assign(target, product, ins.type)


def _product24(a, b):
    if a.dtype.kind == "i":
        eight = np.int32(8)
        return (a << eight >> eight).astype(np.int64) * (b << eight >> eight).astype(np.int64)
    return (a & np.uint32(0xFFFFFF)).astype(np.uint64) * (b & np.uint32(0xFFFFFF)).astype(np.uint64)


@runtime
def mul24_lo(a, b):
    return _product24(a, b).astype(a.dtype)


@runtime
def mul24_hi(a, b):
    product = _product24(a, b)
    return (product >> product.dtype.type(16)).astype(a.dtype)


@instruction("div", "rem", types=INTEGERS)
def div_rem(code, ins):
    target, a, b = ins.operands
    code.assign(target, f"int_{ins.parts[0]}({code.value(a, ins.type)}, {code.value(b, ins.type)})", ins.type)


@runtime
def int_div(a, b):
    """Quotient towards zero; by zero all bits are set, as devices do (PTX leaves it open)."""
    if a.dtype.kind == "i":
        quotient = np.floor_divide(a - np.fmod(a, b), b)
    else:
        quotient = np.floor_divide(a, b)
    ones = np.array(-1).astype(a.dtype)
    return np.where(b == 0, ones, quotient)[()] if (b == 0).any() else quotient


@runtime
def int_rem(a, b):
    remainder = np.fmod(a, b)
    return np.where(b == 0, np.array(-1).astype(a.dtype), remainder)[()] if (b == 0).any() else remainder


@instruction("min", "max", types=INTEGERS + " " + PAIRS, modifiers="relu")
def min_max(code, ins):
    target, a, b = ins.operands
    function = f"np.{ins.parts[0]}imum"
    if ins.type.kind == "packed":
        part = TYPES[ins.type.name[:3]]
        pairs = [_pair(code, o, part) for o in (a, b)]
        result = f"{function}({pairs[0]}, {pairs[1]})"
        result = f"np.maximum({result}, {code.constant(np.int16(0))})" if ins.has("relu") else result
        code.assign(target, f"join_pair({result})", "b32")
        return
    result = f"{function}({code.value(a, ins.type)}, {code.value(b, ins.type)})"
    code.assign(target, f"np.maximum({result}, {code.constant(np.int32(0))})" if ins.has("relu") else result, ins.type)


@instruction("add", types=PAIRS)
def add_pair(code, ins):
    target, a, b = ins.operands
    part = TYPES["u16"]
    code.assign(target, f"join_pair({_pair(code, a, part)} + {_pair(code, b, part)})", "b32")


def _pair(code, operand, part):
    return f"split_pair({code.value(operand, 'b32')}, {part.dtype.kind}2)"


@runtime
def split_pair(value, dtype):
    """Both halves of 32-bit values, as the two columns of an array."""
    return np.atleast_1d(value).view(dtype).reshape(-1, 2)


@runtime
def join_pair(pairs):
    """32-bit values of two columns of halves."""
    joined = np.ascontiguousarray(pairs).view(np.uint32)[:, 0]
    return joined if len(joined) > 1 else joined[0]


@instruction("abs", "neg", types=SIGNED)
def abs_neg(code, ins):
    code.assign(ins.operands[0], f"np.{'abs' if ins.parts[0] == 'abs' else 'negative'}({code.value(ins.operands[1], ins.type)})", ins.type)


@instruction("sad", types=INTEGERS)
def sad(code, ins):
    target, a, b, c = ins.operands
    a, b, c = (code.value(o, ins.type) for o in (a, b, c))
    code.assign(target, f"np.maximum({a}, {b}) - np.minimum({a}, {b}) + {c}", ins.type)


@instruction("dp4a", "dp2a", modifiers="lo hi")
def dot(code, ins):
    """Four products of bytes, or two of halves with bytes, and an addend."""
    target, a, b, c = ins.operands
    first, second = ins.types[-2], ins.types[-1]
    result = TYPES["u32" if first.kind == second.kind == "unsigned" else "s32"]
    shift = 16 if ins.has("hi") else 0
    width = 8 if ins.parts[0] == "dp4a" else 16
    code.assign(target, f"dot_bytes({code.value(a, 'u32')}, {code.value(b, 'u32')}, {code.value(c, 'u32')}, {width}, {shift}, "
                        f"{first.kind == 'signed'}, {second.kind == 'signed'}).view({result.dtype.kind}4)", result)


@runtime
def dot_bytes(a, b, c, width, shift, signed_a, signed_b):
    total = c
    for number in range(32 // width):
        one = a >> np.uint32(width * number) & np.uint32((1 << width) - 1)
        other = b >> np.uint32(8 * number + shift) & np.uint32(0xFF)
        one = one.astype(f"u{width // 8}").view(f"i{width // 8}").astype(np.int32).view(np.uint32) if signed_a else one
        other = other.astype(np.uint8).view(np.int8).astype(np.int32).view(np.uint32) if signed_b else other
        total = total + one * other
    return total
