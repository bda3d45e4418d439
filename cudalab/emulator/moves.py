"""Moving and choosing values.  PTX ISA, "Data Movement and Conversion Instructions: mov, cvta, isspacep"; "selp", "setp", "set"."""

from cudalab.emulator.memory import WINDOWS
from cudalab.emulator.program import Register, Special, Vector
from cudalab.emulator.table import instruction
from cudalab.emulator.types import TYPES


@instruction("mov")
def mov(code, ins):
    target, source = ins.operands
    kind = ins.type
    if isinstance(target, Vector):
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


