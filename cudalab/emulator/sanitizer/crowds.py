"""Where several asynchronous accesses may go on at one place together: copies read what others read, reductions add to what others of
their kind add to.  Who touches the place after them must know of the end of each, so a cell remembers all of them.
"""

import numpy as np

from cudalab.emulator.sanitizer.shadow import FUTURE


class Access:
    """Of one copy.  record: as in a shadow; kind: of a reduction; counted: an mbarrier tells its end, not the bulk group of its lane."""

    __slots__ = ("record", "site", "kind", "counted")

    def __init__(self, copy):
        self.record, self.site, self.kind, self.counted = FUTURE | copy.lane, copy.site, copy.combine, copy.barrier is not None


class Crowd:
    """Of a shadow, whose records of that name are numbers of nodes: each an access and the number of the node before it.  0: no access."""

    def __init__(self, shadow, name: str):
        self.shadow, self.name = shadow, name
        self.nodes: list[tuple] = [()]
        shadow.records[name] = np.zeros(len(shadow.unset), np.int32)

    def join(self, cells, access: Access) -> None:
        numbers = self.shadow.records[self.name]
        before = numbers[cells]
        for number in np.unique(before).tolist():
            numbers[cells[before == number]] = len(self.nodes)
            self.nodes.append((access, number))

    def leave(self, cells) -> None:
        """Who touches these cells now knows of all that there was."""
        if len(self.nodes) > 1:
            self.shadow.records[self.name][cells] = 0

    def at(self, cells) -> np.ndarray:
        """At which of the cells is there anything?"""
        return self.shadow.records[self.name][cells] > 0

    def unknown(self, touch, clocks, kind=None):
        """(position of a (lane, cell) pair, an access there of whose end the lane does not know), or None.  kind: of accesses that may go
        on beside this one."""
        if len(self.nodes) == 1 or not self.at(touch.cells).any():
            return None
        cells, lanes = touch.every()
        newest = self.shadow.records[self.name][cells]
        for number in np.unique(newest).tolist():
            here = (newest == number).nonzero()[0]
            while number:
                access, number = self.nodes[number]
                if kind is None or access.kind is not kind:
                    known = clocks.ordered(lanes[here], np.full(len(here), access.record))
                    if not known.all():
                        return int(here[np.argmin(known)]), access
        return None
