"""What is remembered of every piece of memory: who last wrote it, who read it since, whether anybody has ever written it.

A record is one integer: time << 24 | MANY if other lanes of that lane's warp did the same | lane.  A cell covers 4 bytes until the first
smaller access to the space; then cells become as small as that access, so that all rules hold by the byte and float kernels pay for words.
"""

import numpy as np

SHIFT = 24
MANY = 1 << 23
LANE = MANY - 1
LOW = (1 << SHIFT) - 1
FUTURE = 1 << 62  # time of a write that is still to come: no lane knows it


class Shadow:
    """Cells over the bytes start..start+nbytes-1 of the flat memory.

    writer, atomic: the last plain write and the last atomic or otherwise strong access; reader, other: the last read, and the last one by
    another warp than that; unset: nobody has written it.  Arrays with one element a cell; records of 0: nobody.  A crowds.Crowd adds
    numbers of its own to the records.
    """

    def __init__(self, start: int, nbytes: int, traced: bool = True):
        self.start, self.nbytes, self.unit = start, nbytes, 4
        cells = -(-nbytes // 4)
        names = ("writer", "atomic", "reader", "other") if traced else ()
        self.records = {name: np.zeros(cells, np.int64) for name in names}
        self.unset = np.zeros(cells, bool)
        self.any_unset = False

    def __getattr__(self, name):
        try:
            return self.__dict__["records"][name]
        except KeyError:
            raise AttributeError(name) from None

    def refine(self, unit: int) -> None:
        """Make cells as small as `unit` bytes."""
        times = self.unit // unit
        self.records = {name: np.repeat(array, times) for name, array in self.records.items()}
        self.unset = np.repeat(self.unset, times)
        self.unit = unit

    def cells(self, index, size: int):
        """The cells of accesses of `size` bytes, a power of two, at an array of flat indices that are multiples of it."""
        if size < self.unit:
            self.refine(size)
        first = (index - self.start) // self.unit if self.unit > 1 else index - self.start
        number = size // self.unit
        return first if number == 1 else (first[:, None] + np.arange(number)).reshape(-1)

    def span(self, start: int, nbytes: int) -> slice:
        """The cells of an allocation, which starts with a cell and behind which lies a gap."""
        return slice((start - self.start) // self.unit, -(-(start - self.start + nbytes) // self.unit))

    def forget(self) -> None:
        """Nothing has been written."""
        self.unset[:] = True
        self.any_unset = True
