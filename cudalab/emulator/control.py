"""Branches and ends.  PTX ISA, "Control Flow Instructions"."""

import numpy as np

from cudalab.emulator.scheduler import EXIT
from cudalab.emulator.table import instruction, runtime


@instruction("bra", modifiers="uni", writes=0, ends=True)
def bra(code, ins):
    target = code.target(ins.operands[0])
    code.result = str(target) if code.mask is None else f"({code.mask}, {target}, {code.site + 1})"


@instruction("exit", writes=0, ends=True)
def exit_(code, ins):
    code.result = str(EXIT) if code.mask is None else f"({code.mask}, {EXIT}, {code.site + 1})"


@instruction("brx.idx", modifiers="uni", writes=0, ends=True)
def brx(code, ins):
    """A jump through a table of labels."""
    index, table = ins.operands
    first = code.image.first[code.image.owner[code.site]]
    targets = code.constant(np.array([first + label.index for label in table.labels]))
    code.result = f"jump(chunk, lanes, count, {code.mask}, {code.value(index, 'u32')}, {targets}, {code.site})"


@runtime
def jump(chunk, lanes, count, mask, index, targets, site):
    """Where each lane goes on."""
    index = np.broadcast_to(index, count)
    active = np.ones(count, bool) if mask is None else np.broadcast_to(mask, count)
    outside = active & (index >= len(targets))
    if outside.any():
        at = int(np.argmax(outside))
        raise chunk.fault(at if lanes is None else int(lanes[at]), site, f"a jump to entry {index[at]} of a table of {len(targets)}")
    return np.where(active, targets[np.where(active, index, 0)], site + 1)


@instruction("trap", "brkpt", writes=0)
def trap(code, ins):
    code.line(f"stop(chunk, lanes, count, {code.mask}, {ins.parts[0]!r}, {code.site})")


@runtime
def stop(chunk, lanes, count, mask, what, site):
    """Raise for the first lane that takes part."""
    if mask is None or mask.any():
        at = 0 if mask is None or not mask.ndim else int(np.argmax(mask))
        raise chunk.fault(at if lanes is None else int(lanes[at]), site, f"the kernel stops itself ({what})")


@instruction("nanosleep", types="u32", writes=0)
@instruction("pmevent", modifiers="mask", writes=0)
def no_effect(code, ins):
    """Sleeping takes no time here, and nobody counts events; others run next either way."""
