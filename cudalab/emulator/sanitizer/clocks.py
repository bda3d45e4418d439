"""Who knows what of whom: the order of events that barriers, fences and flags make between the lanes of a chunk.

These are vector clocks (L. Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", CACM 21 (1978); C. Flanagan and
S. Freund, "FastTrack", PLDI 2009), held in three layers, because almost all synchronisation is of whole blocks and warps.  The emulator
runs one thing after another, so an entry is a time: "this lane knows all that that lane did up to then".

- base: of its own block (a barrier of all its threads sets it);
- warp_base: of its own warp (__syncwarp);
- a row: of every lane of the chunk and every asynchronous unit.  Rows are shared by lanes that know the same and never changed; row 0
  knows nothing.  Named barriers, mbarriers, partial warp barriers, flags make them.
"""

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.sanitizer.shadow import FUTURE, LANE, LOW, MANY, SHIFT

ROWS = 64  # to begin with


class Clocks:
    """Of one chunk.  launch_start, start: the times at which the launch and this chunk began."""

    def __init__(self, chunk, launch_start: int, start: int):
        self.chunk, self.launch_start, self.start, self.now = chunk, launch_start, start, start
        count = chunk.count
        self.past = count  # the column that says: knows what blocks of earlier chunks did
        self.columns = count + 1
        self.base = np.full(count, start, np.int64)
        self.floor = start  # the smallest base
        self.warp_base = np.full(count, start, np.int64)
        self.row = np.zeros(count, np.intp)
        self.rows = np.zeros((1, self.columns), np.int64)
        self.serials = np.zeros(1, np.int64)  # of each row: how many rows there had been before it
        self.made = 0
        self.used = 1
        self.pinned: list[np.ndarray] = []  # further arrays of row numbers that must stay valid
        self.agents: dict = {}

    def agent(self, key) -> int:
        """The lane number of the asynchronous unit that completes on a barrier object."""
        if key not in self.agents:
            self.agents[key] = self.columns
            self.columns += 1
            if self.columns > self.rows.shape[1]:
                self.rows = np.pad(self.rows, ((0, 0), (0, 64)))
        return self.agents[key]

    def tick(self) -> int:
        """The time of a new event."""
        self.now += 1
        return self.now

    def identity(self, lane: int) -> int:
        """A number for the row that a lane has, which no other row ever had."""
        return int(self.serials[self.row[lane]])

    # -- asking

    def ordered(self, lanes: np.ndarray, records: np.ndarray) -> np.ndarray:
        """For each lane: did what the record tells happen before what the lane does now?  Records of this launch."""
        time, other = records >> SHIFT, records & LANE
        before = (records < FUTURE) & ((time <= self.launch_start) | (other == lanes) & (records & MANY == 0) & (time > self.start))
        left = (~before).nonzero()[0]
        if not len(left):
            return before
        time, other, mine = time[left], other[left], lanes[left]
        block_of, count = self.chunk.block_of, self.chunk.count
        here = time > self.start
        lane = here & (other < count)
        theirs = np.where(lane, other, 0)
        known = lane & (block_of[theirs] == block_of[mine]) & (time <= self.base[mine])
        known |= lane & (theirs // WARP == mine // WARP) & (time <= self.warp_base[mine])
        if self.used > 1:
            rows = self.row[mine]
            known |= here & (time <= self.rows[rows, np.where(here, other, 0)])
            known |= ~here & (self.rows[rows, self.past] > 0)
        before[left] = known & (records[left] < FUTURE)
        return before

    # -- learning

    def block_barrier(self, lanes: np.ndarray | None, blocks: np.ndarray) -> None:
        """All living lanes of blocks have met (lanes None: all lanes of the chunk)."""
        if lanes is None:
            self.base[:] = self.now
            self.floor = self.now
        else:
            self.base[lanes] = self.now
            self.floor = int(self.base.min())
        if self.used == 1 or not (self.row if lanes is None else self.row[lanes]).any():
            return
        lanes = self.chunk.all_lanes if lanes is None else lanes
        for block in blocks:
            here = lanes[self.chunk.block_of[lanes] == block]
            numbers = np.unique(self.row[here])
            if len(numbers) > 1:
                self.row[here] = self._keep(self.rows[numbers].max(axis=0))

    def warp_barrier(self, lanes: np.ndarray | None) -> None:
        """All living lanes of the warps of these lanes have met."""
        lanes = self.chunk.all_lanes if lanes is None else lanes
        self.warp_base[lanes] = self.now
        if self.used > 1 and self.row[lanes].any():
            for warp in np.unique(lanes // WARP):
                here = lanes[lanes // WARP == warp]
                numbers = np.unique(self.row[here])
                if len(numbers) > 1:
                    self.row[here] = self._keep(self.rows[numbers].max(axis=0))

    def snapshot(self, lanes: np.ndarray) -> np.ndarray:
        """All that these lanes know together, themselves included, as a row."""
        return self.combine(lanes, self.row[lanes], self.base[lanes], self.warp_base[lanes], self.now)

    def combine(self, lanes, rows, base, warp_base, own) -> np.ndarray:
        """A row of what lanes know whose layers are given."""
        chunk = self.chunk
        row = self.rows[np.unique(rows)].max(axis=0)
        by_block = np.zeros(chunk.blocks, np.int64)
        np.maximum.at(by_block, chunk.block_of[lanes], base)
        by_warp = np.repeat(by_block, chunk.width // WARP)
        np.maximum.at(by_warp, lanes // WARP, warp_base)
        table = row[:chunk.count].reshape(-1, WARP)
        np.maximum(table, np.where(by_warp > self.start, by_warp, 0)[:, None], out=table)
        row[lanes] = np.maximum(row[lanes], own)
        return row

    def learn(self, lanes: np.ndarray, row: np.ndarray) -> None:
        """Lanes come to know what a row tells."""
        if len(row) < self.rows.shape[1]:
            row = np.pad(row, (0, self.rows.shape[1] - len(row)))
        numbers = self.row[lanes]
        kinds = np.unique(numbers)
        for number in kinds:
            here = lanes if len(kinds) == 1 else lanes[numbers == number]
            held = self.rows[self.row[here[0]]]
            if (held < row).any():
                self.row[here] = self._keep(np.maximum(held, row))

    def _keep(self, row: np.ndarray) -> int:
        if self.used == len(self.rows):
            self._compact()
        self.made += 1
        self.rows[self.used], self.serials[self.used] = row, self.made
        self.used += 1
        return self.used - 1

    def _compact(self) -> None:
        """Drop the rows that no lane has; make room."""
        holders = [self.row, *self.pinned]
        live = np.unique(np.concatenate([np.zeros(1, np.intp), *holders]))
        rows = np.zeros((max(ROWS, 2 * len(live)), self.rows.shape[1]), np.int64)
        rows[:len(live)] = self.rows[live]
        serials = np.zeros(len(rows), np.int64)
        serials[:len(live)] = self.serials[live]
        for holder in holders:
            holder[:] = np.searchsorted(live, holder)
        self.rows, self.serials, self.used = rows, serials, len(live)


def record(time: int, lanes):
    """The record of an access at a time."""
    return time << SHIFT | lanes


def last_of(time) -> int:
    """The largest record of a time."""
    return time << SHIFT | LOW
