"""The instruction table: which function lowers which instruction.  To add an instruction, decorate one function in the file of its family.

    @instruction("popc", types="b32 b64")
    def popc(code, ins):
        code.assign(ins.operands[0], f"bit_count({code.value(ins.operands[1], ins.type)})", "u32")

The function gets a `Code` (see lower.py), which it hands expressions over lane vectors, and the Instruction.  What runs in those
expressions is a function decorated with @runtime.  FAMILIES in families.py lists the files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cudalab.emulator.errors import PtxError
from cudalab.emulator.program import Instruction
from cudalab.emulator.types import TYPES

TABLE: dict[str, list["Entry"]] = {}
RUNTIME: dict[str, object] = {}
_FOUND: dict[str, "Entry"] = {}  # by mnemonic, once looked for
WAITERS: dict[str, type] = {}


@dataclass(frozen=True)
class Entry:
    """How an instruction is treated.

    writes: how many leading operands it writes.  updates: it reads those too.  ends: control leaves the segment behind it.
    collective: the number of neighbouring lanes (32, 128) that execute it together, 0 for none; members: the number of the operand
    that is its member mask, None where all take part.  waits: the kind of @waiter that decides when its lanes go on.
    """

    lower: Callable
    types: frozenset[str] | None
    modifiers: tuple[str, ...]
    writes: int
    updates: bool
    ends: bool
    collective: int
    members: int | None
    waits: str | None
    after: Callable | None

    def takes(self, ins: Instruction, opcode: str) -> bool:
        """Is every part of the mnemonic behind the opcode one that this entry understands?"""
        if self.types is not None and (ins.type is None or ins.type.name not in self.types):
            return False
        rest = ins.parts[opcode.count(".") + 1:]
        return all(p in TYPES or any(p == m or "*" in m and fnmatchcase(p, m) for m in self.modifiers) for p in rest)


def instruction(*opcodes: str, types: str | None = None, modifiers: str = "", writes: int = 1, updates: bool = False, ends: bool = False,
                collective: int = 0, members: int | None = None, waits: str | None = None,
                after: Callable | None = None):
    """Register the decorated function for opcodes ("add", "cp.async.commit_group"), for the types named (default: all), with the
    modifiers named ("ftz sat", patterns such as "L2::*"): an instruction with any other part is refused."""
    def register(lower):
        entry = Entry(lower, frozenset(types.split()) if types else None, tuple(modifiers.split()), writes, updates, ends, collective,
                      members, waits, after)
        _FOUND.clear()
        for opcode in opcodes:
            TABLE.setdefault(opcode, []).append(entry)
        return lower
    return register


def runtime(function):
    """Make a function callable by its name from generated code."""
    assert function.__name__ not in RUNTIME, function.__name__
    RUNTIME[function.__name__] = function
    return function


def waiter(kind: str):
    """Register a class that holds lanes back: see scheduler.Waiter."""
    def register(cls):
        WAITERS[kind] = cls
        return cls
    return register


def find(ins: Instruction) -> Entry:
    """The entry for an instruction: that of its longest registered opcode.  Raises PtxError where there is none."""
    if (entry := _FOUND.get(ins.mnemonic)) is None:
        entry = _FOUND[ins.mnemonic] = _find(ins)
    return entry


def _find(ins: Instruction) -> Entry:
    for length in range(len(ins.parts), 0, -1):
        opcode = ".".join(ins.parts[:length])
        if opcode in TABLE:
            for entry in TABLE[opcode]:
                if entry.takes(ins, opcode):
                    return entry
            raise PtxError(f"this form of {opcode} is not supported: {ins}")
    raise PtxError(f"an instruction that is not supported: {ins}")
