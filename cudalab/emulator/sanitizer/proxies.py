"""Barrier objects and the async proxy: named barriers that are passed and not waited at, mbarriers, cluster barriers; TMA and wgmma, which
read and write shared memory beside the threads.  PTX ISA, "Asynchronous operations", "Async proxy", "Parallel Synchronization and
Communication Instructions: mbarrier", "membar, fence: fence.proxy".
"""

import numpy as np

from cudalab.emulator.sanitizer.faults import MissingProxyFence
from cudalab.emulator.sanitizer.races import Races
from cudalab.emulator.sanitizer.shadow import FUTURE, LANE, SHIFT


class Pieces:
    """What an asynchronous unit touches, in the form of a touch.Touch: all pairs differ."""

    class pattern:
        winners = None

    def __init__(self, shadow, index, size: int, lanes, site: int):
        index = np.atleast_1d(np.asarray(index, np.int64))
        while size & (size - 1) or (size > 1 and np.bitwise_or.reduce(index) & (min(size, shadow.unit) - 1)):
            part = max(size & -size & 0xF, 1) if size & 0xF else 16
            index = (index[:, None] + np.arange(0, size, part)).reshape(-1)
            size = part
            if size == 1:
                break
        self.cells = shadow.cells(index, size)
        lanes = np.atleast_1d(np.asarray(lanes))
        self.lanes = np.repeat(lanes, len(self.cells) // len(lanes))
        self.writers = self.readers = self.lanes
        self.apart, self.site = None, site

    def every(self):
        return self.cells, self.lanes


class Proxies:
    """Of one chunk.  objects: barrier object -> the row of all that has been released into it."""

    def __init__(self, sanitizer):
        self.sanitizer, self.clocks, self.shadow = sanitizer, sanitizer.clocks, sanitizer.shared
        self.objects: dict = {}
        self.fenced = np.zeros(sanitizer.chunk.count, np.int64)  # time of each lane's last fence.proxy.async
        self.issued: list[tuple[np.ndarray, int]] = []  # (cells, site) of writes under way

    def fence(self, mnemonic: str, lanes) -> None:
        if "proxy.async" in mnemonic:
            self.fenced[slice(None) if lanes is None else lanes] = self.clocks.now

    def release(self, key, lanes) -> None:
        self._put(key, self.clocks.snapshot(np.asarray(lanes)))

    def _put(self, key, row) -> None:
        held = self.objects.get(key)
        if held is not None:
            if len(held) < len(row):
                held = np.pad(held, (0, len(row) - len(held)))
            row = np.maximum(held, row)
        self.objects[key] = row

    def acquire(self, key, lanes) -> None:
        if key in self.objects:
            self.clocks.learn(np.asarray(lanes), self.objects[key])

    def start_copy(self, touch) -> None:
        """A cp.async has passed the rules of a write; async_copy.py refuses accesses until it has landed."""

    def read(self, index, size: int, lanes, site: int) -> None:
        """wgmma or a TMA store reads shared memory."""
        pieces = Pieces(self.shadow, index, size, lanes, site)
        sanitizer = self.sanitizer
        sanitizer.races["shared"].load(pieces)
        sanitizer.check_pieces(pieces)
        self._need_fence(pieces, "read by wgmma or TMA")

    def write(self, index, size: int, lanes, site: int) -> None:
        """A TMA load is issued."""
        pieces = Pieces(self.shadow, index, size, lanes, site)
        races: Races = self.sanitizer.races["shared"]
        races.store(pieces, lambda at, winners: np.zeros(len(at), bool))
        self._need_fence(pieces, "overwritten by TMA", before=True)
        self.shadow.records["writer"][pieces.cells] = FUTURE
        self.shadow.unset[pieces.cells] = False
        self.issued.append((pieces.cells, site))

    def done(self, index, size: int, key, site: int) -> None:
        """It has landed, and completes on a barrier object."""
        pieces = Pieces(self.shadow, index, size, np.zeros(1, np.int64), site)
        agent, now = self.clocks.agent(key), self.clocks.now
        self.shadow.records["writer"][pieces.cells] = now << SHIFT | agent
        row = np.zeros(self.clocks.rows.shape[1], np.int64)
        row[agent] = now
        self._put(key, row)
        if pieces.cells.size:
            self.issued = [(cells, at) for cells, at in self.issued if not np.isin(cells[:1], pieces.cells).any()]

    def _need_fence(self, pieces, what: str, before: bool = False) -> None:
        """Raise where plain writes would meet the async proxy without a proxy fence by their writer, or by who issues."""
        if before:
            return  # store() has just put its own records there
        records = self.shadow.records["writer"][pieces.cells]
        plain = (records > 0) & (records < FUTURE) & (records & LANE < self.sanitizer.chunk.count) & (records >> SHIFT > self.clocks.start)
        if not plain.any():
            return
        time, writers = records[plain] >> SHIFT, records[plain] & LANE
        wrong = (self.fenced[writers] < time) & (self.fenced[pieces.lanes[plain]] < time)
        if wrong.any():
            at = int(plain.nonzero()[0][np.argmax(wrong)])
            sanitizer, time = self.sanitizer, int(records[at]) >> SHIFT
            where = sanitizer.name_cell("shared", self.shadow, int(pieces.cells[at]), 0)
            raise sanitizer.fault(int(pieces.lanes[at]), pieces.site, f"{where}, {what} here, was written by plain stores at "
                                  f"{sanitizer.line_at(time)} without fence.proxy.async behind them", MissingProxyFence)

    def site_of(self, cell: int) -> int:
        """Where the write was issued that is under way to a cell."""
        return next((site for cells, site in reversed(self.issued) if (cells == cell).any()), -1)
