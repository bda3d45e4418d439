"""A module and a kernel made ready to run: functions in one sequence of instructions, registers numbered, variables given places."""

import functools
from dataclasses import dataclass, field

import numpy as np

from cudalab.emulator.errors import PtxError
from cudalab.emulator.program import Address, Function, Instruction, Module, Register, Symbol, Variable, Vector
from cudalab.emulator.types import register_dtype

GAP = 256  # bytes between two allocations that belong to nobody
GLOBAL = 0x0200_0000_0000  # generic address of the first byte of the flat memory
FUNCTIONS = 0x0100_0000_0000  # addresses of functions, 16 apart: for calls through a pointer
ON_THE_MACHINE = ("vprintf", "__assertfail")  # functions that a device has without PTX for them: see calls.py
RETURNED = 256  # bytes at the start of local memory, through which functions return values


@dataclass
class Layout:
    """Where a module's global and constant variables lie in the flat memory: variable -> first byte; `end` of all of them."""

    module: Module
    offsets: dict[Variable, int] = field(default_factory=dict)
    end: int = GAP

    @classmethod
    def of(cls, module: Module) -> "Layout":
        layout = cls(module)
        for variable in module.variables.values():
            if variable.space in ("global", "const"):
                if variable.external:
                    raise PtxError(f"{variable.name} is defined in another module; one file is all there is")
                start = -(-layout.end // max(variable.align, GAP)) * max(variable.align, GAP)
                layout.offsets[variable] = start
                layout.end = start + variable.nbytes + GAP
        return layout

    def address(self, name: str) -> int:
        """The generic address of a variable or function.  Raises PtxError for what has none."""
        if (variable := self.module.variables.get(name)) in self.offsets:
            return GLOBAL + self.offsets[variable]
        if name in self.module.functions:
            return FUNCTIONS + 16 * list(self.module.functions).index(name)
        raise PtxError(f"a variable is initialised with the address of {name}, which has none")

    def initial(self):
        """(first byte, bytes) of every variable that starts with a value; others start as zeros (PTX ISA, "Initializers")."""
        for variable, offset in self.offsets.items():
            data = bytearray(variable.data or bytes(variable.nbytes))
            for at, width, name, addend, _ in variable.relocations:
                data[at:at + width] = ((self.address(name) + addend) & (1 << 8 * width) - 1).to_bytes(width, "little")
            yield offset, bytes(data)


class Image:
    """A kernel with all functions it can reach.

    instructions: in one sequence, callees before callers, so that the lowest place that lanes wait at is the innermost.
    entry: number of the kernel's first instruction.  first: function -> number of its first.  owner: per instruction its function.
    """

    def __init__(self, layout: Layout, kernel: Function):
        self.layout, self.module, self.kernel = layout, layout.module, kernel
        self.functions: list[Function] = []
        self.callees: dict[Function, set[Function]] = {}
        self._collect(kernel)
        self.instructions: list[Instruction] = []
        self.owner: list[Function] = []
        self.first: dict[Function, int] = {}
        for function in self.functions:
            self.first[function] = len(self.instructions)
            self.instructions += function.body
            self.owner += [function] * len(function.body)
        self.entry = self.first[kernel]
        self._slots: dict[object, int] = {}
        self.slot_types: list[np.dtype] = []
        self._places()

    def _collect(self, kernel: Function) -> None:
        """All functions that the kernel can call, callees first.  Those whose address is taken count as called from where it is."""
        pointed = {self.module.functions[r[2]] for v in self.module.variables.values() for r in v.relocations
                   if r[2] in self.module.functions}
        state, stack = {kernel: 1}, [(kernel, iter(self._called(kernel, pointed)))]
        while stack:
            function, callees = stack[-1]
            callee = next(callees, None)
            if callee is None:
                self.functions.append(function)
                stack.pop()
            elif callee not in state:
                if callee.body is None:
                    if callee.name not in ON_THE_MACHINE:
                        raise PtxError(f"{function.name} calls {callee.name}, which this file does not define")
                    continue
                state[callee] = 1
                stack.append((callee, iter(self._called(callee, pointed))))

    def _called(self, function: Function, pointed: set[Function]) -> list[Function]:
        found = {}
        for ins in function.body:
            for operand in ins.operands:
                if isinstance(operand, Symbol) and isinstance(operand.target, Function):
                    found[operand.target] = True
            if ins.parts[0] == "call" and isinstance(_callee(ins), Register):
                found |= dict.fromkeys(pointed)
        self.callees[function] = set(found)
        return list(found)

    def reaches(self, function: Function, target: Function) -> bool:
        """Can `function` come to call `target`?"""
        seen, pending = set(), [function]
        while pending:
            for callee in self.callees.get(pending.pop(), ()):
                if callee is target:
                    return True
                if callee not in seen:
                    seen.add(callee)
                    pending.append(callee)
        return False

    def _places(self) -> None:
        """Offsets of shared, local and parameter variables in their windows."""
        self.offsets: dict[Variable, int] = {}
        self.dynamic: list[Variable] = []
        self.dynamic_align = 16
        shared, local = 0, RETURNED if len(self.functions) > 1 else 0
        module_shared = [v for v in self.module.variables.values() if v.space == "shared"]
        for variable in [*module_shared, *(v for f in self.functions for v in f.variables if v.space == "shared")]:
            if variable.nbytes == 0:
                self.dynamic.append(variable)
                self.dynamic_align = max(self.dynamic_align, variable.align)
            else:
                shared = self._put(variable, shared)
        self.frames: dict[Function, tuple[int, int]] = {}  # where in local memory a function's own variables lie
        for function in self.functions:
            start = local
            # a device function's parameters, too, are memory of the thread
            for variable in (*function.variables, *(() if function is self.kernel else (*function.params, *function.returns))):
                if variable.space != "shared":
                    local = self._put(variable, local)
            self.frames[function] = (start, local)
        params = 0
        for variable in self.kernel.params:
            params = self._put(variable, params)
        self.static_shared, self.local_size, self.param_size = shared, local, params
        self.dynamic_start = -(-shared // self.dynamic_align) * self.dynamic_align
        for variable in self.dynamic:
            self.offsets[variable] = self.dynamic_start

    @functools.cached_property
    def polls(self) -> bool:
        """Does the kernel read what other blocks may write meanwhile: by an atomic whose result it uses, or a load of that kind?"""
        read = {operand for ins in self.instructions for operand in ins.operands[1:]}
        read |= {address.base for address in read if isinstance(address, Address)}
        read |= {item for vector in read if isinstance(vector, Vector) for item in vector.items}
        for ins in self.instructions:
            elsewhere = not any(p.startswith(("shared", "local", "param")) for p in ins.parts)
            if elsewhere and (ins.parts[0] == "atom" and ins.operands[0] in read
                              or ins.parts[0] == "ld" and ins.one_of("volatile", "acquire", "relaxed", "mmio")):
                return True
        return False

    def _put(self, variable: Variable, end: int) -> int:
        self.offsets[variable] = -(-end // variable.align) * variable.align
        return self.offsets[variable] + variable.nbytes

    def shared_size(self, dynamic: int) -> int:
        """Bytes of shared memory of a block that is launched with `dynamic` bytes of it."""
        return self.dynamic_start + dynamic if dynamic else self.static_shared

    def slot(self, register, dtype: np.dtype | None = None) -> int:
        """The number under which a register's values are kept; other keys (with a dtype) get one too, such as a return address."""
        if register not in self._slots:
            self._slots[register] = len(self.slot_types)
            self.slot_types.append(register_dtype(register.type.name) if dtype is None else np.dtype(dtype))
        return self._slots[register]


def _callee(ins: Instruction):
    operands = [o for o in ins.operands if not isinstance(o, Vector)]
    return operands[0].target if isinstance(operands[0], Symbol) else operands[0]
