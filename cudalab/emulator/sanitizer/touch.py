"""One instruction's access as cells: which lanes meet where.  Most shared reads are of a few words by many lanes; the rules look at each
word once."""

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.sanitizer.shadow import MANY


class Pattern:
    """How lanes meet at places (one for each, or an int for all); the same for every offset.

    winners: positions of one lane for each address, None if all differ.  many: has another lane of its warp the same address?
    apart: positions of one lane each of a further warp, with apart_many.
    """

    def __init__(self, places, lanes, scratch):
        self.winners = self.many = self.apart = self.apart_many = None
        count = len(lanes)
        if isinstance(places, int):
            if count > 1:
                warp = lanes // WARP
                self.winners = np.zeros(1, np.intp)
                self.many = np.array([warp[1] == warp[0]])
                if warp[-1] != warp[0]:
                    self.apart = np.array([count - 1])
                    self.apart_many = np.array([warp[-2] == warp[-1]])
            return
        numbers = np.arange(count, dtype=np.int32)
        scratch[places] = numbers
        winner = scratch[places]
        lost = (winner != numbers).nonzero()[0]
        if not len(lost):
            return
        self.winners = (winner == numbers).nonzero()[0]
        same = lanes[lost] // WARP == lanes[winner[lost]] // WARP
        many = np.zeros(count, bool)
        many[winner[lost[same]]] = True
        self.many = many[self.winners]
        apart = lost[~same]
        if len(apart):
            scratch[places[apart]] = numbers[apart]
            chosen = scratch[places[apart]]
            mates = (chosen != numbers[apart]) & (lanes[chosen] // WARP == lanes[apart] // WARP)
            many[:] = False
            many[chosen[mates]] = True
            self.apart = np.unique(chosen)
            self.apart_many = many[self.apart]


class Touch:
    """cells: each cell once.  writers, readers: the lane part of its record, without and with MANY.  apart, apart_readers: the same for
    readers of a further warp.  every(): all pairs (cell, lane)."""

    def __init__(self, shadow, place, offset: int, size: int, site: int, lanes, pattern: Pattern):
        self.shadow, self.place, self.size, self.site, self.lanes, self.pattern = shadow, place, size, site, lanes, pattern
        index = np.atleast_1d(np.asarray(place.index)) + offset
        self.index = index
        winners = pattern.winners
        one = index if winners is None else index[winners]
        who = lanes if winners is None else lanes[winners]
        self.cells = shadow.cells(one, size)
        times = len(self.cells) // len(one)
        self.writers = who if times == 1 else np.repeat(who, times)
        self.readers = self.writers
        self.apart = self.apart_readers = None
        if pattern.many is not None:
            self.readers = self.writers | np.repeat(np.where(pattern.many, MANY, 0), times)
        if pattern.apart is not None:
            at = np.zeros(len(pattern.apart), np.intp) if len(index) == 1 else pattern.apart
            self.apart = shadow.cells(index[at], size)
            self.apart_readers = np.repeat(lanes[pattern.apart] | np.where(pattern.apart_many, MANY, 0), times)
        self._every = None

    def every(self):
        """(cells, lanes) of all pairs; the cells of a lane lie together."""
        if self._every is None:
            index = self.index if len(self.index) == len(self.lanes) else np.repeat(self.index, len(self.lanes))
            cells = self.shadow.cells(index, self.size)
            self._every = cells, np.repeat(self.lanes, len(cells) // len(self.lanes))
        return self._every
