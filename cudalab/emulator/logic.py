"""Bits: logic, shifts, fields, counts.  PTX ISA, "Logic and Shift Instructions", "Integer Arithmetic Instructions: bfe, bfi, popc, …"."""

import numpy as np

from cudalab.emulator.errors import PtxError
from cudalab.emulator.program import Immediate
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.types import TYPES

SYMBOLS = {"and": "&", "or": "|", "xor": "^"}


@instruction("and", "or", "xor", types="pred b16 b32 b64")
def logic(code, ins):
    target, a, b = ins.operands
    code.assign(target, f"{code.value(a, ins.type)} {SYMBOLS[ins.parts[0]]} {code.value(b, ins.type)}", ins.type)


@instruction("not", types="pred b16 b32 b64")
def not_(code, ins):
    code.assign(ins.operands[0], f"~{code.value(ins.operands[1], ins.type)}", ins.type)


@instruction("cnot", types="b16 b32 b64")
def cnot(code, ins):
    code.assign(ins.operands[0], f"({code.value(ins.operands[1], ins.type)} == 0).astype(u{ins.type.bytes})", ins.type)


@instruction("lop3", types="b32", modifiers="or and")
def lop3(code, ins):
    """Any function of three bits, by its truth table; with .or or .and also whether the result is not zero, joined with a predicate."""
    target, a, b, c, table, *more = ins.operands
    if not isinstance(table, Immediate):
        raise PtxError(f"a truth table that is not a literal: {ins}")
    result = f"lop3_bits({code.value(a, 'b32')}, {code.value(b, 'b32')}, {code.value(c, 'b32')}, {table.value & 255})"
    if not more:
        code.assign(target, result, "b32")
        return
    result, joined = code.temp(result), "|" if ins.has("or") else "&"
    flag = code.temp(f"({result} != 0) {joined} {code.value(more[0], 'pred')}")
    code.assign(target.first, result, "b32", alias=True)
    code.assign(target.second, flag, "pred", alias=True)


@runtime
def lop3_bits(a, b, c, table):
    """The or of those of the eight combinations that the table names."""
    result = np.uint32(0)
    for number in range(8):
        if table >> number & 1:
            result = result | ((a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c))
    return result


@instruction("shl", "shr")
def shift(code, ins):
    target, value, amount = ins.operands
    kind = TYPES[f"u{ins.type.bits}"] if ins.type.kind == "bits" else ins.type
    if isinstance(amount, Immediate):
        by = code.constant(kind.dtype.type(min(amount.value & 0xFFFFFFFF, kind.bits)))
    elif kind.name == "u32":
        by = code.value(amount, "u32")
    else:
        by = f"np.minimum({code.value(amount, 'u32')}, {code.constant(np.uint32(kind.bits))}).astype({kind.dtype.kind}{kind.bytes})"
    code.assign(target, f"{code.value(value, kind)} {'<<' if ins.parts[0] == 'shl' else '>>'} {by}", kind)


@instruction("shf", types="b32", modifiers="l r clamp wrap")
def funnel_shift(code, ins):
    target, low, high, amount = ins.operands
    if not ins.one_of("l", "r") or not ins.one_of("clamp", "wrap"):
        raise PtxError(f"the direction or the limit of the shift is missing: {ins}")
    by = code.value(amount, "u32")
    by = f"({by} & {code.constant(np.uint32(31))})" if ins.has("wrap") else f"np.minimum({by}, {code.constant(np.uint32(32))})"
    function = "funnel_left" if ins.has("l") else "funnel_right"
    code.assign(target, f"{function}({code.value(low, 'b32')}, {code.value(high, 'b32')}, {by})", "b32")


def _joined(low, high):
    return high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)


@runtime
def funnel_left(low, high, by):
    return (_joined(low, high) << by.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


@runtime
def funnel_right(low, high, by):
    return (_joined(low, high) >> by.astype(np.uint64)).astype(np.uint32)


@instruction("popc", types="b32 b64")
def popc(code, ins):
    code.assign(ins.operands[0], f"bit_count({code.value(ins.operands[1], ins.type)})", "u32")


@runtime
def bit_count(value):
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(value).astype(np.uint32)
    octets = np.atleast_1d(value).view(np.uint8).reshape(-1, value.dtype.itemsize)
    counts = np.unpackbits(octets, axis=1).sum(axis=1, dtype=np.uint32)
    return counts if value.ndim else counts[0]


@instruction("clz", types="b32 b64")
def clz(code, ins):
    code.assign(ins.operands[0], f"leading_zeros({code.value(ins.operands[1], ins.type)})", "u32")


@runtime
def leading_zeros(value):
    """Smearing the highest bit downwards leaves as many ones as there are bits below and at it."""
    bits = 8 * value.dtype.itemsize
    for step in (1, 2, 4, 8, 16, 32)[:bits.bit_length() - 1]:
        value = value | value >> value.dtype.type(step)
    return np.uint32(bits) - bit_count(value)


@instruction("bfind", types="u32 s32 u64 s64", modifiers="shiftamt")
def bfind(code, ins):
    """The most significant bit that is not the sign; 0xffffffff where there is none."""
    value = code.value(ins.operands[1], ins.type)
    code.assign(ins.operands[0], f"find_bit({value}, {ins.has('shiftamt')})", "u32")


@runtime
def find_bit(value, amount):
    bits = 8 * value.dtype.itemsize
    if value.dtype.kind == "i":
        value = value ^ value >> value.dtype.type(bits - 1)
        value = value.view(f"u{bits // 8}")
    zeros = leading_zeros(value)
    found = zeros if amount else np.uint32(bits - 1) - zeros
    return np.where(value == 0, np.uint32(0xFFFFFFFF), found)[()]


@instruction("brev", types="b32 b64")
def brev(code, ins):
    code.assign(ins.operands[0], f"reverse_bits({code.value(ins.operands[1], ins.type)})", ins.type)


@runtime
def reverse_bits(value):
    octets = np.ascontiguousarray(np.atleast_1d(value)).view(np.uint8).reshape(-1, value.dtype.itemsize)
    turned = np.packbits(np.unpackbits(octets, axis=1)[:, ::-1], axis=1)
    result = np.ascontiguousarray(turned).view(value.dtype)[:, 0]
    return result if value.ndim else result[0]


@instruction("bfe", types="u32 s32 u64 s64")
def bfe(code, ins):
    target, value, start, length = ins.operands
    code.assign(target, f"extract({code.value(value, ins.type)}, {code.value(start, 'u32')}, {code.value(length, 'u32')})", ins.type)


@runtime
def extract(value, start, length):
    """A bit field, extended by its sign where the type has one; bits past the top count as the sign."""
    bits = 8 * value.dtype.itemsize
    top = np.uint64(bits)
    start, length = (start & np.uint32(255)).astype(np.uint64), (length & np.uint32(255)).astype(np.uint64)
    wide = value.astype(np.int64).view(np.uint64) if value.dtype.kind == "i" else value.astype(np.uint64)
    signed = value.dtype.kind == "i"
    field = wide.view(np.int64) >> np.minimum(start, np.uint64(63)).view(np.int64) if signed else shift_right(wide, start)
    length = np.minimum(length, np.uint64(64))
    left = np.uint64(64) - length
    if signed:
        # a field that reaches past the top takes the sign; the sign of a field that does not is its own topmost bit
        field = np.where(length == 0, np.int64(0), (field.view(np.uint64) << np.minimum(left, np.uint64(63))).view(np.int64)
                         >> np.minimum(left, np.uint64(63)).view(np.int64))[()]
        return np.asarray(field).astype(value.dtype)[()]
    mask = np.where(length >= top, ~np.uint64(0), (np.uint64(1) << np.minimum(length, np.uint64(63))) - np.uint64(1))
    return np.asarray(field & mask).astype(value.dtype)[()]


def shift_right(value, by):
    return np.where(by > np.uint64(63), np.uint64(0), value >> np.minimum(by, np.uint64(63)))[()]


@instruction("bfi", types="b32 b64")
def bfi(code, ins):
    target, field, into, start, length = ins.operands
    code.assign(target, f"insert({code.value(field, ins.type)}, {code.value(into, ins.type)}, {code.value(start, 'u32')}, "
                        f"{code.value(length, 'u32')})", ins.type)


@runtime
def insert(field, into, start, length):
    """`length` low bits of field put into `into` at `start`; what would lie past the top is dropped."""
    kind = into.dtype.type
    start, length = (start & np.uint32(255)).astype(into.dtype), (length & np.uint32(255)).astype(into.dtype)
    ones = np.where(length >= kind(8 * into.dtype.itemsize), ~kind(0), (kind(1) << length) - kind(1))
    mask = ones << start
    return (into & ~mask) | (field << start & mask)


@instruction("bmsk", types="b32", modifiers="clamp wrap")
def bmsk(code, ins):
    """A mask of `length` ones from `start` on."""
    target, start, length = ins.operands
    code.assign(target, f"bit_mask({code.value(start, 'u32')}, {code.value(length, 'u32')}, {ins.has('wrap')})", "b32")


@runtime
def bit_mask(start, length, wrap):
    if wrap:
        start, length = start & np.uint32(31), length & np.uint32(31)
    start, length = np.minimum(start, np.uint32(32)).astype(np.uint64), np.minimum(length, np.uint32(32)).astype(np.uint64)
    one = np.uint64(1)
    return ((((one << length) - one) << start) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


@instruction("szext", types="u32 s32", modifiers="clamp wrap")
def szext(code, ins):
    """The lowest bits, extended by zeros or by their sign."""
    target, value, length = ins.operands
    n = code.value(length, "u32")
    n = f"({n} & {code.constant(np.uint32(31))})" if ins.has("wrap") else f"np.minimum({n}, {code.constant(np.uint32(32))})"
    code.assign(target, f"extract({code.value(value, ins.type)}, {code.constant(np.uint32(0))}, {n})", ins.type)


@instruction("prmt", types="b32", modifiers="f4e b4e rc8 ecl ecr rc16")
def prmt(code, ins):
    target, a, b, selector = ins.operands
    mode = ins.one_of("f4e", "b4e", "rc8", "ecl", "ecr", "rc16") or "index"
    code.assign(target, f"permute({code.value(a, 'b32')}, {code.value(b, 'b32')}, {code.value(selector, 'u32')}, {mode!r})", "b32")


MODES = dict(f4e=[(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)], b4e=[(0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)],
             rc8=[(n, n, n, n) for n in range(4)], ecl=[(0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)],
             ecr=[(0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)], rc16=[(0, 1, 0, 1), (2, 3, 2, 3)] * 2)


@runtime
def permute(a, b, selector, mode):
    """Four bytes picked from eight; in the general mode bit 3 of a selector repeats the byte's sign instead."""
    eight = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
    result = np.uint32(0)
    for number in range(4):
        if mode == "index":
            nibble = selector >> np.uint32(4 * number) & np.uint32(15)
        else:
            nibble = np.array([row[number] for row in MODES[mode]], np.uint32)[selector & np.uint32(3)]
        byte = (eight >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint8)
        sign = (byte.view(np.int8) >> np.int8(7)).view(np.uint8)
        byte = np.where(nibble & np.uint32(8), sign, byte)
        result = result | byte.astype(np.uint32) << np.uint32(8 * number)
    return result


@instruction("fns", types="b32")
def fns(code, ins):
    """The n-th set bit from a base position."""
    target, mask, base, offset = ins.operands
    code.assign(target, f"nth_set({code.value(mask, 'b32')}, {code.value(base, 'u32')}, {code.value(offset, 's32')})", "b32")


@runtime
def nth_set(mask, base, offset):
    mask, base, offset = np.broadcast_arrays(np.atleast_1d(mask), base, offset)
    found = np.full(len(mask), 0xFFFFFFFF, np.uint32)
    for number, (bits, start, n) in enumerate(zip(mask.tolist(), base.tolist(), offset.tolist())):
        if n == 0:
            found[number] = start if bits >> start & 1 else 0xFFFFFFFF
            continue
        order = range(start, 32) if n > 0 else range(start, -1, -1)
        hits = [at for at in order if bits >> at & 1]
        if len(hits) >= abs(n):
            found[number] = hits[abs(n) - 1]
    return found if len(found) > 1 else found[0]
