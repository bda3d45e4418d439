"""Barrier objects and the async proxy: named barriers that are passed and not waited at, mbarriers, cluster barriers; TMA and wgmma, which
read and write shared memory beside the threads.  PTX ISA, "Asynchronous operations", "Async proxy", "Parallel Synchronization and
Communication Instructions: mbarrier", "membar, fence: fence.proxy".
"""

from collections import deque

import numpy as np

from cudalab.emulator.sanitizer.crowds import Access
from cudalab.emulator.sanitizer.faults import MissingProxyFence
from cudalab.emulator.sanitizer.shadow import FUTURE, LANE, SHIFT


class Pieces:
    """What an asynchronous unit touches of one space, in the form of a touch.Touch: all pairs differ."""

    class pattern:
        winners = None

    def __init__(self, space: str, shadow, index, size: int, lanes, site: int):
        bits = size | 16 | int(np.bitwise_or.reduce(index)) if len(index) else size
        part = bits & -bits  # the largest power of two, 16 at most, that sizes and places are multiples of
        index = (index[:, None] + np.arange(0, size, part)).reshape(-1)
        self.space = space
        self.cells = shadow.cells(index, part)
        self.lanes = np.repeat(lanes, len(self.cells) // len(lanes))
        self.writers = self.readers = self.lanes
        self.apart, self.site = None, site

    def every(self):
        return self.cells, self.lanes


class Proxies:
    """Of one chunk.  objects: barrier object -> the row of all that has been released into it; opened: the same, as it was when a phase
    last ended.  Rows are never changed."""

    def __init__(self, sanitizer):
        self.sanitizer, self.clocks = sanitizer, sanitizer.clocks
        self.objects: dict = {}
        self.opened: dict = {}
        self.fenced = np.zeros(sanitizer.chunk.count, np.int64)  # time of each lane's last fence.proxy.async
        self.makers = np.zeros(sanitizer.chunk.count, bool)  # lanes that have initialised mbarriers
        self.offered = np.zeros(sanitizer.chunk.count, np.int64)  # time of each lane's last fence.mbarrier_init
        self.issued: dict[tuple[str, int], tuple[np.ndarray, int]] = {}  # (space, first cell) -> (cells, site) of writes under way
        self.reading: deque = deque(maxlen=1024)  # of the newest reads of wgmma
        self.sources: dict = {}  # copies that have yet to read -> the Access
        self.sums: dict = {}  # reductions that have yet to add

    def fence(self, mnemonic: str, lanes) -> None:
        if "mbarrier_init" in mnemonic:
            self.offered[slice(None) if lanes is None else lanes] = self.clocks.now
        if "proxy.async" in mnemonic:
            self.fenced[slice(None) if lanes is None else lanes] = self.clocks.now

    def meet(self, key, lanes, site: int) -> None:
        """Lanes use an mbarrier: its initialisation is a plain write of its eight bytes, everything else atomic."""
        if key[0] != "mbarrier":
            return
        sanitizer = self.sanitizer
        pieces = Pieces("shared", sanitizer.shared, np.full(len(lanes), key[1]), 8, lanes, site)
        if sanitizer.chunk.image.instructions[site].has("init"):
            sanitizer.shared.unset[pieces.cells] = False
            self.makers[lanes] = True
            sanitizer.races["shared"].store(pieces, lambda at, winners: np.zeros(len(at), bool))
        else:
            sanitizer.races["shared"].barrier(pieces, self._made, now=True)

    def counted(self, index, lanes, site: int) -> None:
        """Lanes, or copies that they start, are to count at mbarriers: these must have been made before."""
        sanitizer = self.sanitizer
        sanitizer.races["shared"].barrier(Pieces("shared", sanitizer.shared, index, 8, lanes, site), self._made, now=False)

    def offer(self, key, lanes) -> None:
        """Lanes arrive at the cluster's barrier .relaxed.  They hand over what they knew at a fence of the cluster, and of the mbarriers
        that they made before a fence.mbarrier_init that these are made, as units of their own."""
        known = self.sanitizer.flags.fenced_for_cluster(lanes)
        if known is not None:
            self.put(key, known)
        for lane in lanes[self.makers[lanes] & (self.offered[lanes] > 0)].tolist():
            self.tell(key, ("made", lane), self.offered[lane])

    def _made(self, lanes, records) -> np.ndarray:
        """For each lane: does it know, by what `offer` offered, of the initialisation that a record tells?"""
        clocks = self.clocks
        units = np.array([clocks.agents.get(("made", maker), -1) for maker in (records & LANE).tolist()])
        return (units >= 0) & (clocks.rows[clocks.row[lanes], units] >= records >> SHIFT)

    def tell(self, key, unit, time: int) -> np.ndarray:
        """Who acquires a barrier object shall know what an asynchronous unit (clocks.agent) did up to a time.  Returns that as a row."""
        agent = self.clocks.agent(unit)
        row = np.zeros(self.clocks.rows.shape[1], np.int64)
        row[agent] = time
        self.put(key, row)
        return row

    def release(self, key, lanes) -> None:
        self.put(key, self.clocks.snapshot(np.asarray(lanes)))

    def put(self, key, row) -> None:
        held = self.objects.get(key)
        if held is not None:
            if len(held) < len(row):
                held = np.pad(held, (0, len(row) - len(held)))
            row = np.maximum(held, row)
        self.objects[key] = row

    def open(self, key) -> None:
        """A phase of a barrier object is over.  What is released into it from now on, who waits for that phase need not have seen."""
        if key in self.objects:
            self.opened[key] = self.objects[key]

    def acquire(self, key, lanes) -> None:
        if key in self.opened:
            self.clocks.learn(np.asarray(lanes), self.opened[key])

    def _pieces(self, index, size: int, lanes, site: int):
        """The places of an asynchronous access, by space."""
        index, lanes = np.asarray(index, np.int64).reshape(-1), np.asarray(lanes).reshape(-1)
        lanes = np.broadcast_to(lanes, len(index)) if len(lanes) == 1 else lanes
        memory = self.sanitizer.memory
        for space, here in (("global", index < memory.param_start), ("shared", index >= memory.shared_start)):
            if here.any():
                yield Pieces(space, self.sanitizer.shadows[space], index[here], size, lanes[here], site)

    def read(self, index, size: int, lanes, site: int, copy) -> None:
        """wgmma (copy None) or TMA is to read: what it reads must be there, and stay until read_done, or until a copy is done that counts
        at an mbarrier."""
        for pieces in self._pieces(index, size, lanes, site):
            sanitizer = self.sanitizer
            sanitizer.check_pieces(pieces)
            shadow, races = sanitizer.shadows[pieces.space], sanitizer.races[pieces.space]
            if copy is None:
                races.load(pieces)
                shadow.records["reader"][pieces.cells] = FUTURE | pieces.lanes
                self.reading.append((pieces.cells, site))
            else:
                self.sources[copy] = access = Access(copy)
                races.source(pieces, access)
            if pieces.space == "shared":
                self._need_fence(pieces, shadow, "wgmma or TMA reads")

    def read_done(self, index, size: int, lanes, site: int, copy) -> None:
        """It has read, and lanes have waited for that."""
        if copy is not None:
            self._end(self.sources, copy, copy.lane)
            return
        for pieces in self._pieces(index, size, lanes, site):
            for name in ("reader", "other"):
                records = self.sanitizer.shadows[pieces.space].records[name]
                ours = records[pieces.cells] == FUTURE | pieces.lanes
                records[pieces.cells[ours]] = self.clocks.now << SHIFT | pieces.lanes[ours]

    def _end(self, under_way: dict, copy, who: int) -> None:
        """A copy has read (added), and who knows that also knows so."""
        access = under_way.pop(copy, None)  # None: told before, by a wait for reads
        if access:
            access.record = self.clocks.now << SHIFT | who

    def write(self, index, size: int, lanes, site: int, copy) -> None:
        """TMA is to write: the place must be free from now on, but for reductions of the same kind."""
        for pieces in self._pieces(index, size, lanes, site):
            shadow = self.sanitizer.shadows[pieces.space]
            if pieces.space == "shared" and self.sanitizer.chunk.image.instructions[site].mnemonic.startswith("cp."):  # not st.async
                self._need_fence(pieces, shadow, "TMA writes to")
            shadow.unset[pieces.cells] = False
            if copy.combine is not None:
                self.sums[copy] = access = Access(copy)
                self.sanitizer.races[pieces.space].sum(pieces, access)
                continue
            self.sanitizer.races[pieces.space].store(pieces, lambda at, winners: np.zeros(len(at), bool))
            shadow.records["writer"][pieces.cells] = FUTURE | pieces.lanes
            self.issued[pieces.space, int(pieces.cells[0])] = pieces.cells, site

    def done(self, index, size: int, key, site: int, copy) -> None:
        """It has landed, and completes on a barrier object, which says that it has read, too; key None: the lane has waited."""
        who = copy.lane
        if key is not None:
            who = self.clocks.agent(key)
            self.tell(key, key, self.clocks.now)
            self._end(self.sources, copy, who)
        self._end(self.sums, copy, who)
        if copy.combine is None:
            for pieces in self._pieces(index, size, np.zeros(1, np.int64), site):
                self.sanitizer.shadows[pieces.space].records["writer"][pieces.cells] = self.clocks.now << SHIFT | who
                self._forget(pieces)

    def _forget(self, pieces) -> None:
        """What began at one of these cells is no longer under way."""
        if len(self.issued) > len(pieces.cells):  # many small stores
            for cell in pieces.cells.tolist():
                self.issued.pop((pieces.space, cell), None)
            return
        keys = list(self.issued)
        for number in np.isin([first for _, first in keys], pieces.cells).nonzero()[0]:
            if keys[number][0] == pieces.space:
                del self.issued[keys[number]]

    def _need_fence(self, pieces, shadow, does: str) -> None:
        """Raise where plain writes would meet the async proxy without a proxy fence by their writer, or by who issues."""
        records = shadow.records["writer"][pieces.cells]
        plain = (records > 0) & (records < FUTURE) & (records & LANE < self.sanitizer.chunk.count) & (records >> SHIFT > self.clocks.start)
        if not plain.any():
            return
        time, writers = records[plain] >> SHIFT, records[plain] & LANE
        wrong = (self.fenced[writers] < time) & (self.fenced[pieces.lanes[plain]] < time)
        if wrong.any():
            at = int(plain.nonzero()[0][np.argmax(wrong)])
            sanitizer, time = self.sanitizer, int(records[at]) >> SHIFT
            where = sanitizer.name_cell("shared", shadow, int(pieces.cells[at]), 0)
            raise sanitizer.fault(int(pieces.lanes[at]), pieces.site, f"{does} {where}, written by plain stores at "
                                  f"{sanitizer.line_at(time)}, without fence.proxy.async behind them", MissingProxyFence)

    def site_of(self, cell: int, reading: bool) -> int:
        """Where the write (read) was issued that is under way to (of) a cell."""
        return next((site for cells, site in reversed(self.reading if reading else self.issued.values()) if (cells == cell).any()), -1)
