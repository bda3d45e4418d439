"""Registers that wgmma still reads or writes.  PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async": to access the
accumulator, or registers that hold A, before wgmma.wait_group has waited for the instruction's group is undefined.

The observer hears of a segment before it runs, and of wgmma while it does: the instructions in between are looked at when the next of
these comes, so a fault may be told a segment late, but with the right line.
"""

import numpy as np

from cudalab.emulator.sanitizer.faults import InFlight
from cudalab.emulator.segments import effects
from cudalab.emulator.table import find


class Registers:
    """Of one chunk.  taken: slot -> per lane the wgmma that has it, -1 for none."""

    def __init__(self, sanitizer):
        self.sanitizer, self.chunk = sanitizer, sanitizer.chunk
        self.taken: dict[int, np.ndarray] = {}
        self.lanes, self.at, self.end = None, 0, 0  # who runs what has not been looked at yet
        self.touched: dict[int, tuple] = {}  # instruction -> (slots read, slots written, is it a move?, is it wgmma?)

    def segment(self, segment, lanes) -> None:
        """Lanes are about to run a segment."""
        if self.taken:
            self._look(self.end)
        self.lanes, self.at, self.end = lanes, segment.start, segment.end

    def take(self, slots, lanes, site: int) -> None:
        """A wgmma of these lanes takes registers."""
        self._look(site)
        for slot in slots:
            if slot not in self.taken:
                self.taken[slot] = np.full(self.chunk.count, -1)
            self.taken[slot][lanes] = site

    def give(self, lanes, sites, site: int) -> None:
        """Lanes have waited for the wgmma at these sites."""
        self._look(site)
        for slot in list(self.taken):
            held = self.taken[slot]
            mine = held[lanes]
            held[lanes] = np.where(np.isin(mine, sites), -1, mine)
            if (held < 0).all():
                del self.taken[slot]

    def _look(self, until: int) -> None:
        """At the instructions before `until` that have run since the last look."""
        for site in range(self.at, until):
            if not self.taken:
                break
            read, written, moves, mma = self._slots(site)
            if not mma:
                for slot in (*read, *written):
                    if slot in self.taken:
                        self._touch(slot, slot in written, written if moves else (), site)
        self.at = max(self.at, until)

    def _touch(self, slot: int, writes: bool, into, site: int) -> None:
        some = slice(None) if self.lanes is None else self.lanes
        held = self.taken[slot][some]
        if not (held >= 0).any():
            return
        if not writes and into:
            for target in into:
                self.taken.setdefault(target, np.full(self.chunk.count, -1))[some] = held
            return
        at = int(np.argmax(held >= 0))
        lane = at if self.lanes is None else int(self.lanes[at])
        raise self.sanitizer.fault(lane, site, f"this {'writes' if writes else 'reads'} a register that wgmma at "
                                   f"{self.chunk.where(int(held[at]))} still uses; wgmma.wait_group must wait for it first", InFlight)

    def _slots(self, site: int) -> tuple:
        if site not in self.touched:
            image = self.chunk.image
            ins = image.instructions[site]
            writes, reads = effects(ins, find(ins))
            self.touched[site] = ([image.slot(r) for r in reads], [image.slot(r) for r in writes], ins.parts[0] == "mov",
                                  ins.parts[0] == "wgmma")
        return self.touched[site]
