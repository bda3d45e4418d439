"""Moving and choosing values.  PTX ISA, "Data Movement and Conversion Instructions: mov, cvta, isspacep"; "selp", "setp", "set"."""

import numpy as np

from cudalab.emulator.errors import PtxError
from cudalab.emulator.memory import LOCAL_WINDOW, RANK_SHIFT, WINDOWS
from cudalab.emulator.program import Register, Special, Vector
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.types import PAIR, TYPES


@instruction("mov")
def mov(code, ins):
    target, source = ins.operands
    kind = ins.type
    if kind.bits == 128:
        _mov128(code, ins, target, source)
    elif isinstance(target, Vector):
        part = TYPES[f"b{kind.bits // len(target.items)}"]
        whole = code.temp(code.value(source, f"b{kind.bits}"))
        for number, item in enumerate(target.items):
            shift = code.constant(kind.dtype.type(part.bits * number))
            code.assign(item, f"({whole} >> {shift}).astype(u{part.bytes})", part)
    elif isinstance(source, Vector):
        part = TYPES[f"b{kind.bits // len(source.items)}"]
        pieces = [f"({code.value(item, part)}.astype(u{kind.bytes}) << {code.constant(kind.dtype.type(part.bits * number))})"
                  for number, item in enumerate(source.items)]
        code.assign(target, " | ".join(pieces), kind)
    else:
        code.assign(target, code.value(source, kind), kind, alias=isinstance(source, (Register, Special)))


def _mov128(code, ins, target, source):
    """128 bits are held as two columns of 64."""
    if isinstance(target, Vector):
        whole = code.temp(code.value(source, "b128"))
        for item, half in zip(target.items, ("low", "high")):
            code.assign(item, f"own({whole}[{half!r}])", "b64")
    elif isinstance(source, Vector):
        low, high = (code.value(item, "b64") for item in source.items)
        code.assign(target, f"join128({low}, {high}, count)", "b128")
    else:
        code.assign(target, code.value(source, "b128"), "b128", alias=True)


@runtime
def join128(low, high, count):
    whole = np.empty(count if low.ndim or high.ndim else 1, PAIR)
    whole["low"], whole["high"] = low, high
    return whole if low.ndim or high.ndim else whole[0]


@instruction("isspacep", modifiers="global shared shared::cta shared::cluster local const param param::entry")
def isspacep(code, ins):
    """Does a generic address point into a state space?"""
    space = ins.parts[1].split("::")[0]
    value = code.value(ins.operands[1], "u64")
    if space in WINDOWS:
        inside = f"({value} >> {code.constant(np.uint64(40))}) == {code.constant(np.uint64(WINDOWS[space] >> 40))}"
        if ins.has("shared") or ins.has("shared::cta"):  # of the own block
            own = f"chunk.shared_address({code.constant(np.uint64(WINDOWS[space]))}, lanes)"
            inside = f"({value} >> {code.constant(np.uint64(RANK_SHIFT))}) == ({own} >> {code.constant(np.uint64(RANK_SHIFT))})"
    elif space == "global":
        inside = f"{value} < {code.constant(np.uint64(LOCAL_WINDOW))}"
    else:
        raise PtxError(f"constant addresses are generic ones here, so this is not supported: {ins}")
    code.assign(ins.operands[0], inside, "pred")


@instruction("createpolicy", types="b64", modifiers="fractional range global cvt L2 L2::*")
def createpolicy(code, ins):
    """Cache policies change nothing that can be seen here."""
    code.assign(ins.operands[0], code.constant(np.uint64(0)), "u64")


@instruction("cvta", modifiers="to global shared local param const shared::cta shared::cluster param::entry")
def cvta(code, ins):
    """Between a generic address and one within a state space."""
    space = next((p.split("::")[0] for p in ins.parts if p.split("::")[0] in WINDOWS), None)
    value = code.value(ins.operands[1], "u64")
    if space is None:  # global and constant addresses are generic ones
        code.assign(ins.operands[0], value, "u64", alias=True)
    else:
        window = code.constant(TYPES["u64"].dtype.type(WINDOWS[space]))
        code.assign(ins.operands[0], f"{value} {'-' if ins.has('to') else '+'} {window}", "u64")


@instruction("selp")
def selp(code, ins):
    target, yes, no, predicate = ins.operands
    kind = ins.type if ins.type.kind != "float" else TYPES[f"b{ins.type.bits}"] if ins.type.bits == 16 else ins.type
    code.assign(target, f"select({code.value(predicate, 'pred')}, {code.value(yes, kind)}, {code.value(no, kind)})", kind)


