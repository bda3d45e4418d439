"""Matrix multiply-accumulate of a warp.  PTX ISA, "Warp-level Matrix Instructions: mma" ("Multiply-and-Accumulate Instruction: mma"),
"Matrix Shape", "Matrix Data-types".

All that mma.sync has on sm_80 to sm_90 but m8n8k4 of f16 (Volta's) and mma.sp: f16, bf16, tf32, f64, e4m3 and e5m2, integers of 8, 4 and
1 bits.  Elements of A and B become float64, in which their products are exact; fragments.py says which lane holds what, accumulate.py how
floating-point sums are rounded.  Integer sums are exact and wrap around at 32 bits, or with .satfinite stop at the limits.  Sums in f64 are
a fused multiply-add after another, k upwards: PTX says that its precision is that of fma, not the order.  NaN results are canonical.
"""

import re
from dataclasses import dataclass

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.errors import PtxError
from cudalab.emulator.fragments import FRAGMENTS, HALF_C, Fragments, Map
from cudalab.emulator.matrix import together
from cudalab.emulator.program import Register, Vector
from cudalab.emulator.rounding import fma64
from cudalab.emulator.segments import registers_of
from cudalab.emulator.table import instruction, runtime

ROUNDING = "rn|rz|rm|rp"
FORM = re.compile(rf"mma\.sync\.aligned\.(?P<shape>m\d+n\d+k\d+)\.row\.col(?:\.(?P<satfinite>satfinite))?(?:\.(?P<early>{ROUNDING}))?"
                  r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)\.(?P<c>\w+)"
                  rf"(?:\.(?P<bits>and|xor)\.popc)?(?:\.(?P<late>{ROUNDING}))?")
PARTS = ("aligned m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m16n8k128 m16n8k256 m8n8k4 m8n8k16 m8n8k32 m8n8k128 row col satfinite "
         "s4 u4 b1 and xor popc rn rz rm rp")


@dataclass(frozen=True)
class Family:
    """Element types that may meet in A and B, their bits, the types of C and D they go with, and how they are multiplied."""

    kinds: tuple[str, ...]
    bits: int
    results: tuple[str, ...]
    way: str
    rows: tuple[int, ...] = (16,)


FAMILIES = (
    Family(("f16",), 16, ("f16", "f32"), "real"),
    Family(("bf16",), 16, ("f32",), "real"),
    Family(("tf32",), 32, ("f32",), "real"),
    Family(("e4m3", "e5m2"), 8, ("f16", "f32"), "real"),
    Family(("f64",), 64, ("f64",), "double", (8, 16)),
    Family(("s8", "u8"), 8, ("s32",), "integer", (8, 16)),
    Family(("s4", "u4"), 4, ("s32",), "integer", (8, 16)),
    Family(("b1",), 1, ("s32",), "bits", (8, 16)),
)


@dataclass(frozen=True)
class Form:
    """What one mma does: maps of its fragments, types, what it makes of products and sums.  detail: rounding mode, "and" or "xor"."""

    fragments: Fragments
    kinds: tuple[str, str]
    result: str
    way: str
    satfinite: bool
    detail: str

    @property
    def c(self) -> Map:
        """The map of C and D."""
        return HALF_C if self.result == "f16" else self.fragments.c


def form_of(ins) -> Form:
    """Raises PtxError for a combination of shape and types that sm_80 to sm_90 do not have."""
    found = FORM.fullmatch(ins.mnemonic)
    if found:
        kinds = found["a"], found["b"]
        for family in FAMILIES:
            fragments = FRAGMENTS.get((found["shape"], family.bits))
            if set(kinds) <= set(family.kinds) and fragments and fragments.sizes[0] in family.rows \
                    and found["d"] == found["c"] and found["d"] in family.results \
                    and (not found["satfinite"] or family.way == "integer") and bool(found["bits"]) == (family.way == "bits") \
                    and (not (found["early"] or found["late"]) or family.way == "double"):
                return Form(fragments, kinds, found["d"], family.way, bool(found["satfinite"]),
                            found["bits"] or found["early"] or found["late"] or "rn")
    raise PtxError(f"this form of mma is not supported: {ins}")


@instruction("mma.sync", modifiers=PARTS, collective=WARP)
def mma(code, ins):
    form = form_of(ins)
    target, a, b, c = ins.operands
    for operand, wanted in ((target, form.c), (a, form.fragments.a), (b, form.fragments.b), (c, form.c)):
        if not isinstance(operand, Vector) or len(operand.items) != wanted.count:
            raise PtxError(f"a fragment with another number of registers than {wanted.count}: {ins}")
    together(code)
    factors = [fragment(code, operand.items, held, kind) for operand, held, kind in
               ((a, form.fragments.a, form.kinds[0]), (b, form.fragments.b, form.kinds[1]), (c, form.c, form.result))]
    result = code.temp(f"multiply_add(chunk, {code.constant(form)}, {', '.join(factors)})")
    plain = code.mask is None and all(isinstance(item, Register) for item in target.items) and len(set(target.items)) == len(target.items)
    if not (plain and passed_on(code, target, form)):
        registers = code.temp(f"in_registers({code.constant(form)}, {result})")
        for number, item in enumerate(target.items):
            code.assign(item, f"{registers}[{number}]", "b32" if form.result == "f16" else form.result)
    if plain:
        code.keep((form.c, form.result), target.items, result)  # the accumulator of the next mma


def passed_on(code, target: Vector, form: Form) -> bool:
    """Are the registers of D next read, in this segment, by an mma that adds to them and writes them, and that alone?"""
    names = set(target.items)
    for other in code.image.instructions[code.site + 1:code.segment.end]:
        if other.predicate in names or any(names.intersection(registers_of(operand)) for operand in other.operands):
            if other.parts[:2] != ("mma", "sync") or other.predicate is not None or len(other.operands) != 4:
                return False
            d, a, b, c = other.operands
            return d == target and c == target and not names.intersection((*registers_of(a), *registers_of(b))) \
                and form_of(other).c == form.c and form_of(other).result == form.result
    return False


def fragment(code, items, held: Map, kind: str) -> str:
    """A local variable for the matrices whose fragments are in registers; computed once as long as those stay as they are."""
    values = ", ".join(code.value(item, kind if kind in ("f32", "f64", "s32") else "b32") for item in items)
    expression = f"matrices({code.constant(held)}, {kind!r}, ({values},), count)"
    if all(isinstance(item, Register) for item in items):
        return code.derived((held, kind), items, expression)
    return code.temp(expression)


@runtime
def matrices(held: Map, kind: str, registers: tuple, count: int) -> np.ndarray:
    """The matrices of all warps, (warps, rows, columns): A and B as float64, C in its own type."""
    return held.gather([value if value.ndim else np.full(count, value) for value in registers], kind)


@runtime
def multiply_add(chunk, form: Form, a, b, c) -> np.ndarray:
    """D = A B + C of all warps."""
    if form.way == "real":
        return chunk.accumulator.multiply_add("mma", form.kinds, a, b, c, form.result)
    return fused_sums(a, b, c, form.detail) if form.way == "double" else whole_sums(a, b, c, form)


@runtime
def in_registers(form: Form, result: np.ndarray) -> list[np.ndarray]:
    """The registers of D, one value a lane each."""
    held = form.c.scatter(result)
    return [values.view(np.uint32)[:, 0] if form.result == "f16" else values.reshape(-1) for values in held]


def whole_sums(a, b, c, form: Form) -> np.ndarray:
    """Sums of integers: products of at most 16 bits, a few hundred of them, are exact in float64."""
    total = np.matmul(a, b)
    if form.detail == "xor":  # set in one but not in both
        total = a.sum(axis=-1)[..., :, None] + b.sum(axis=-2)[..., None, :] - 2 * total
    total = total.astype(np.int64) + c
    if form.satfinite:
        total = np.clip(total, -1 << 31, (1 << 31) - 1)
    return total.astype(np.int32)


def fused_sums(a, b, c, mode: str) -> np.ndarray:
    shape = c.shape
    for k in range(a.shape[-1]):
        left, right = (np.broadcast_to(x, shape).reshape(-1) for x in (a[..., :, k, None], b[..., None, k, :]))
        c = fma64(left, right, c.reshape(-1), mode).reshape(shape)
    return c
