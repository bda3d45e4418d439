"""Lanes that spin are parked until memory changes.

Lanes that come back to the head of a loop with the registers that they had there before, while nobody has written to memory in between,
will do so again and again until somebody writes.  So they need not run until then, which is a schedule that hardware may choose as well:
every lane that can get anywhere runs.  Any change wakes them, whoever makes it.  PTX ISA, "Memory Consistency Model"; CUDA C++ Programming
Guide, "Independent Thread Scheduling".
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cudalab.emulator.image import Image
from cudalab.emulator.program import Instruction, Special
from cudalab.emulator.segments import Segment
from cudalab.emulator.table import find

STRONG = ("volatile", "acquire", "relaxed", "mmio")


@dataclass
class Visit:
    """Lanes that have come to the head of a loop.  same: how often in a row nothing had changed; registers: theirs, once kept; fits: are
    those the registers of this visit?"""

    step: int
    changes: int
    lanes: np.ndarray | None
    same: int = 0
    registers: dict | None = None
    fits: bool = False


class Spinners:
    """Of one chunk.  parked: head of a loop -> its lanes (None: all); all of them saw memory as it was at `changes`.  timed: the kernel
    reads a clock, so that what it does may depend on how long it has spun; nothing of it is parked."""

    def __init__(self, chunk, segments: dict[int, Segment]):
        self.chunk, self.segments = chunk, segments
        self.timed, self.heads, self.outside = loops(chunk.image, segments)
        self.visits: dict[int, Visit] = {}
        self.parked: dict[int, np.ndarray | None] = {}
        self.changes = 0
        self._left = np.zeros(chunk.count, np.int64) if self.heads else None  # step of each lane's last instruction that is `outside`

    def ran(self, start: int, lanes) -> None:
        """Lanes run a segment: where it does more than look at registers and memory, what they do next may differ from the last time."""
        if self.heads and start in self.outside:
            self._left[slice(None) if lanes is None else lanes] = self.chunk.steps

    def spins(self, start: int, lanes) -> bool:
        """Lanes have come to the head of a loop: do they spin, so that they shall be parked?"""
        chunk, last = self.chunk, self.visits.get(start)
        changes = chunk.memory.changes
        if last is None or not same_lanes(last.lanes, lanes):
            self.visits[start] = Visit(chunk.steps, changes, lanes)
            return False
        left = self._left if lanes is None else self._left[lanes]
        quiet = last.changes == changes and left.max() <= last.step
        last.step, last.changes, last.same = chunk.steps, changes, (last.same + 1) * quiet
        fitted, last.fits = last.fits, last.registers is not None and all(
            equal(self._values(slot, lanes), kept) for slot, kept in last.registers.items())
        if quiet and fitted and last.fits:
            return True
        if last.same > 1 and not last.fits:  # most loops that read without writing are none that spin
            live, last.fits = self.segments[start].live_in, True
            last.registers = {slot: np.copy(self._values(slot, lanes)) for slot in range(live.bit_length()) if live >> slot & 1}
        return False

    def _values(self, slot: int, lanes):
        values = self.chunk.registers[slot]
        return values if lanes is None or not values.ndim else values[lanes]

    def park(self, start: int, lanes, join) -> None:
        """join: how the scheduler joins two groups of lanes."""
        self.changes = self.chunk.memory.changes
        self.parked[start] = join(self.parked[start], lanes) if start in self.parked else lanes

    def woken(self) -> Iterable[tuple[int, np.ndarray | None]]:
        """The lanes that may see something new, by where they go on: all, if memory has changed."""
        if self.parked and self.changes != self.chunk.memory.changes:
            found, self.parked = self.parked, {}
            return found.items()
        return ()


def loops(image: Image, segments: dict[int, Segment]) -> tuple[bool, frozenset[int], frozenset[int]]:
    """Whether a kernel reads a clock; else the heads of loops that look at memory which others may write, and the segments that do more
    than that."""
    if any(isinstance(o, Special) and ("clock" in o.name or "timer" in o.name) for ins in image.instructions for o in ins.operands):
        return True, frozenset(), frozenset()
    looks = [number for number, ins in enumerate(image.instructions) if _looks(ins)]
    heads = {head for segment in segments.values() for head in segment.successors if head <= segment.start
             and any(head <= number < segment.end for number in looks)}
    outside = {start for start, segment in segments.items()
               if segment.collective or any(_outside(image.instructions[n]) for n in range(segment.start, segment.end))}
    return False, frozenset(heads - outside), frozenset(outside)


def _looks(ins: Instruction) -> bool:
    return ins.parts[0] == "atom" or ins.parts[0] == "ld" and bool(ins.one_of(*STRONG))


def _outside(ins: Instruction) -> bool:
    """Does more than registers, memory and its count of changes tell: company of other lanes, waits, calls, copies under way."""
    entry = find(ins)
    return bool(entry.waits or entry.collective) or ins.parts[0] in ("call", "cp", "activemask", "mbarrier") or "async" in ins.parts


def same_lanes(one, other) -> bool:
    return one is other or one is not None and other is not None and np.array_equal(one, other)


def equal(one, other) -> bool:
    """The same bits in both, arrays or scalars."""
    return np.shape(one) == np.shape(other) and np.asarray(one).tobytes() == np.asarray(other).tobytes()
