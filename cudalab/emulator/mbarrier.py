"""Barriers in shared memory that count arrivals and bytes.  PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier",
"Phase of the mbarrier object", "Tracking asynchronous operations by the mbarrier object".

A barrier is in a phase, of which `pending` arrivals and `tx` bytes are outstanding; with both at zero the phase completes, the next one
begins and expects `expected` arrivals.  expect_tx takes effect before the arrival it comes with.  A wait by parity P ends once the phase of
that parity is over: the current phase's parity is not P, so a fresh barrier lets those pass who wait for parity 1.

The barrier's eight bytes hold a mark, so that one that has been written over is found out.  A wait blocks its lanes until the phase is
over; it never gives up, which try_wait may, so that nothing spins here.
"""

from dataclasses import dataclass

import numpy as np

from cudalab.emulator.chunk import put
from cudalab.emulator.scheduler import Scheduler, Waiter
from cudalab.emulator.table import waiter
from cudalab.emulator.taking_part import values_of

BYTES = 8
MARK = 0x6D62_6172_0000_0000  # "mbar" in a barrier's upper half, its number in the lower
MOST = (1 << 20) - 1  # arrivals, and bytes in either direction
PHASE_SHIFT = 20  # of a state: the phase above, pending arrivals below


@dataclass
class Held:
    """Lanes that wait: per lane the number of its barrier and what it waits for (a parity, or a phase); where the result goes."""

    lanes: np.ndarray
    numbers: np.ndarray
    wanted: np.ndarray
    parity: bool
    acquires: bool
    slot: int | None
    following: int
    site: int


@waiter("mbarrier")
class Mbarriers(Waiter):
    """All barriers of a chunk, numbered as they are initialised."""

    def __init__(self, chunk):
        super().__init__(chunk)
        self.memory, self.scheduler = chunk.memory, None
        self.numbers: np.ndarray | None = None  # per eight bytes of shared memory the number of the barrier there, -1 for none
        self.index = np.zeros(0, np.int64)  # flat index of each barrier
        self.expected, self.pending, self.tx, self.phase = (np.zeros(0, np.int64) for _ in range(4))
        self.held: list[Held] = []

    # -- the barriers

    def init(self, index, lanes, counts, site) -> None:
        if self.numbers is None:
            self.numbers = np.full(self.chunk.blocks * self.chunk.shared_stride // BYTES, -1, np.int64)
        for number, (at, lane, count) in enumerate(zip(index.tolist(), lanes.tolist(), counts.tolist()), len(self.index)):
            if not 1 <= count <= MOST:
                raise self.chunk.fault(lane, site, f"an mbarrier for {count} arrivals; possible are 1 to {MOST}")
            if self._valid(at):
                raise self.chunk.fault(lane, site, f"an mbarrier is initialised where there is one already ({self._name(at)})")
            self.numbers[at - self.memory.shared_start >> 3] = number
            self.memory.view(np.dtype("u8"))[at >> 3] = MARK | number
        self.index = np.append(self.index, index)
        self.expected, self.pending = np.append(self.expected, counts), np.append(self.pending, counts)
        self.tx, self.phase = (np.append(old, np.zeros(len(index), np.int64)) for old in (self.tx, self.phase))
        self.memory.changes += 1
        self._tell("release", index, lanes, site)

    def invalidate(self, index, lanes, site) -> None:
        numbers = self.find(index, lanes, site)
        waited = [h for h in self.held if np.isin(h.numbers, numbers).any()]
        if waited:
            raise self.chunk.fault(int(lanes[0]), site, f"an mbarrier is invalidated that {len(waited[0].lanes)} threads wait for")
        self.numbers[index - self.memory.shared_start >> 3] = -1
        self.memory.view(np.dtype("u8"))[index >> 3] = 0
        self.memory.changes += 1

    def find(self, index, lanes, site) -> np.ndarray:
        """The numbers of the barriers at flat indices.  Raises where there is none."""
        if self.numbers is not None:
            numbers = self.numbers[index - self.memory.shared_start >> 3]
            if ((numbers >= 0) & (self.memory.view(np.dtype("u8"))[index >> 3] == (MARK | numbers).astype(np.uint64))).all():
                return numbers
        for at, lane in zip(index.tolist(), lanes.tolist()):
            if not self._valid(at):
                known = self.numbers is not None and self.numbers[at - self.memory.shared_start >> 3] >= 0
                raise self.chunk.fault(lane, site, f"the mbarrier at {self._name(at)} has been "
                                                   + ("written over" if known else "used before anybody initialised it"))
        raise AssertionError("a barrier that is there and is not")

    def count(self, index, lanes, counts, tx, site, complete=True, drop=False, releases=True) -> np.ndarray:
        """Arrivals, one after the other; the state before each.

        tx: bytes to expect before, or None.  releases: not .relaxed.
        """
        numbers = self.find(index, lanes, site)
        self._tell("release" if releases else "relaxed", index, lanes, site)
        if tx is not None:
            self._expect(numbers, lanes, tx, site)
        unique, inverse = np.unique(numbers, return_inverse=True)
        total = np.bincount(inverse, counts, len(unique)).astype(np.int64)
        if (counts < 1).any() or (counts > MOST).any():
            raise self.chunk.fault(int(lanes[0]), site, f"arrivals with a count outside 1 to {MOST}")
        if (total <= self.pending[unique]).all():  # all in the current phase
            pending = self.pending[numbers] - (earlier(inverse, counts) if len(unique) < len(numbers) else 0)
            states = (self.phase[numbers] << PHASE_SHIFT | pending).astype(np.uint64)
            self._count(unique, total, lanes, site, complete, drop)
            return states
        states = np.zeros(len(numbers), np.uint64)
        for at in range(len(numbers)):
            one = numbers[at:at + 1]
            states[at] = self.phase[one[0]] << PHASE_SHIFT | self.pending[one[0]]
            if counts[at] > self.pending[one[0]]:
                self._too_many(one, lanes[at:], counts[at:], site)
            self._count(one, counts[at:at + 1], lanes[at:], site, complete, drop)
        return states

    def expect(self, index, lanes, tx, site) -> None:
        numbers = self.find(index, lanes, site)
        self._tell("relaxed", index, lanes, site)
        self._expect(numbers, lanes, tx, site)
        self._complete(np.unique(numbers))

    def complete_bytes(self, index, lanes, tx, site) -> None:
        """So many bytes have arrived."""
        numbers = self.find(index, lanes, site)
        self._expect(numbers, lanes, -tx, site)
        self._complete(np.unique(numbers))

    def over(self, numbers, wanted, parity) -> np.ndarray:
        """For each: is what it waits for over?"""
        phase = self.phase[numbers]
        return phase & 1 != wanted if parity else phase != wanted

    def test(self, index, lanes, wanted, parity, acquires, site) -> np.ndarray:
        """For each lane: is what it waits for over?  What is not over shall be, in the end: what is on its way arrives."""
        numbers = self.find(index, lanes, site)
        over = self.over(numbers, wanted if parity else wanted >> PHASE_SHIFT, parity)
        if over.any() and acquires:
            self._tell("acquire", index[over], lanes[over], site)
        if not over.all():
            self.chunk.waiters["transfers"].deliver(barriers=np.unique(index[~over]))
        return over

    def raise_pending(self, index, lanes, site) -> None:
        """One arrival more in the current phase for each lane."""
        np.add.at(self.pending, self.find(index, lanes, site), 1)

    def _expect(self, numbers, lanes, tx, site):
        np.add.at(self.tx, numbers, tx)
        if (np.abs(self.tx[numbers]) > MOST).any():
            at = int(np.argmax(np.abs(self.tx[numbers])))
            raise self.chunk.fault(int(lanes[at]), site, f"an mbarrier tracks {self.tx[numbers[at]]} bytes; at most {MOST} are possible")

    def _count(self, numbers, counts, lanes, site, complete, drop):
        self.pending[numbers] -= counts
        if not complete and (self.pending[numbers] == 0).any():
            raise self.chunk.fault(int(lanes[0]), site, "an arrival with .noComplete completes the phase")
        if drop:
            self.expected[numbers] -= counts
            if (self.expected[numbers] < 0).any():
                raise self.chunk.fault(int(lanes[0]), site, "more arrivals are dropped than the mbarrier expects")
        self._complete(numbers)

    def _too_many(self, numbers, lanes, counts, site):
        at = int(np.argmax(counts > self.pending[numbers]))
        number = numbers[at]
        raise self.chunk.fault(int(lanes[at]), site, f"an arrival more than the mbarrier at {self.describe(number)} still expects")

    def _complete(self, numbers) -> None:
        done = numbers[(self.pending[numbers] == 0) & (self.tx[numbers] == 0) & (self.expected[numbers] >= 0)]
        self.memory.changes += 1
        if len(done):
            for observer in self.chunk.observers:
                for at in self.index[done].tolist():
                    observer.opened(("mbarrier", at))
            self.phase[done] += 1
            self.pending[done] = self.expected[done]
            self._release()

    # -- those who wait

    def arrive(self, scheduler, lanes, values, following, site):
        """Lanes that wait (not arrivals, which `count` counts)."""
        index, wanted, parity, acquires, slot = values
        self.scheduler = scheduler
        wanted = values_of(wanted, len(lanes), None)
        if parity:
            if (wanted > 1).any():
                raise self.chunk.fault(int(lanes[np.argmax(wanted)]), site, f"a wait for parity {wanted.max()}; there are 0 and 1")
        else:
            wanted = wanted >> PHASE_SHIFT
        numbers = self.find(index, lanes, site)
        held = Held(lanes, numbers, wanted, parity, acquires, slot, following, site)
        self._let_go(held, self.over(numbers, wanted, parity))

    def _let_go(self, held: Held, over) -> None:
        lanes = held.lanes[over]
        if len(lanes):
            if held.slot is not None:
                put(self.chunk, held.slot, lanes, np.True_)
            if held.acquires:
                self._tell("acquire", self.index[held.numbers[over]], lanes, held.site)
            self.scheduler.resume(held.following, lanes)
        if not over.all():
            stays = ~over
            self.held.append(Held(held.lanes[stays], held.numbers[stays], held.wanted[stays], held.parity, held.acquires, held.slot,
                                  held.following, held.site))

    def _release(self) -> None:
        pending, self.held = self.held, []
        for held in pending:
            self._let_go(held, self.over(held.numbers, held.wanted, held.parity))

    def poll(self, scheduler: Scheduler) -> None:
        """Nobody can run: bring what is waited for; then everything else that is to arrive at a barrier."""
        transfers = self.chunk.waiters["transfers"]
        if self.held:
            transfers.deliver(barriers=np.unique(np.concatenate([self.index[h.numbers] for h in self.held])))
        if not scheduler.groups:
            transfers.deliver(barriers=self.index)

    def waiting(self):
        found = {}
        for held in self.held:
            for number, wanted in np.unique(np.stack([held.numbers, held.wanted]), axis=1).T.tolist():
                of = (held.numbers == number) & (held.wanted == wanted)
                what = f"parity {wanted}" if held.parity else f"phase {wanted >> PHASE_SHIFT}"
                # the same place of another block is in the same line: of many blocks the report names one
                key = held.site, what, int(self.index[number] - self.memory.shared_start) % self.chunk.shared_stride
                lanes, first = found.get(key, (held.lanes[:0], number))
                found[key] = np.concatenate([lanes, held.lanes[of]]), first
        return [(np.sort(lanes), site, f"{what} of the mbarrier at {self.describe(first)}")
                for (site, what, _), (lanes, first) in found.items()]

    def describe(self, number: int) -> str:
        tx = self.tx[number]
        return (f"{self._name(int(self.index[number]))} (phase {self.phase[number]}: {self.pending[number]} of {self.expected[number]} "
                f"arrivals outstanding, {tx} bytes{' too many arrived' if tx < 0 else ''})")

    def _name(self, at: int) -> str:
        block, offset = divmod(at - self.memory.shared_start, self.chunk.shared_stride)
        return f"shared address {offset} of block {tuple(int(p[block]) for p in self.chunk.positions)}"

    def _valid(self, at: int) -> bool:
        number = -1 if self.numbers is None else int(self.numbers[at - self.memory.shared_start >> 3])
        return number >= 0 and int(self.memory.view(np.dtype("u8"))[at >> 3]) == MARK | number

    def _tell(self, event: str, index, lanes, site) -> None:
        for observer in self.chunk.observers:
            for at in np.unique(index):
                getattr(observer, event)(("mbarrier", int(at)), lanes[index == at], site)


def earlier(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """For each of several counts the sum of those before it in the same group."""
    order = np.argsort(groups, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    first = np.r_[True, groups[order][1:] != groups[order][:-1]]
    result = np.empty(len(groups), np.int64)
    result[order] = before - before[first][np.cumsum(first) - 1]
    return result
