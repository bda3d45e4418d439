"""Registers that wgmma still reads or writes.  PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async": to access the
accumulator, or registers that hold A, before wgmma.wait_group has waited for the instruction's group is undefined; and "wgmma.fence": it
must come between a thread's own writes of these registers and wgmma.

The observer hears of a segment before it runs, and of wgmma while it does: the instructions in between are looked at when the next of
these comes, so a fault may be told a segment late, but with the right line.
"""

import numpy as np

from cudalab.emulator.program import Vector
from cudalab.emulator.sanitizer.faults import InFlight, MissingFence
from cudalab.emulator.segments import effects, registers_of
from cudalab.emulator.table import find


class Registers:
    """Of one chunk.  taken: slot -> per lane the wgmma that has it, -1 for none.  fresh: slot -> per lane the instruction that wrote it
    since the lane's last wgmma.fence, -1 for none; of slots that come to wgmma, which `prepared` names."""

    def __init__(self, sanitizer):
        self.sanitizer, self.chunk = sanitizer, sanitizer.chunk
        self.taken: dict[int, np.ndarray] = {}
        self.lanes, self.at, self.end = None, 0, 0  # who runs what has not been looked at yet
        self.fresh: dict[int, np.ndarray] = {}
        self.writes: dict[tuple, list] = {}  # (first, end) of instructions -> those that write `prepared` slots, and fences
        self.touched: dict[int, tuple] = {}  # instruction -> (slots read, slots written, is it a move?, is it wgmma?)
        self.prepared = self._prepared()

    def segment(self, segment, lanes) -> None:
        """Lanes are about to run a segment."""
        if self.prepared:
            self._look(self.end)
        self.lanes, self.at, self.end = lanes, segment.start, segment.end

    def take(self, slots, lanes, site: int) -> None:
        """A wgmma of these lanes takes registers."""
        self._look(site)
        for slot in slots:
            if slot in self.fresh and (self.fresh[slot][lanes] >= 0).any():
                at = int(np.argmax(self.fresh[slot][lanes] >= 0))
                written = self.chunk.where(int(self.fresh[slot][lanes[at]]))
                raise self.sanitizer.fault(int(lanes[at]), site, f"wgmma uses a register written at {written}; wgmma.fence must come "
                                           "between them", MissingFence)
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

    def _prepared(self) -> set[int]:
        """The slots that wgmma uses, and those that moves take to them; empty without wgmma."""
        image = self.chunk.image
        if not any(ins.parts[0] == "wgmma" for ins in image.instructions):
            return set()
        found, moves = set(), []
        for site in range(len(image.instructions)):
            read, written, moved, mma = self._slots(site)
            if mma:
                vectors = [o for o in image.instructions[site].operands if isinstance(o, Vector)]  # the accumulator, A
                found.update(image.slot(r) for vector in vectors for r in registers_of(vector))
            elif moved:
                moves.append((read, written))
        before = -1
        while len(found) != before:
            before = len(found)
            for read, written in moves:
                if found.intersection(written):
                    found.update(read)
        return found

    def _look(self, until: int) -> None:
        """At the instructions before `until` that have run since the last look."""
        if self.taken:
            for site in range(self.at, until):
                read, written, moves, mma = self._slots(site)
                if not mma:
                    for slot in (*read, *written):
                        if slot in self.taken:
                            self._touch(slot, slot in written, written if moves else (), site)
        if (self.at, until) not in self.writes:
            self.writes[self.at, until] = [site for site in range(self.at, until) if self._slots(site)[3] or
                                           self.prepared.intersection(self._slots(site)[1])]
        for site in self.writes[self.at, until]:
            self._note_write(site)
        self.at = max(self.at, until)

    def _note_write(self, site: int) -> None:
        read, written, moves, mma = self._slots(site)
        some = slice(None) if self.lanes is None else self.lanes
        if mma:
            if self.chunk.image.instructions[site].has("fence"):
                for times in self.fresh.values():
                    times[some] = -1
            return
        for slot in self.prepared.intersection(written):
            times = self.fresh.setdefault(slot, np.full(self.chunk.count, -1))
            if moves and len(read) == 1:  # another name for the same register
                times[some] = self.fresh[read[0]][some] if read[0] in self.fresh else -1
            else:
                times[some] = site

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
