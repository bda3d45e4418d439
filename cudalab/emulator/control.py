"""Branches and ends.  PTX ISA, "Control Flow Instructions"."""

from cudalab.emulator.scheduler import EXIT
from cudalab.emulator.table import instruction


@instruction("bra", modifiers="uni", writes=0, ends=True)
def bra(code, ins):
    target = code.target(ins.operands[0])
    code.result = str(target) if code.mask is None else f"({code.mask}, {target}, {code.site + 1})"


@instruction("exit", writes=0, ends=True)
def exit_(code, ins):
    code.result = str(EXIT) if code.mask is None else f"({code.mask}, {EXIT}, {code.site + 1})"


@instruction("ret", modifiers="uni", writes=0, ends=True)
def ret(code, ins):
    exit_(code, ins)
