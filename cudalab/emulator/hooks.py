"""What may watch a run: the base of counters and sanitizer.

An observer is given to Emulator(observers=…).  Without observers no call is compiled into segments and none is made: watching that is off
costs nothing.  Lanes are numbers within the chunk, None for all; a site is the number of an instruction in chunk.image.instructions.
"""


class Observer:
    """Does nothing; override what is of interest.  To stop the kernel raise chunk.fault(lane, site, what)."""

    def ready(self, memory, unset: set, inputs: set = frozenset()) -> None:
        """The memory of a plan is allocated; unset: names of the tensors that hold nothing yet (their bytes are poison), inputs: of those
        that no kernel may write."""

    def filled(self, memory, name: str) -> None:
        """A Fill has set a tensor."""

    def copied(self, memory, target: str, source: str) -> None:
        """A Copy has set a tensor from another of the same size."""

    def begin(self, chunk) -> None:
        """A chunk of blocks starts."""

    def end(self, chunk) -> None:
        """All its lanes have ended."""

    def exited(self, lanes, site: int) -> None:
        """Lanes (array) have ended at an instruction."""

    def segment(self, segment, lanes) -> None:
        """Lanes are about to run a segment: each of its instructions once."""

    def branch(self, segment, lanes, mask) -> None:
        """The segment ended in a branch that the lanes with mask take and others do not (all or none among the cases)."""

    def guarded(self, mask, count: int, site: int) -> None:
        """`count` lanes come to an instruction with a guard, other than a branch; those with mask (an array, or one for all) execute it."""

    def access(self, kind: str, place, offset: int, size: int, site: int) -> None:
        """Lanes access `size` bytes at place + offset (memory.Place: space, address, flat index, lanes); checks have passed, the access
        itself comes after.  kind: load, store, atomic, copy (the global side of an asynchronous copy is a load)."""

    def values(self, place, offset: int, values: tuple, site: int) -> None:
        """Just before access("store", …) of the same place: the values, one element a lane or a scalar, neighbouring ones in a tuple."""

    def local_copy(self, lanes, source: int | None, target: int, nbytes: int) -> None:
        """A call hands over bytes of local memory (lanes: an index for the rows of all lanes); source None: from the machine."""

    def landed(self, index, size: int, lanes, site: int) -> None:
        """cp.async copies that lanes waited for (wait at site) have been written, `size` bytes at each flat index."""

    def arrive(self, number: int, lanes, site: int, waits: bool) -> None:
        """Lanes arrive at barrier `number` of their blocks, to wait there or (bar.arrive) to go on.  Not told where all lanes of the chunk
        come at once: then only `barrier` is."""

    def barrier(self, number: int, blocks, going: list) -> None:
        """Barrier `number` opens in the blocks given; going: (lanes, where they go on, site, …) of those that waited."""

    def fence(self, mnemonic: str, lanes, site: int) -> None:
        """Lanes execute a memory fence."""

    def warp_barrier(self, warps, members, site: int) -> None:
        """Lanes (warp.Warps) execute bar.warp.sync with a member mask."""

    # -- asynchronous units (TMA, wgmma) and what orders them; key: anything hashable that names a barrier object, of all its phases

    def release(self, key, lanes, site: int) -> None:
        """Lanes (array) arrive at a barrier object (mbarrier, cluster barrier) with release semantics: who acquires it will know all that
        they know now."""

    def relaxed(self, key, lanes, site: int) -> None:
        """Lanes (array) arrive at a barrier object without release semantics, or change the bytes that an mbarrier counts."""

    def counted(self, index, lanes, site: int) -> None:
        """Copies that lanes start, one each, are to count at the mbarriers at flat indices."""

    def opened(self, key) -> None:
        """A phase of a barrier object is over: who acquires the object from now on will know what was released into it until now."""

    def acquire(self, key, lanes, site: int) -> None:
        """Lanes (array) have seen a phase of the barrier object end, with acquire semantics."""

    def async_read(self, index, size: int, lanes, site: int, copy=None) -> None:
        """A unit of the async proxy (wgmma operands; the source of a transfers.Copy) reads `size` bytes at each flat index for lanes (one
        each, or one for all), who issued it at site.  Told at issue."""

    def async_write(self, index, size: int, lanes, site: int, copy) -> None:
        """A transfers.Copy is to write `size` bytes at each flat index, for the lane that issued it, or (copy.combine) to add to them.
        Told at issue: the place must be free by then, but for reductions of the same kind."""

    def async_read_done(self, index, size: int, lanes, site: int, copy=None) -> None:
        """Lanes have waited, at site, until what async_read announced was read: the place may be written again.  Not told of copies that
        complete on a barrier object."""

    def registers(self, slots: tuple, lanes, site: int) -> None:
        """An instruction of the async proxy (wgmma) of these lanes (array) has taken registers: the slots of its results, behind which
        slots of operands.  Until registers_done nothing but wgmma may touch them; moves rename them."""

    def registers_done(self, lanes, sites: tuple, site: int) -> None:
        """Lanes have waited, at site, for the instructions at `sites`, which `registers` announced."""

    def async_done(self, index, size: int, key, site: int, copy) -> None:
        """What async_write announced has landed and completes on the barrier object `key`: who acquires it may read, and write the copy's
        source.  key None: the lane has waited for its bulk group."""
