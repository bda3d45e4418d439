"""Asynchronous copies from global to shared memory.  PTX ISA, "Data Movement and Conversion Instructions: cp.async, cp.async.commit_group,
cp.async.wait_group, cp.async.wait_all".

A copy reads its source when it starts and writes its target when its thread waits for its group; until then its target is in flight, and
an access to it an error: on hardware it would meet old or new bytes.
"""

from dataclasses import dataclass

import numpy as np

from cudalab.emulator.memory import Place
from cudalab.emulator.memory_ops import CACHE
from cudalab.emulator.program import Immediate, Register
from cudalab.emulator.table import instruction, runtime

WORD = 4  # bytes: no copy is smaller


@instruction("cp.async", modifiers=f"shared shared::cta global {CACHE}", writes=0)
def cp_async(code, ins):
    target, source, size, *more = ins.operands
    to, to_offset = code.place(target, "shared")
    origin, from_offset = code.place(source, "global")
    given = code.constant(np.uint32(size.value))
    if more and isinstance(more[0], Register) and more[0].type.name == "pred":  # ignore-src
        given = f"select({code.value(more[0], 'pred')}, {code.constant(np.uint32(0))}, {given})"
    elif more and (isinstance(more[0], Immediate) or more[0].type.bits == 32):
        given = code.value(more[0], "u32")
    code.line(f"start_copy(chunk, {to}, {to_offset}, {origin}, {from_offset}, {size.value}, {given}, count, {code.mask}, {code.site})")


@instruction("cp.async.commit_group", writes=0)
def commit_group(code, ins):
    code.line(f"flights_of(chunk).commit({_lanes(code)})")


@instruction("cp.async.wait_group", writes=0)
def wait_group(code, ins):
    code.line(f"flights_of(chunk).wait({_lanes(code)}, {ins.operands[0].value}, {code.site})")


@instruction("cp.async.wait_all", writes=0)
def wait_all(code, ins):
    code.line(f"flights_of(chunk).wait({_lanes(code)}, -1, {code.site})")


def _lanes(code) -> str:
    return "lanes" if code.mask is None else f"chosen_lanes(lanes, count, {code.mask})"


@runtime
def chosen_lanes(lanes, count, mask):
    """Those of the lanes that a mask lets through."""
    chosen = np.broadcast_to(mask, count).nonzero()[0]
    return chosen if lanes is None else lanes[chosen]


@dataclass
class Copies:
    """Copies that one instruction started: per copy its lane, its group, its target in the flat memory and its bytes."""

    lanes: np.ndarray
    groups: np.ndarray
    index: np.ndarray
    rows: np.ndarray
    size: int
    low: int
    high: int
    site: int
    serial: int


class Flights:
    """All copies under way in a chunk.  committed: how many groups each lane has closed."""

    def __init__(self, chunk):
        self.chunk, self.memory = chunk, chunk.memory
        self.committed = np.zeros(chunk.count, np.int64)
        self.copies: list[Copies] = []
        self.serial = 0  # of the next instruction's copies
        self.busy = np.zeros(chunk.blocks * chunk.shared_stride // WORD, np.uint8)  # not 0: words of shared memory that are in flight

    def __bool__(self) -> bool:
        return bool(self.copies)

    def words(self, index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """`busy` with as many words in one element as an access has, and which of its elements the accesses at flat indices touch."""
        size = max(WORD, size)
        return self.busy.view(f"u{size // WORD}"), np.asarray(index) - self.memory.shared_start >> size.bit_length() - 1

    def start(self, place: Place, offset: int, rows: np.ndarray, size: int, site: int) -> None:
        lanes = self.chunk.all_lanes if place.lanes is None else place.lanes
        index = np.broadcast_to(np.asarray(place.index) + offset, len(lanes))
        words = self.words(index, size)
        self._refuse_busy(words, lanes, site, "a copy to")
        flags, at = words
        flags[at] = np.iinfo(flags.dtype).max
        self.copies.append(Copies(lanes, self.committed[lanes], index, rows, size, place.low + offset, place.high + offset + size, site,
                                  self.serial))
        self.serial += 1

    def refuse(self, kind: str, place: Place, offset: int, size: int, site: int) -> None:
        """Raise where an access touches bytes that a copy has yet to write."""
        low, high = place.low + offset, place.high + offset + size
        if any(c.low < high and low < c.high for c in self.copies):
            lanes = self.chunk.all_lanes if place.lanes is None else place.lanes
            words = self.words(np.broadcast_to(np.asarray(place.index) + offset, len(lanes)), size)
            self._refuse_busy(words, lanes, site, f"{dict(load='a read of', store='a write to').get(kind, kind + ' of')}")

    def _refuse_busy(self, words, lanes, site, what):
        flags, at = words
        hit = flags.take(at)
        if hit.any():
            lane = int(lanes[np.argmax(hit != 0)])
            raise self.chunk.fault(lane, site, f"{what} shared memory that an asynchronous copy, not yet waited for, is to write")

    def commit(self, lanes) -> None:
        self.committed[slice(None) if lanes is None else lanes] += 1

    def wait(self, lanes, pending: int, site: int, before: int | None = None) -> None:
        """Deliver all groups of these lanes but the newest `pending` closed ones; pending -1: every copy, in a closed group or not.

        before: only those with lower serial numbers."""
        waits = None
        if lanes is not None:
            waits = np.zeros(self.chunk.count, bool)
            waits[lanes] = True
        kept = []
        for copies in self.copies:
            done = np.ones(len(copies.lanes), bool) if pending < 0 else copies.groups < self.committed[copies.lanes] - pending
            if before is not None and copies.serial >= before:
                done[:] = False
            if waits is not None:
                done &= waits[copies.lanes]
            if done.all():
                self._deliver(copies.index, copies.rows, copies.size, copies.lanes, site)
            elif done.any():
                self._deliver(copies.index[done], copies.rows[done], copies.size, copies.lanes[done], site)
                stays = ~done
                kept.append(Copies(copies.lanes[stays], copies.groups[stays], copies.index[stays], copies.rows[stays], copies.size,
                                   copies.low, copies.high, copies.site, copies.serial))
            else:
                kept.append(copies)
        self.copies = kept

    def _deliver(self, index, rows, size, lanes, site) -> None:
        self.memory.put_rows(index, rows, size)
        for observer in self.memory.observers:
            observer.landed(index, size, lanes, site)
        flags, at = self.words(index, size)
        flags[at] = 0


@runtime
def flights_of(chunk) -> Flights:
    """The chunk's copies under way."""
    if chunk.memory.flights is None:
        chunk.memory.flights = Flights(chunk)
    return chunk.memory.flights


@runtime
def start_copy(chunk, to, to_offset, origin, from_offset, size, given, count, mask, site):
    """Start copying `size` bytes a lane, of which only `given` are read and the others are zeros."""
    memory = chunk.memory
    if mask is not None:
        chosen = np.broadcast_to(mask, count).nonzero()[0]
        if not len(chosen):
            return
        to, origin = to.only(chosen, count), origin.only(chosen, count)
        given = given[chosen] if given.ndim else given
        count = len(chosen)
    memory.check(to, to_offset, size, "asynchronous copy", site)
    if not given.ndim and given >= size:  # the usual case: everybody reads all
        memory.check(origin, from_offset, size, "asynchronous copy", site)
        for observer in memory.observers:
            observer.access("load", origin, from_offset, size, site)
        rows = memory.rows(np.broadcast_to(np.asarray(origin.index) + from_offset, count), size)
    else:
        rows = _read_partly(memory, origin, from_offset, size, np.minimum(np.broadcast_to(given, count), size), site)
    for observer in memory.observers:
        observer.access("copy", to, to_offset, size, site)
    flights_of(chunk).start(to, to_offset, rows, size, site)


def _read_partly(memory, origin, from_offset, size, given, site) -> np.ndarray:
    """Rows of which the first `given` bytes are read."""
    count = len(given)
    reads = given.nonzero()[0]
    rows = np.zeros((count, size // WORD), np.uint32)
    if len(reads):
        source = origin if len(reads) == count else origin.only(reads, count)
        lowest = int(given[reads].min())
        full = lowest == size
        if full:
            memory.check(source, from_offset, size, "asynchronous copy", site)
        else:
            _check_partial(memory, source, from_offset, size, given[reads], site)
        for observer in memory.observers:
            observer.access("load", source, from_offset, size, site)
        index = np.broadcast_to(np.asarray(source.index) + from_offset, len(reads))
        if full and len(reads) == count:
            rows = memory.rows(index, size)
        elif full:
            rows[reads] = memory.rows(index, size)
        else:
            octets = rows.view(np.uint8)
            position = np.arange(size)
            taken = position < given[reads][:, None]
            octets[reads] = np.where(taken, memory.bytes[np.where(taken, index[:, None] + position, 0)], 0)
    return rows


def _check_partial(memory, source, offset, size, given, site):
    """Bounds by the bytes that are read, alignment by the size of the copy."""
    for amount in np.unique(given):
        some = (given == amount).nonzero()[0]
        part = source.only(some, len(given)) if len(some) < len(given) else source
        for at in range(int(amount)):
            memory.check(part, offset + at, 1, "asynchronous copy", site)
        if (part.bits | offset) & (size - 1) and ((np.asarray(part.address) + offset) & (size - 1)).any():
            lane = int(part.lanes[0]) if part.lanes is not None else 0
            raise memory.chunk.fault(lane, site, f"asynchronous copy of {size} bytes from an address not aligned to {size}")

