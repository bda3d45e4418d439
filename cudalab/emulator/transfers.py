"""Copies that engines of their own carry out.  PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy", "Bulk copy",
"Completion Mechanisms for Asynchronous Copy Operations".

A copy reads its source and writes its target at some time between its start and the end of a wait for it.  The emulator does both as late
as possible (lazy: when a wait needs it) or as early (eager: when it starts); a kernel whose result depends on which has a bug, and a
sanitizer is told of starts and ends: async_read, async_read_done, async_write, async_done.
"""

import numpy as np

from cudalab.emulator.scheduler import Waiter
from cudalab.emulator.table import runtime, waiter


class Copy:
    """One copy of one lane.

    source, target: objects with read() -> bytes, write(bytes, combine), rows() -> (flat indices, bytes each); source may be the bytes
    themselves.  barrier: flat index of the mbarrier that counts nbytes when they have arrived; None: the lane's bulk group `group`.
    combine: (old, new) -> what is stored, for reductions; the same object for all of one operation and type.
    """

    __slots__ = ("lane", "site", "source", "target", "nbytes", "barrier", "group", "combine", "data")

    def __init__(self, lane, site, source, target, nbytes, barrier=None, combine=None):
        self.lane, self.site, self.source, self.target, self.nbytes = lane, site, source, target, nbytes
        self.barrier, self.combine, self.group, self.data = barrier, combine, None, None


class Arrival:
    """Arrivals at mbarriers of lanes whose cp.async, as far as they had started, have arrived."""

    def __init__(self, index, lanes, serial, site):
        self.index, self.lanes, self.serial, self.site = index, lanes, serial, site


@waiter("transfers")
class Transfers(Waiter):
    """All copies under way in a chunk, in the order of their starts.  committed: per lane, how many bulk groups it has closed."""

    def __init__(self, chunk):
        super().__init__(chunk)
        self.memory, self.observers = chunk.memory, chunk.observers
        self.copies: list[Copy] = []
        self.arrivals: list[Arrival] = []
        self.committed: np.ndarray | None = None

    def start(self, copies: list[Copy]) -> None:
        """Copies of one instruction."""
        counted = [copy for copy in copies if copy.barrier is not None]
        if counted:
            index, lanes = (np.array([getattr(copy, name) for copy in counted]) for name in ("barrier", "lane"))
            self.chunk.waiters["mbarrier"].find(index, lanes, counted[0].site)  # made now, not only by when the copy arrives
            for observer in self.observers:
                observer.counted(index, lanes, counted[0].site)
        for copy in copies:
            if copy.barrier is None:
                copy.group = 0 if self.committed is None else int(self.committed[copy.lane])
            for observer in self.observers:
                lane = np.array([copy.lane])
                if not isinstance(copy.source, np.ndarray):
                    observer.async_read(*copy.source.rows(), lane, copy.site, copy)
                observer.async_write(*copy.target.rows(), lane, copy.site, copy)
        if self.chunk.eager:
            self._finish(copies)
            copies = [copy for copy in copies if copy.barrier is None]  # they stay until their group is waited for
        self.copies += copies

    def after_copies(self, index, lanes, site) -> None:
        """Arrive at mbarriers once the cp.async that lanes have started are there."""
        flights = self.memory.flights
        self.arrivals.append(Arrival(index, lanes, flights.serial if flights is not None else 0, site))
        if self.chunk.eager:
            self._arrive(lambda arrival: True)

    def deliver(self, barriers: np.ndarray) -> None:
        """Whatever is on its way to one of these mbarriers arrives."""
        if self.arrivals:
            self._arrive(lambda arrival: np.isin(arrival.index, barriers).any())
        if self.copies:
            wanted = set(barriers.tolist())
            due = [copy for copy in self.copies if copy.barrier in wanted]
            if due:
                self.copies = [copy for copy in self.copies if copy.barrier not in wanted]
                self._finish(due)

    def commit(self, lanes) -> None:
        if self.committed is None:
            self.committed = np.zeros(self.chunk.count, np.int64)
        self.committed[slice(None) if lanes is None else lanes] += 1

    def wait(self, lanes, pending: int, reading: bool, site: int) -> None:
        """Finish (reading: read the sources of) all bulk groups of these lanes but the newest `pending` closed ones."""
        if not self.copies or self.committed is None:
            return
        waits = np.zeros(self.chunk.count, bool)
        waits[slice(None) if lanes is None else lanes] = True
        due = [copy for copy in self.copies
               if copy.barrier is None and waits[copy.lane] and copy.group < self.committed[copy.lane] - pending]
        for copy in due:
            self._read(copy)
            for observer in self.observers:
                if not isinstance(copy.source, np.ndarray):
                    observer.async_read_done(*copy.source.rows(), np.array([copy.lane]), site, copy)
        if not reading:
            self._finish([copy for copy in due if copy.target is not None])
            gone = set(map(id, due))
            self.copies = [copy for copy in self.copies if id(copy) not in gone]

    def exited(self, scheduler, lanes) -> None:
        """A block that has ended has no shared memory any more."""
        if not self.copies:
            return
        chunk = self.chunk
        alive = chunk.alive.reshape(chunk.blocks, -1).any(axis=1)
        for copy in self.copies:
            for part, what in ((copy.target, "write"), (copy.source if copy.data is None else None, "read")):
                block = (getattr(part, "first", -1) - self.memory.shared_start) // chunk.shared_stride
                if 0 <= block < chunk.blocks and not alive[block]:
                    raise chunk.fault(copy.lane, copy.site, f"a block ends while a copy has yet to {what} its shared memory; wait for "
                                                            "that first")
        if not alive.any():  # what is left writes global memory
            self._finish([copy for copy in self.copies if copy.target is not None])
            self.copies = []

    def _read(self, copy: Copy) -> None:
        if copy.data is None:
            copy.data = copy.source if isinstance(copy.source, np.ndarray) else copy.source.read()

    def _finish(self, copies: list[Copy]) -> None:
        """Read, write, count."""
        if not copies:
            return
        for copy in copies:
            if copy.target is not None:
                self._read(copy)
                copy.target.write(copy.data, copy.combine)
                key = None if copy.barrier is None else ("mbarrier", int(copy.barrier))
                for observer in self.observers:
                    observer.async_done(*copy.target.rows(), key, copy.site, copy)
                copy.target = None
        self.memory.changes += 1
        counted = [copy for copy in copies if copy.barrier is not None]
        for site in dict.fromkeys(copy.site for copy in counted):
            some = [copy for copy in counted if copy.site == site]
            index, lanes, nbytes = (np.array([getattr(copy, name) for copy in some]) for name in ("barrier", "lane", "nbytes"))
            self.chunk.waiters["mbarrier"].complete_bytes(index, lanes, nbytes, site)

    def _arrive(self, due) -> None:
        going = [arrival for arrival in self.arrivals if due(arrival)]
        self.arrivals = [arrival for arrival in self.arrivals if not due(arrival)]
        for arrival in going:
            if self.memory.flights is not None:
                self.memory.flights.wait(arrival.lanes, -1, arrival.site, before=arrival.serial)
            self.chunk.waiters["mbarrier"].count(arrival.index, arrival.lanes, np.ones(len(arrival.lanes), np.int64), None, arrival.site)


@runtime
def transfers_of(chunk) -> Transfers:
    return chunk.waiters["transfers"]
