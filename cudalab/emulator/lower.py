"""Segments to Python: one function a segment, over vectors of lanes.

Every register that a segment touches becomes a local variable r<slot>: a NumPy array with one element a lane, or a NumPy scalar where all
lanes are known to hold the same.  If all lanes of the chunk run the segment, registers are rebound by reference; if only some do, their
values are gathered, computed on and scattered back.  An array belongs to one register only, so `assign` copies what may be shared.
"""

import numpy as np

from cudalab.emulator import chunk as chunk_module  # noqa: F401  (its @runtime functions)
from cudalab.emulator.errors import PtxError
from cudalab.emulator.image import GLOBAL, Image
from cudalab.emulator.program import (Address, Function, Immediate, Instruction, Label, Not, Register, Sink, Special, Symbol, Variable,
                                      Vector)
from cudalab.emulator.segments import Segment
from cudalab.emulator.table import RUNTIME, find
from cudalab.emulator.types import TYPES, Type, register_dtype

DTYPES = {f"{kind}{size}": np.dtype(f"{kind}{size}") for kind, sizes in dict(u=(1, 2, 4, 8), i=(1, 2, 4, 8), f=(2, 4, 8)).items()
          for size in sizes}
WIDER = {np.dtype(np.float16): np.float32}


def name_of(dtype: np.dtype) -> str:
    """The name of a NumPy type in generated code."""
    return "bool_" if dtype == bool else f"{dtype.kind}{dtype.itemsize}"


class Code:
    """The body of one segment while it is written.  Lowering functions use `value`, `assign`, `line`, `temp`, `place`, `constant`."""

    def __init__(self, image: Image, segment: Segment, watched: bool):
        self.image, self.segment, self.watched = image, segment, watched
        self.lines: list[str] = []
        self.loaded: dict[int, bool] = {}  # slots read before they are written here
        self.written: dict[int, bool] = {}
        self.unsettled: set[int] = set()  # slots of float32 results whose NaNs are not canonical yet
        self.namespace = dict(RUNTIME, np=np, bool_=np.bool_, **DTYPES)
        self.result = str(segment.end)
        self.notes: dict = {}  # what lowering an instruction keeps for later ones of the segment
        self.closing: list[str] = []  # statements behind the last one, when the registers have been written back
        self.restore: str | None = None  # a statement before the registers are read
        self._temps = 0
        self._cache: dict[tuple, str] = {}  # (what, slot) -> the local variable that holds what was derived from a register
        self._derived: dict[int, list[tuple]] = {}  # slot -> keys of what was derived from it
        self.ins: Instruction | None = None
        self.site = -1
        self.mask: str | None = None

    # -- for lowering functions

    def line(self, text: str) -> None:
        self.lines.append(text)

    def temp(self, expression: str | None = None) -> str:
        """A fresh local variable, set to the expression."""
        self._temps += 1
        name = f"t{self._temps}"
        if expression is not None:
            self.line(f"{name} = {expression}")
        return name

    def constant(self, value) -> str:
        """A name for a Python object in the generated code."""
        key = ("constant", type(value), value.tobytes() if isinstance(value, np.generic) else id(value))
        if key not in self._cache:
            self._cache[key] = f"k{len(self.namespace)}"
            self.namespace[self._cache[key]] = value
        return self._cache[key]

    def value(self, operand, kind: str | Type, number: bool = False) -> str:
        """An expression for an operand, read as the given PTX type.  number: which NaN it may be makes no difference to the reader."""
        kind = TYPES[kind] if isinstance(kind, str) else kind
        match operand:
            case Register():
                return self._as(self.register(operand, number), register_dtype(operand.type.name), kind)
            case Not(operand=inner):
                return f"(~{self.register(inner)})"
            case Immediate():
                return self.constant(self._literal(operand, kind))
            case Special(name=name):
                wide = name in ("%clock64", "%globaltimer")
                return self._as(f"chunk.special({name!r}, lanes)", np.dtype("u8" if wide else "u4"), kind)
            case Symbol(target=Variable(space="shared")):
                offset = self.constant(np.array(self.symbol(operand) & (1 << kind.bits) - 1, f"u{kind.bytes}").astype(kind.dtype)[()])
                return f"chunk.shared_address({offset}, lanes)"
            case Symbol():
                return self.constant(np.array(self.symbol(operand) & (1 << kind.bits) - 1, f"u{kind.bytes}").astype(kind.dtype)[()])
        raise PtxError(f"an operand of a kind that does not belong there: {self.ins}")

    def widened(self, operand, kind: Type, wide: Type) -> str:
        """An integer operand of one type, extended to a wider one."""
        if isinstance(operand, Immediate):
            return self.constant(self._literal(operand, kind).astype(wide.dtype))
        return f"{self.value(operand, kind)}.astype({name_of(wide.dtype)})"

    def values(self, operand, kind: str | Type) -> list[str]:
        """The expressions for the elements of a vector operand, or of a single one."""
        return [self.value(item, kind) for item in (operand.items if isinstance(operand, Vector) else (operand,))]

    def register(self, register: Register, number: bool = False) -> str:
        """The local variable of a register."""
        slot = self.image.slot(register)
        if slot in self.unsettled and not number:
            self._settle(slot)
        if slot not in self.written:
            self.loaded[slot] = True
        return f"r{slot}"

    def assign(self, target, expression: str, kind: str | Type, alias: bool = False, number: bool = False) -> None:
        """Set a register to an expression of the given type, in the lanes that the guard lets through.  A register wider than the type
        is extended by its sign or zeros.  alias: the expression may be another register's own array.  number: a result of float32
        arithmetic, whose NaNs become canonical before anyone can tell them apart."""
        kind = TYPES[kind] if isinstance(kind, str) else kind
        if isinstance(target, Sink):
            return
        if not isinstance(target, Register):
            raise PtxError(f"a result that is not a register: {self.ins}")
        held = register_dtype(target.type.name)
        slot = self.image.slot(target)
        late = number and held == np.float32 and self.mask is None
        if number and kind.name == "f32" and not late:
            expression = f"canonical({expression})"
        expression = self._fit(expression, kind, held)
        if self.mask is not None:
            expression = f"select({self.mask}, {expression}, {self.register(target)})"
        elif alias:
            expression = f"own({expression})"
        self._forget(slot)
        (self.unsettled.add if late else self.unsettled.discard)(slot)
        self.written[slot] = True
        self.line(f"r{slot} = {expression}")

    def derived(self, what, register: Register | tuple[Register, ...], expression: str) -> str:
        """A local variable for something computed of a register (or several) alone; computed once as long as it stays as it is."""
        key = (what, tuple(self.image.slot(r) for r in register) if isinstance(register, tuple) else self.image.slot(register))
        if key not in self._cache:
            self._remember(key, self.temp(expression))
        return self._cache[key]

    def keep(self, what, registers: tuple[Register, ...], variable: str) -> None:
        """A local variable is what `derived` would compute of these registers; they need not hold it if nothing else reads them."""
        slots = tuple(self.image.slot(r) for r in registers)
        for slot in slots:
            self._forget(slot)
        self._remember((what, slots), variable)

    def once(self, what: str, expression: str) -> str:
        """A local variable for something that depends on the lanes of the segment alone."""
        key = ("once", "once", what)
        if key not in self._cache:
            self._cache[key] = self.temp(expression)
        return self._cache[key]

    def double(self, operand) -> str:
        """A single-precision operand as float64."""
        if isinstance(operand, Register):
            return self.derived("double", operand, f"{self.value(operand, 'f32', number=True)}.astype(f8)")
        if isinstance(operand, Immediate):
            return self.constant(np.float64(self._literal(operand, TYPES["f32"])))
        return f"{self.value(operand, 'f32')}.astype(f8)"

    def place(self, address: Address, space: str) -> tuple[str, int]:
        """A local variable for where an address points in a state space, without its constant offset; and the offset."""
        if not isinstance(address, Address):
            raise PtxError(f"an operand that should be an address: {self.ins}")
        base = address.base
        if isinstance(base, Register):
            if register_dtype(base.type.name).kind != "u":
                raise PtxError(f"an address in a register of type .{base.type.name}: {self.ins}")
            value = self.register(base)
            return self.derived(f"place {space}", base, f"memory.place_{space}({value}, lanes)"), address.offset
        start = base.value if isinstance(base, Immediate) else self.symbol(Symbol(base))
        key = (f"place {space}", "at", start)
        if key not in self._cache:
            at = self.constant(np.uint64(start))
            if isinstance(base, Variable) and base.space == "shared":
                at = f"chunk.shared_address({at}, lanes)"
            self._cache[key] = self.temp(f"memory.place_{space}({at}, lanes)")
        return self._cache[key], address.offset

    def symbol(self, symbol: Symbol) -> int:
        """The address of a variable in its own state space, or of a function."""
        if isinstance(symbol.target, Function):
            return self.image.layout.address(symbol.target.name)
        variable: Variable = symbol.target
        if variable in self.image.layout.offsets:
            return GLOBAL + self.image.layout.offsets[variable] + symbol.offset
        return self.image.offsets[variable] + symbol.offset

    def target(self, label) -> int:
        """The instruction number of a label."""
        if not isinstance(label, Label):
            raise PtxError(f"a branch to something other than a label: {self.ins}")
        return self.image.first[self.image.owner[self.site]] + label.index

    # -- how it is done

    def _as(self, expression: str, held: np.dtype, kind: Type) -> str:
        if held == kind.dtype:
            return expression
        if kind.kind == "pred" or held == bool or held.itemsize < kind.dtype.itemsize:
            raise PtxError(f"a register of {8 * held.itemsize} bits where .{kind.name} is due: {self.ins}")
        if held.itemsize > kind.dtype.itemsize:
            expression = f"{expression}.view(u{held.itemsize})" if held.kind == "f" else expression
            expression = f"{expression}.astype(u{kind.bytes})"
            held = np.dtype(f"u{kind.bytes}")
        return expression if held == kind.dtype else f"{expression}.view({name_of(kind.dtype)})"

    def _fit(self, expression: str, kind: Type, held: np.dtype) -> str:
        if held == kind.dtype:
            return expression
        if held == bool or kind.kind == "pred" or held.itemsize < kind.dtype.itemsize:
            raise PtxError(f"a .{kind.name} result for a register of {8 * held.itemsize} bits: {self.ins}")
        if held.itemsize > kind.dtype.itemsize:
            wide = f"i{held.itemsize}" if kind.kind == "signed" else f"u{held.itemsize}"
            expression = f"({expression}).view(u{kind.bytes})" if kind.dtype.kind == "f" else f"({expression})"
            expression = f"{expression}.astype({wide})"
            return expression if held.str[1:] == wide else f"{expression}.view({name_of(held)})"
        return f"({expression}).view({name_of(held)})"

    def _literal(self, literal: Immediate, kind: Type):
        if kind.kind == "pred":
            return np.bool_(literal.value != 0)
        if literal.kind == "int":
            if kind.dtype.kind == "f":
                return kind.dtype.type(literal.value)
            return np.array(literal.value & (1 << kind.bits) - 1, f"u{kind.bytes}").view(kind.dtype)[()]
        bits = np.array(literal.value, "u4" if literal.kind == "f32" else "u8")
        if bits.itemsize == kind.bytes:
            return bits.view(kind.dtype)[()]
        if kind.dtype.kind == "f":
            return bits.view("f4" if literal.kind == "f32" else "f8").astype(kind.dtype)[()]
        raise PtxError(f"a floating-point literal for .{kind.name}: {self.ins}")

    def _settle(self, slot: int) -> None:
        self.unsettled.discard(slot)
        self.line(f"r{slot} = canonical(r{slot})")

    def _forget(self, slot: int) -> None:
        for key in self._derived.pop(slot, ()):
            self._cache.pop(key, None)

    def _remember(self, key: tuple, variable: str) -> None:
        self._cache[key] = variable
        for slot in key[1] if isinstance(key[1], tuple) else (key[1],):
            self._derived.setdefault(slot, []).append(key)

    def lower(self, site: int) -> None:
        """Write one instruction."""
        self.site, self.ins = site, self.image.instructions[site]
        self.mask = None
        if self.ins.predicate is not None:
            guard = self.register(self.ins.predicate)
            self.mask = self.temp(f"~{guard}" if self.ins.negated else guard)
            if self.watched and not find(self.ins).ends:
                self.line(f"chunk.guarded({self.mask}, count, {site})")
        try:
            find(self.ins).lower(self, self.ins)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # operands or types missing, or of another kind
            raise PtxError(f"this form of {self.ins.parts[0]} is not supported: {self.ins}") from error

    def source(self) -> str:
        """The Python text of the whole function."""
        out = [slot for slot in self.written if self.segment.live_out >> slot & 1]
        for slot in self.unsettled.intersection(out):
            self._settle(slot)
        lines = ["def segment(chunk, registers, lanes):", "    memory = chunk.memory"]
        lines += [f"    {self.restore}"] if self.restore else []
        lines += ["    if lanes is None:", "        count = chunk.count"]
        lines += [f"        r{slot} = registers[{slot}]" for slot in self.loaded]
        lines += ["    else:", "        count = len(lanes)"]
        lines += [f"        r{slot} = pick(registers[{slot}], lanes)" for slot in self.loaded]
        lines += ["    " + line for line in self.lines]
        if out:
            lines += ["    if lanes is None:"] + [f"        registers[{slot}] = r{slot}" for slot in out]
            lines += ["    else:"] + [f"        put(chunk, {slot}, lanes, r{slot})" for slot in out]
        lines += ["    " + line for line in self.closing]
        return "\n".join([*lines, f"    return {self.result}", ""])


def compile_segment(image: Image, segment: Segment, watched: bool):
    """The function of a segment: (chunk, registers, lanes or None for all) -> what the scheduler shall do next."""
    code = Code(image, segment, watched)
    if segment.start not in image.first.values() and (after := find(image.instructions[segment.start - 1]).after):
        code.site, code.ins = segment.start - 1, image.instructions[segment.start - 1]
        after(code, code.ins)
    for site in range(segment.start, segment.end):
        code.lower(site)
    exec(compile(code.source(), f"<{image.kernel.name} {segment.start}>", "exec"), code.namespace)
    return code.namespace["segment"]
