"""What may watch a run: the base of counters and sanitizer.

An observer is given to Emulator(observers=…).  Without observers no call is compiled into segments and none is made: watching that is off
costs nothing.  Lanes are numbers within the chunk, None for all; a site is the number of an instruction in chunk.image.instructions.
"""


class Observer:
    """Does nothing; override what is of interest.  To stop the kernel raise chunk.fault(lane, site, what)."""

    def begin(self, chunk) -> None:
        """A chunk of blocks starts."""

    def end(self, chunk) -> None:
        """All its lanes have ended."""

    def segment(self, segment, lanes) -> None:
        """Lanes are about to run a segment: each of its instructions once."""

    def branch(self, segment, lanes, mask) -> None:
        """The segment ended in a branch that the lanes with mask take and others do not (all or none among the cases)."""

    def access(self, kind: str, place, offset: int, size: int, site: int) -> None:
        """Lanes access `size` bytes at place + offset (memory.Place: space, address, flat index, lanes); checks have passed, the access
        itself comes after.  kind: load, store, atomic, copy (the global side of an asynchronous copy is a load)."""

    def barrier(self, number: int, blocks, going: list) -> None:
        """Barrier `number` opens in the blocks given; going: (lanes, where they go on, site, …) of those that waited."""

    def fence(self, mnemonic: str, lanes, site: int) -> None:
        """Lanes execute a memory fence."""

    def warp_barrier(self, warps, members, site: int) -> None:
        """Lanes (warp.Warps) execute bar.warp.sync with a member mask."""
