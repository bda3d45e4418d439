"""Comparisons.  PTX ISA, "Comparison and Selection Instructions"."""

from cudalab.emulator.errors import PtxError
from cudalab.emulator.program import Pair
from cudalab.emulator.table import instruction
from cudalab.emulator.types import TYPES

ORDERED = dict(eq="==", ne="!=", lt="<", le="<=", gt=">", ge=">=", lo="<", ls="<=", hi=">", hs=">=")
OPPOSITE = dict(equ="!=", ltu=">=", leu=">", gtu="<=", geu="<")  # unordered: not the opposite, which is false with a NaN
COMPARISONS = [*ORDERED, *OPPOSITE, "neu", "num", "nan"]
BOOLEANS = {"and": "&", "or": "|", "xor": "^"}
MODIFIERS = " ".join([*COMPARISONS, *BOOLEANS, "ftz"])


def comparison(code, ins, a, b, kind) -> str:
    """The expression that compares two operands of a type as the mnemonic says."""
    which = ins.one_of(*COMPARISONS)
    real = kind.kind == "float"
    if which in ("eq", "ne", "equ", "neu") and not real and kind.kind != "pred":
        kind = TYPES[f"u{kind.bits}"]
    if which in ("lo", "ls", "hi", "hs"):
        kind = TYPES[f"u{kind.bits}"]
    a, b = code.value(a, kind), code.value(b, kind)
    if ins.has("ftz"):
        a, b = f"flush({a})", f"flush({b})"
    if not real:
        if which not in ORDERED:
            raise PtxError(f"an unordered comparison of integers: {ins}")
        return f"({a} {ORDERED[which]} {b})"
    if which in OPPOSITE or which == "ne":
        a, b = code.temp(a), code.temp(b)
    if which == "ne":
        return f"(({a} < {b}) | ({a} > {b}))"
    if which == "equ":
        return f"(~(({a} < {b}) | ({a} > {b})))"
    if which in OPPOSITE:
        return f"(~({a} {OPPOSITE[which]} {b}))"
    if which in ("num", "nan"):
        return f"({'~' if which == 'num' else ''}(np.isnan({a}) | np.isnan({b})))"
    return f"({a} {ORDERED.get(which, '!=')} {b})"  # neu


@instruction("setp", types="b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", modifiers=MODIFIERS)
def setp(code, ins):
    target, a, b, *third = ins.operands
    first = comparison(code, ins, a, b, ins.type)
    if not third and not isinstance(target, Pair):
        code.assign(target, first, "pred")
        return
    first = code.temp(first)
    boolean = ins.one_of(*BOOLEANS)
    with_third = f" {BOOLEANS[boolean]} {code.value(third[0], 'pred')}" if boolean else ""
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    results = [code.temp(f"{first}{with_third}")]
    if len(targets) == 2:
        results.append(code.temp(f"~{first}{with_third}"))
    for into, result in zip(targets, results):
        code.assign(into, result, "pred", alias=True)


@instruction("set", types="b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", modifiers=MODIFIERS)
def set_(code, ins):
    """All ones, or 1.0, where the comparison holds."""
    target, a, b, *third = ins.operands
    result, compared = ins.types
    expression = comparison(code, ins, a, b, compared)
    if boolean := ins.one_of(*BOOLEANS):
        expression = f"({expression} {BOOLEANS[boolean]} {code.value(third[0], 'pred')})"
    if result.kind == "float":
        code.assign(target, f"{expression}.astype({result.dtype.kind}{result.bytes})", result)
    else:
        code.assign(target, f"(-{expression}.astype(i{result.bytes})).view({result.dtype.kind}{result.bytes})", result)


@instruction("slct", modifiers="ftz")
def slct(code, ins):
    """a where the last operand is not negative, else b."""
    target, a, b, c = ins.operands
    result, sign = ins.types
    chosen = code.value(c, sign)
    chosen = f"flush({chosen})" if ins.has("ftz") else chosen
    code.assign(target, f"select({chosen} >= 0, {code.value(a, result)}, {code.value(b, result)})", result)
