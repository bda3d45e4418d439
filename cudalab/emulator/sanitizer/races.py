"""Races, by the byte: two accesses to a place, one of them a plain write or the other side of one, that nothing orders.

What counts as order is what compute-sanitizer's racecheck and the PTX memory model ("Memory Consistency Model: Causality Order") count:
barriers, __syncwarp, mbarriers, flags with fences.  That lanes of a warp run in step, or that shfl.sync brings them together, orders
nothing; so a __syncwarp that is missing is found.  Not a race: atomic and volatile or relaxed accesses among one another; lanes that write
the same value, in one instruction or over what is there already (racecheck: information, not an error).

Of readers, the last and the last one of another warp are remembered: where several lanes of one warp read, MANY is set.  So with barriers
of whole blocks no write over what may still be read is missed; with partial ones a third warp's read may be.  Of copies' reads and
reductions none is forgotten: crowds.py.
"""

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.sanitizer.clocks import last_of
from cudalab.emulator.sanitizer.crowds import Access, Crowd
from cudalab.emulator.sanitizer.faults import InFlight, Race
from cudalab.emulator.sanitizer.shadow import FUTURE, LANE, LOW, MANY, SHIFT

DID = dict(writer="write", atomic="atomic access", reader="read", other="read")


class Races:
    """The rules for one memory space.  sanitizer: gives clocks, sites by time, and the names of threads in messages.  sources, sums: the
    copies that read, the reductions that add."""

    def __init__(self, sanitizer, space: str, shadow, near: bool, sources: Crowd, sums: Crowd):
        self.sanitizer, self.space, self.shadow, self.sources, self.sums = sanitizer, space, shadow, sources, sums
        self.near = near  # only lanes of a block can meet here

    def _harmless(self) -> int:
        """Records up to this one are ordered before everything."""
        clocks = self.sanitizer.clocks
        return last_of(clocks.floor if self.near else clocks.launch_start)

    def _clash(self, name: str, touch, floor: int):
        """Positions of (lane, cell) pairs that clash with what a record of the cell tells, or None."""
        if self.shadow.records[name][touch.cells].max() <= floor:
            return None
        cells, lanes = touch.every()
        records = self.shadow.records[name][cells]
        at = (records > floor).nonzero()[0]
        wrong = ~self.sanitizer.clocks.ordered(lanes[at], records[at])
        return at[wrong] if wrong.any() else None

    def _writers(self, touch, floor: int):
        """As _clash, of plain writes: what came before a reduction is known to who knows of the reduction."""
        at = self._clash("writer", touch, floor)
        return at if at is None else at[~self.sums.at(touch.every()[0][at])]

    def may_read(self, touch) -> None:
        """Raise unless what is to be read is there."""
        floor = self._harmless()
        self._judge("read", touch, (("writer", self._writers(touch, floor)), ("atomic", self._clash("atomic", touch, floor))))
        self._wait("read", touch, self.sums)

    def load(self, touch) -> None:
        """Plain reads."""
        floor = self._harmless()
        self.may_read(touch)
        reader, other = self.shadow.records["reader"], self.shadow.records["other"]
        now = self.sanitizer.clocks.now << SHIFT
        mine = now | touch.readers
        before = reader[touch.cells]
        reader[touch.cells] = mine
        hot = ((before > floor) & ((before ^ mine) & LOW != 0)).nonzero()[0]
        if len(hot):
            self._keep_reader(touch.cells[hot], before[hot])
        if touch.apart is not None:
            other[touch.apart] = now | touch.apart_readers

    def _keep_reader(self, cells, records) -> None:
        """Others have read these cells before those that `reader` names now."""
        reader, other = self.shadow.records["reader"], self.shadow.records["other"]
        newest = reader[cells]
        same = (newest & LANE) // WARP == (records & LANE) // WARP
        if same.any():
            clocks = self.sanitizer.clocks
            known = np.maximum(clocks.warp_base, clocks.base)[np.minimum(records & LANE, len(clocks.base) - 1)]
            twice = (same & (records >> SHIFT > known)).nonzero()[0]  # nor has its warp met since
            twice = twice[~clocks.ordered(newest[twice] & LANE, records[twice])]  # nor did it learn of the read, at an mbarrier
            reader[cells[twice]] = newest[twice] | MANY
        apart = (~same).nonzero()[0]
        other[cells[apart]] = records[apart]

    def store(self, touch, same_value) -> None:
        """Plain writes.  same_value(positions, winners): do these pairs write what is there, or what the winners do?"""
        floor, shadow = self._harmless(), self.shadow
        clashes = [(name, self._clash(name, touch, floor)) for name in ("reader", "other", "atomic")]
        at = self._writers(touch, floor)
        if at is not None:
            at = at[(shadow.records["writer"][touch.every()[0][at]] >= FUTURE) | ~same_value(at, None)]
        self._judge("write", touch, [*clashes, ("writer", at)])
        for crowd in self.sources, self.sums:
            self._wait("write", touch, crowd)
            crowd.leave(touch.cells)
        now = self.sanitizer.clocks.now << SHIFT
        shadow.records["writer"][touch.cells] = now | touch.writers
        if touch.pattern.winners is not None:
            cells, lanes = touch.every()
            held = shadow.records["writer"][cells] & LANE
            lost = (held != lanes).nonzero()[0]
            lost = lost[~same_value(lost, held[lost])] if len(lost) else lost
            if len(lost):
                self._report("write", "writer", touch, lost[0])

    def source(self, touch, access: Access) -> None:
        """A copy is to read."""
        self.may_read(touch)
        self.sources.join(touch.cells, access)

    def sum(self, touch, access: Access) -> None:
        """A reduction is to add: others of its kind may do so, too."""
        floor = self._harmless()
        self._judge("write", touch, ((name, self._clash(name, touch, floor)) for name in ("reader", "other", "atomic", "writer")))
        self._wait("write", touch, self.sources)
        self._wait("write", touch, self.sums, access.kind)
        self.sums.join(touch.cells, access)

    def atomic(self, touch, writes: bool = True) -> None:
        """Atomic, volatile, relaxed and stronger accesses."""
        floor, does = self._harmless(), "atomic access"
        names = ("reader", "other") if writes else ()
        self._judge(does, touch, (("writer", self._writers(touch, floor)), *((name, self._clash(name, touch, floor)) for name in names)))
        for crowd in (self.sources, self.sums) if writes else (self.sums,):
            self._wait(does, touch, crowd)
        self._keep_atomic(touch)

    def barrier(self, touch, made, now: bool) -> None:
        """Arrivals at mbarriers; now: and not later, by copies.  made(lanes, records): do lanes know otherwise of the initialisation that
        a record tells?"""
        floor = self._harmless()
        clashes = {name: self._clash(name, touch, floor) for name in (("writer", "reader", "other") if now else ("writer",))}
        at = clashes["writer"]
        if at is not None:
            cells, lanes = touch.every()
            clashes["writer"] = at[~made(lanes[at], self.shadow.records["writer"][cells[at]])]
        self._judge("use of an mbarrier", touch, clashes.items())
        for crowd in (self.sources, self.sums) if now else (self.sums,):
            self._wait("use of an mbarrier", touch, crowd)
        if now:
            self._keep_atomic(touch)

    def _keep_atomic(self, touch) -> None:
        self.shadow.records["atomic"][touch.cells] = self.sanitizer.clocks.now << SHIFT | touch.writers

    def _judge(self, does: str, touch, clashes) -> None:
        """Raise if there is a clash: best one between warps, for its cure holds within them too."""
        first = None
        for name, at in clashes:
            if at is None or not len(at):
                continue
            cells, lanes = touch.every()
            apart = (self.shadow.records[name][cells[at]] & LANE) // WARP != lanes[at] // WARP
            if apart.any():
                self._report(does, name, touch, at[np.argmax(apart)])
            first = first or (name, at[0])
        if first:
            self._report(does, first[0], touch, first[1])

    def _wait(self, does: str, touch, crowd: Crowd, kind=None) -> None:
        """Raise unless who touches knows that the crowd has ended, but for those of a kind."""
        found = crowd.unknown(touch, self.sanitizer.clocks, kind)
        if found:
            self._report(does, "reader" if crowd is self.sources else "writer", touch, *found)

    def _report(self, does: str, name: str, touch, at: int, access: Access | None = None) -> None:
        """access: of a crowd, that clashes; None: what the record of that name tells."""
        sanitizer, site = self.sanitizer, touch.site
        cells, lanes = touch.every()
        cell, lane = int(cells[at]), int(lanes[at])
        record = access.record if access else int(self.shadow.records[name][cell])
        where = sanitizer.name_cell(self.space, self.shadow, cell, lane)
        if record >= FUTURE:
            reading = name in ("reader", "other")
            line = sanitizer.chunk.where(access.site) if access else sanitizer.line_of_flight(cell, reading)
            raise sanitizer.fault(lane, site, f"a {does} of {where}, which the asynchronous unit issued at {line} is still to "
                                              f"{'read' if reading else 'write'}: wait for it first", InFlight)
        chunk, clocks = sanitizer.chunk, sanitizer.clocks
        time, theirs = record >> SHIFT, record & LANE
        if access.counted if access else theirs >= chunk.count and time > clocks.start:
            raise sanitizer.fault(lane, site, f"a {does} of {where} races with the asynchronous copy issued at {sanitizer.line_at(time)}: "
                                              "wait for the phase of its mbarrier first", Race)
        earlier = time <= clocks.start
        if not earlier and theirs // WARP == lane // WARP:
            cure = "__syncwarp(), or a barrier, between them would order them"
        elif not earlier and chunk.block_of[theirs] == chunk.block_of[lane]:
            cure = "a barrier (__syncthreads()) between them would order them"
        elif self.space == "shared":
            cure = "a barrier of the cluster between them would order them"
        else:
            cure = "different blocks: use atomics, or a flag with __threadfence() before it is set and after it is seen"
        who = "another lane of its warp" if record & MANY else sanitizer.who_at(time, theirs)
        raise sanitizer.fault(lane, site, f"race on {where}: this {does} and the {DID[name]} by {who} at {sanitizer.line_at(time)} are not "
                                          f"ordered; {cure}", Race)
