"""Who runs next: groups of lanes at an instruction, joined where they meet.

All lanes at one instruction are one group.  The group at the lowest instruction runs, which brings lanes that parted in a branch together
again behind it; a group that has waited too long runs first (AGE), so that lanes that spin on what others will write cannot starve them.
A segment that needs whole warps runs for those that are complete; the other lanes are parked until more arrive.  What waits for
barriers is with a Waiter.
"""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from cudalab.emulator.chunk import WARP, Chunk
from cudalab.emulator.errors import Deadlock, KernelFault
from cudalab.emulator.lower import compile_segment
from cudalab.emulator.program import Immediate, Register
from cudalab.emulator.segments import Segment
from cudalab.emulator.spinning import Spinners, equal, same_lanes
from cudalab.emulator.table import runtime

AGE = 64  # steps a group may wait while others run
FIRST_LOOK = 4096  # steps of a chunk before it is suspected of spinning in vain
EXIT = -1  # where lanes go that have ended
ALL = 0xFFFFFFFF


@runtime
@dataclass
class Wait:
    """What a waiting instruction returns: its kind of waiter, the operands' values, the guard (None: all lanes) and where to go on."""

    kind: str
    values: tuple
    mask: object
    following: int
    site: int


@dataclass
class Snapshot:
    """All that decides what happens next: the group about to run, all groups and their registers, how often memory has changed."""

    step: int
    start: int
    changes: int
    groups: dict
    registers: dict


class Waiter:
    """Base of what holds lanes back; one object of each registered kind a chunk.  See barriers.py for an example."""

    def __init__(self, chunk: Chunk):
        self.chunk = chunk

    def arrive(self, scheduler: "Scheduler", lanes: np.ndarray, values: tuple, following: int, site: int) -> None:
        """Lanes have come to the instruction; scheduler.resume(following, lanes) lets lanes go on, now or later."""
        raise NotImplementedError

    def exited(self, scheduler: "Scheduler", lanes: np.ndarray) -> None:
        """Lanes have ended: those who wait may now be complete."""

    def poll(self, scheduler: "Scheduler") -> None:
        """Nobody can run: let go whoever may go by now, deliver what is under way."""

    def waiting(self) -> list[tuple[np.ndarray, int, str]]:
        """(lanes, site, for what) of those held back, for the report of a deadlock."""
        return []


class Scheduler:
    """Runs one chunk to its end.  segments: by first instruction.  patience: steps after which a kernel counts as stuck."""

    def __init__(self, chunk: Chunk, segments: dict[int, Segment], patience: int):
        self.chunk, self.segments, self.patience = chunk, segments, patience
        self.groups: dict[int, np.ndarray | None] = {}  # instruction -> lanes (None: all of the chunk)
        self.since: dict[int, int] = {}  # instruction -> step at which its group came there
        self.parked: dict[int, np.ndarray | None] = {}
        self.watched = bool(chunk.observers)
        self.spinners = Spinners(chunk, segments)
        self._seen: Snapshot | None = None
        self._next_look = FIRST_LOOK
        self.site = -1  # the last instruction of the segment that ran last

    def run(self) -> None:
        """Raises KernelFault (Deadlock among them)."""
        chunk = self.chunk
        self.resume(chunk.image.entry, chunk.start_lanes())
        while True:
            for at, lanes in self.spinners.woken():
                self.resume(at, lanes)
            if not self.groups and not self._wake():
                return
            chunk.steps += 1
            start = self._choose()
            if start in self.spinners.heads and self.spinners.spins(start, self.groups[start]):
                self.spinners.park(start, self.groups.pop(start), self._join)
                self.since.pop(start)
                continue
            if chunk.steps >= FIRST_LOOK:
                self._look_for_spinning(start)
            lanes = self.groups.pop(start)
            self.since.pop(start)
            segment = self.segments[start]
            if segment.collective:
                lanes = self._complete(segment, lanes)
                if lanes is not None and not len(lanes):
                    continue
            if segment.function is None:
                segment.function = compile_segment(chunk.image, segment, self.watched)
                self._extend_registers()
            if self.watched:
                for observer in chunk.observers:
                    observer.segment(segment, lanes)
            self.spinners.ran(start, lanes)
            self.site = segment.end - 1
            self._follow(segment, lanes, segment.function(chunk, chunk.registers, lanes))

    def resume(self, at: int, lanes: np.ndarray | None) -> None:
        """Let lanes (None: all) go on at an instruction."""
        if at == EXIT:
            self._exit(lanes)
            return
        groups = self.groups
        if at in self.parked and at not in groups:
            groups[at] = self.parked.pop(at)
        if at in groups:
            lanes = self._join(groups[at], lanes)
        elif lanes is not None and len(lanes) == self.chunk.count:
            lanes = None
        groups[at] = lanes
        self.since.setdefault(at, self.chunk.steps)

    def _join(self, one, other):
        if one is None or other is None:
            return None
        joined = np.concatenate([one, other])
        if len(joined) == self.chunk.count:
            return None
        joined.sort()
        return joined

    def lanes(self, lanes: np.ndarray | None) -> np.ndarray:
        """A group's lanes as an array."""
        return self.chunk.all_lanes if lanes is None else lanes

    def _choose(self) -> int:
        if len(self.groups) == 1:
            return next(iter(self.groups))
        oldest = min(self.since, key=self.since.get)
        return oldest if self.chunk.steps - self.since[oldest] > AGE else min(self.groups)

    def _extend_registers(self) -> None:
        registers, types = self.chunk.registers, self.chunk.image.slot_types
        registers += [np.zeros((), dtype)[()] for dtype in types[len(registers):]]

    def _follow(self, segment: Segment, lanes, result) -> None:
        """Send lanes where a segment's result says: an instruction, a choice by a mask, one for each lane, or to wait."""
        if type(result) is int:
            self.resume(result, lanes)
        elif type(result) is tuple:
            self._branch(segment, lanes, *result)
        elif isinstance(result, Wait):
            every = self.lanes(lanes)
            if result.mask is not None:
                mask = np.broadcast_to(result.mask, len(every))
                if not mask.all():
                    self.resume(result.following, every[~mask])
                    every = every[mask]
                    result.values = tuple(v[mask] if getattr(v, "ndim", 0) else v for v in result.values)
            if len(every):
                self.chunk.waiters[result.kind].arrive(self, every, result.values, result.following, result.site)
        else:  # an instruction number for each lane
            every = self.lanes(lanes)
            for target in np.unique(result):
                self.resume(int(target), every[result == target])

    def _branch(self, segment: Segment, lanes, mask, taken: int, following: int) -> None:
        if not mask.ndim:
            self.resume(taken if mask else following, lanes)
            return
        number = np.count_nonzero(mask)
        if self.watched:
            for observer in self.chunk.observers:
                observer.branch(segment, lanes, mask)
        if number == len(mask):
            self.resume(taken, lanes)
        elif number == 0:
            self.resume(following, lanes)
        else:
            every = self.lanes(lanes)
            self.resume(taken, every[mask])
            self.resume(following, every[~mask])

    def _exit(self, lanes) -> None:
        chunk, every = self.chunk, self.lanes(lanes)
        chunk.alive[every] = False
        chunk.living -= len(every)
        for waiter in chunk.waiters.values():
            waiter.exited(self, every)
        for observer in chunk.observers:
            observer.exited(every, self.site)
        for at in list(self.parked):
            self.resume(at, self.parked.pop(at))

    # -- instructions that several lanes execute together

    def _complete(self, segment: Segment, lanes):
        """Those of the lanes whose company is complete (None: all); the others are parked.  Whom a guard holds back goes past."""
        chunk = self.chunk
        if segment.guarded:
            lanes = self._past_guard(segment, lanes)
        members = self._members(segment)
        if lanes is None and not getattr(members, "ndim", 0) and (members is None or members == ALL):
            return None
        every = self.lanes(lanes)
        here = np.zeros(chunk.count, bool)
        here[every] = True
        if segment.members is None or (members == ALL if not members.ndim else (members[every] == ALL).all()):
            ready = self._whole(here | ~chunk.alive, max(segment.collective, WARP))[every]
        else:
            ready = self._members_here(segment, every, here, np.broadcast_to(members, chunk.count))
        if ready.all():
            return lanes
        waiting = every[~ready]
        self.parked[segment.start] = self._join(self.parked[segment.start], waiting) if segment.start in self.parked else waiting
        return every[ready]

    def _past_guard(self, segment: Segment, lanes) -> np.ndarray:
        """The lanes that the guard of the segment's one instruction lets through; the others go on behind it."""
        ins, every = self.chunk.image.instructions[segment.start], self.lanes(lanes)
        guard = np.broadcast_to(self.chunk.registers[self.chunk.image.slot(ins.predicate)], self.chunk.count)[every] ^ ins.negated
        if not guard.all():
            self.resume(segment.end, every[~guard])
        return every[guard]

    def _whole(self, here: np.ndarray, width: int) -> np.ndarray:
        """For each lane: are all lanes here of the `width` neighbours in its block that it belongs to?"""
        blocks = here.reshape(self.chunk.blocks, -1)
        filled = np.ones((len(blocks), -(-blocks.shape[1] // width) * width), bool)
        filled[:, :blocks.shape[1]] = blocks
        whole = np.repeat(filled.reshape(len(blocks), -1, width).all(axis=2), width, axis=1)
        return whole[:, :blocks.shape[1]].reshape(-1)

    def _members(self, segment: Segment):
        """The member mask of the lanes: one number, or an array over the whole chunk."""
        match segment.members:
            case None:
                return None
            case Immediate(value=value):
                return np.uint32(value & ALL)
            case Register() as register:
                return self.chunk.registers[self.chunk.image.slot(register)]
        return np.uint32(ALL)

    def _members_here(self, segment: Segment, every, here, members) -> np.ndarray:
        """For each lane: are all living lanes that its mask names here, with the same mask?"""
        chunk = self.chunk
        bit = np.uint32(1) << (every % WARP).astype(np.uint32)
        own = members[every].astype(np.uint32)
        if not (own & bit).all():
            lane = int(every[np.argmax(own & bit == 0)])
            raise chunk.fault(lane, segment.start, "a thread executes a warp instruction whose member mask does not name it")
        table = np.zeros((chunk.warps, WARP), np.uint32)
        table[every // WARP, every % WARP] = own
        rows = table[every // WARP]
        named = (own[:, None] >> np.arange(WARP, dtype=np.uint32) & np.uint32(1)).astype(bool)
        same = (rows == own[:, None]) & here.reshape(-1, WARP)[every // WARP]
        return (same | ~named | ~chunk.alive.reshape(-1, WARP)[every // WARP]).all(axis=1)

    # -- when nobody can run, or nobody gets anywhere

    def _look_for_spinning(self, start: int) -> None:
        """Raise if all is as it was some steps ago, and every group has run since: then it will be so for ever.

        What was is kept anew after 4096, 8192, … steps, so that a cycle of any length is found: R. P. Brent, "An improved Monte Carlo
        factorization algorithm", BIT 20 (1980).
        """
        chunk = self.chunk
        if chunk.steps % 256 == 0:
            for waiter in chunk.waiters.values():
                waiter.poll(self)  # what is under way must arrive although somebody runs
        if chunk.steps > self.patience:
            self._report(f"has not ended after {self.patience} steps", KernelFault)
        if self.spinners.timed:
            return
        seen, changes = self._seen, chunk.memory.changes
        if seen is not None and start == seen.start and changes == seen.changes and self.groups.keys() == seen.groups.keys():
            if min(self.since.values()) > seen.step and all(same_lanes(self.groups[at], lanes) for at, lanes in seen.groups.items()) \
                    and all(equal(chunk.registers[slot], values) for slot, values in seen.registers.items()):
                self._report("spins on something that nobody is left to change", Deadlock)
        if chunk.steps >= self._next_look:
            self._next_look = 2 * chunk.steps
            live = 0
            for at in self.groups:
                live |= self.segments[at].live_in
            registers = {slot: np.copy(chunk.registers[slot]) for slot in range(live.bit_length()) if live >> slot & 1}
            self._seen = Snapshot(chunk.steps, start, changes, dict(self.groups), registers)

    def _wake(self) -> bool:
        """Let go who may go; False if all lanes have ended.  Raises Deadlock."""
        for waiter in self.chunk.waiters.values():
            waiter.poll(self)
            if self.groups:
                return True
        if not self.chunk.alive.any():
            return False
        for at, lanes in self.spinners.woken():
            self.resume(at, lanes)
        if not self.groups:
            self._report("spins on something that nobody is left to change" if self.spinners.parked else "cannot go on", Deadlock)
        return True

    def _report(self, what: str, kind: type[KernelFault]) -> NoReturn:
        """Who is where and waits for what."""
        chunk, lines = self.chunk, []
        held = [entry for waiter in chunk.waiters.values() for entry in waiter.waiting()]
        held += [(self.lanes(lanes), at, "the other lanes of its warp") for at, lanes in self.parked.items()]
        held += [(self.lanes(lanes), at, "a change of memory") for at, lanes in self.spinners.parked.items()]
        held += [(self.lanes(lanes), at, "") for at, lanes in self.groups.items()]
        for lanes, site, reason in held[:8]:
            waits = f" {'wait' if len(lanes) > 1 else 'waits'} for {reason}" if reason else " run"
            lines.append(f"{len(lanes)} threads (first: {chunk.who(int(lanes[0]))}){waits} at {chunk.where(site)}")
        raise kind(f"{chunk.image.kernel.name} {what}: " + "; ".join(lines))
