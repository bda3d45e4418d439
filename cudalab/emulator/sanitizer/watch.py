"""The observer: takes what the emulator tells to the rules, and names threads and lines for their messages."""

from bisect import bisect_right

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.errors import KernelFault
from cudalab.emulator.hooks import Observer
from cudalab.emulator.image import GLOBAL
from cudalab.emulator.sanitizer.clocks import Clocks
from cudalab.emulator.sanitizer.convergence import Convergence
from cudalab.emulator.sanitizer.crowds import Crowd
from cudalab.emulator.sanitizer.faults import ChangedInput, Uninitialised
from cudalab.emulator.sanitizer.flags import Flags
from cudalab.emulator.sanitizer.lifetimes import Lifetimes
from cudalab.emulator.sanitizer.proxies import Proxies
from cudalab.emulator.sanitizer.races import Races
from cudalab.emulator.sanitizer.registers import Registers
from cudalab.emulator.sanitizer.shadow import SHIFT, Shadow
from cudalab.emulator.sanitizer.touch import Pattern, Touch

STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}


class Sanitizer(Observer):
    """Raises a KernelFault for the first uninitialised read, race, or barrier that not all reach.  It watches one plan at a time."""

    def __init__(self):
        self.memory = None
        self.time = 1

    # -- the life of a plan, its launches and chunks

    def ready(self, memory, unset, inputs=frozenset()):
        self.memory = memory
        self.constant = [region.name in inputs for region in memory.regions]
        self.starts = [region.start for region in memory.regions]
        self.everywhere = Shadow(0, memory.param_start)
        for name in unset:
            region = memory.named[name]
            self.everywhere.unset[self.everywhere.span(region.start - GLOBAL, region.end - region.start)] = True
        self.everywhere.any_unset = bool(unset)
        self.scratch: dict[str, np.ndarray] = {}
        self.launched = None

    def filled(self, memory, name):
        self.everywhere.unset[self._span(name)] = False

    def copied(self, memory, target, source):
        self.everywhere.unset[self._span(target)] = self.everywhere.unset[self._span(source)]

    def _span(self, name: str) -> slice:
        region = self.memory.named[name]
        return self.everywhere.span(region.start - GLOBAL, region.end - region.start)

    def begin(self, chunk):
        memory = chunk.memory
        if memory is not self.memory:
            self.ready(memory, set())
        if chunk.first == 0:
            self.launch_start = self.time
            self.sites: list[int] = []
            self.chunks = []  # (time at which it began, number of its first block)
            self.released: set[int] = set()
            self.crowds = Crowd(self.everywhere, "source"), Crowd(self.everywhere, "sum")
        self.chunk = chunk
        self.clocks = Clocks(chunk, self.launch_start, self.time)
        self.chunks.append((self.time, chunk.first))
        self.flags = Flags(self.clocks, self.released)
        self.convergence = Convergence(self)
        self.shared = Shadow(memory.shared_start, chunk.blocks * chunk.shared_stride)
        self.local = Shadow(memory.local_start, chunk.count * chunk.local_stride, traced=False)
        self.shared.forget()
        self.local.forget()
        alone = chunk.launch.cluster is None or int(np.prod(chunk.launch.cluster)) == 1
        self.shadows = {"global": self.everywhere, "shared": self.shared, "local": self.local}
        self.races = {"global": Races(self, "global", self.everywhere, False, *self.crowds),
                      "shared": Races(self, "shared", self.shared, alone, Crowd(self.shared, "source"), Crowd(self.shared, "sum"))}
        self.proxies = Proxies(self)
        self.lifetimes = None if alone else Lifetimes(self)
        self.registers_taken = Registers(self)
        self.given = None
        self.patterns: dict = {}
        self.strong: dict[int, tuple] = {}  # instruction -> (is it strong?, release?, acquire?)

    def end(self, chunk):
        self.time = self.clocks.now + 1
        self.clocks.now = self.time
        self.sites += [-1] * (self.time - self.launch_start - len(self.sites))
        self.released |= {at for at, rows in self.flags.released.items() if 0 in rows}

    def segment(self, segment, lanes):
        self.patterns.clear()
        self.registers_taken.segment(segment, lanes)

    def tick(self, site: int) -> int:
        """The time of a new event at an instruction."""
        time = self.clocks.tick()
        self.sites.append(site)
        return time

    # -- accesses

    def values(self, place, offset, values, site):
        self.given = place, values

    def access(self, kind, place, offset, size, site):
        shadow = self.shadows.get(place.space)
        if shadow is None:
            return
        lanes = self.chunk.all_lanes if place.lanes is None else place.lanes
        touch = Touch(shadow, place, offset, size, site, lanes, self._pattern(place, lanes, shadow))
        given, self.given = self.given, None
        if kind != "load" and place.space == "global":
            self._refuse_input(place.low + offset, place.high + offset, lambda: np.asarray(place.address) + offset, lanes, site)
        if kind in ("load", "atomic"):
            self._check_set(touch, kind)
        else:
            shadow.unset[touch.cells] = False
        if place.space == "local":
            return
        self.tick(site)
        if self.lifetimes and place.space == "shared":
            self.lifetimes.access(touch)
        strong, release, acquire = self._strength(site)
        races = self.races[place.space]
        if kind == "atomic" or strong:
            races.atomic(touch, kind != "load")
            self.flags.access(touch.index, lanes, kind, release, acquire)
        elif kind == "load":
            races.load(touch)
        else:
            races.store(touch, self._comparison(touch, given))

    def _refuse_input(self, low: int, high: int, addresses, lanes, site: int) -> None:
        """Raise for a write into an input.  low, high: the lowest and the highest address; addresses(): of each of the lanes."""
        first, last = bisect_right(self.starts, low) - 1, bisect_right(self.starts, high) - 1
        if not any(self.constant[first:last + 1]):
            return
        every = np.broadcast_to(addresses(), len(lanes))
        wrong = np.array(self.constant)[np.searchsorted(self.starts, every, "right") - 1]
        if wrong.any():
            at = int(np.argmax(wrong))
            where = self.memory.name_address("global", int(every[at]))
            raise self.fault(int(lanes[at]), site, f"a write to the input at {where}; write to an output, or to scratch", ChangedInput)

    def _strength(self, site: int) -> tuple[bool, bool, bool]:
        if site not in self.strong:
            ins = self.chunk.image.instructions[site]
            parts = set(ins.parts) & STRONG if ins.parts[0] in ("ld", "st", "atom", "red") else set()
            self.strong[site] = bool(parts), bool(parts & {"release", "acq_rel"}), bool(parts & {"acquire", "acq_rel"})
        return self.strong[site]

    def _pattern(self, place, lanes, shadow) -> Pattern:
        held = self.patterns.get(id(place))
        if held is None:
            space = place.space
            if space not in self.scratch or len(self.scratch[space]) < shadow.nbytes:
                self.scratch[space] = np.empty(shadow.nbytes, np.int32)
            base = place.index if isinstance(place.index, int) else place.index - shadow.start
            held = self.patterns[id(place)] = Pattern(base, lanes, self.scratch[space]), place  # kept: its id stays its own
        return held[0]

    def _check_set(self, touch, kind: str) -> None:
        shadow = touch.shadow
        if not shadow.any_unset or not shadow.unset[touch.cells].any():
            if kind == "atomic":
                shadow.unset[touch.cells] = False
            return
        cells, lanes = touch.every()
        at = int(np.argmax(shadow.unset[cells]))
        where = self.name_cell(touch.place.space, shadow, int(cells[at]), int(lanes[at]))
        cure = dict(shared="write it, or wait for the copy that does, before this", local="give the variable a value first").get(
            touch.place.space, "write it in an earlier launch, or Fill it")
        does = "read" if kind == "load" else "atomic access"
        raise self.fault(int(lanes[at]), touch.site, f"uninitialised {does}: nobody has written {where}; {cure}", Uninitialised)

    def _comparison(self, touch, given):
        """same_value(positions, winners) for a store whose values are known."""
        if given is None or given[0] is not touch.place:
            return lambda at, winners: np.zeros(len(at), bool)
        count, unit = len(touch.lanes), touch.shadow.unit

        def same_value(at, winners):
            rows = np.stack([np.broadcast_to(np.asarray(v), count) for v in given[1]], axis=1)
            octets = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, unit)  # one row a pair
            if winners is None:
                first = touch.every()[0][at] * unit + touch.shadow.start
                return (octets[at] == self.memory.bytes[first[:, None] + np.arange(unit)]).all(axis=1)
            times = len(octets) // count
            return (octets[at] == octets[np.searchsorted(touch.lanes, winners) * times + at % times]).all(axis=1)
        return same_value

    def local_copy(self, lanes, source, target, nbytes):
        chunk, shadow = self.chunk, self.local
        if ((source or 0) | target | nbytes | chunk.local_stride) & (shadow.unit - 1):
            shadow.refine(1)
        table, unit = shadow.unset.reshape(chunk.count, -1), shadow.unit
        taken = False if source is None else table[lanes, source // unit:(source + nbytes) // unit]
        table[lanes, target // unit:(target + nbytes) // unit] = taken

    def landed(self, index, size, lanes, site):
        """The copy counts as written by who waits for it, when it does."""
        self.tick(site)
        cells = self.shared.cells(np.asarray(index), size)
        self.shared.records["writer"][cells] = self.clocks.now << SHIFT | np.repeat(lanes, len(cells) // len(lanes))

    # -- what orders

    def arrive(self, number, lanes, site, waits):
        self.convergence.arrive(number, lanes, site)
        if not waits:
            key = "barrier", number
            for block in np.unique(self.chunk.block_of[lanes]):
                self.proxies.release((*key, int(block)), lanes[self.chunk.block_of[lanes] == block])
            self.tick(site)

    def barrier(self, number, blocks, going):
        chunk, clocks = self.chunk, self.clocks
        self.convergence.open(number, blocks, going)
        lanes = going[0][0] if len(going) == 1 else np.concatenate([entry[0] for entry in going])
        if len(lanes) == chunk.living:
            clocks.block_barrier(None if len(lanes) == chunk.count else lanes, blocks)
        else:
            alive = chunk.alive.reshape(chunk.blocks, -1).sum(axis=1)
            came = np.bincount(chunk.block_of[lanes], minlength=chunk.blocks)
            for block in blocks:
                here = lanes[chunk.block_of[lanes] == block]
                if came[block] == alive[block]:
                    clocks.block_barrier(here, np.array([block]))
                elif len(here):
                    self.proxies.release(("barrier", number, int(block)), here)
                    self.proxies.open(("barrier", number, int(block)))
                    self.proxies.acquire(("barrier", number, int(block)), here)
                self.proxies.objects.pop(("barrier", number, int(block)), None)
        self.tick(going[0][2])

    def warp_barrier(self, warps, members, site):
        chunk, clocks = self.chunk, self.clocks
        lanes = chunk.all_lanes if warps.lanes is None else warps.lanes
        alive = chunk.alive.reshape(-1, WARP)
        if warps.whole and not members.ndim and members == 0xFFFFFFFF:
            clocks.warp_barrier(None if warps.lanes is None else lanes)
        else:
            masks = warps.spread(members)
            for row in range(warps.rows):
                number = row if warps.numbers is None else int(warps.numbers[row])
                for mask in np.unique(masks[row][warps.present[row]]):
                    here = warps.present[row] & (masks[row] == mask)
                    mates = number * WARP + here.nonzero()[0]
                    if len(mates) == alive[number].sum():
                        clocks.warp_barrier(mates)
                    elif len(mates) > 1:
                        clocks.learn(mates, clocks.snapshot(mates))
        self.tick(site)

    def fence(self, mnemonic, lanes, site):
        self.flags.fence(mnemonic, lanes)
        self.proxies.fence(mnemonic, lanes)
        self.tick(site)

    def release(self, key, lanes, site):
        self.tick(site)
        self.proxies.meet(key, lanes, site)
        if self.lifetimes and key[0] == "mbarrier":
            self.lifetimes.arrive(key, lanes)
        self.proxies.release(key, lanes)
        self.tick(site)

    def relaxed(self, key, lanes, site):
        self.tick(site)
        if key[0] == "cluster":
            self.proxies.offer(key, lanes)
        else:
            self.proxies.counted(np.full(len(lanes), key[1]), lanes, site)
            if self.lifetimes:
                self.lifetimes.count(key, lanes)
        self.tick(site)

    def counted(self, index, lanes, site):
        self.tick(site)
        self.proxies.counted(index, lanes, site)

    def opened(self, key):
        self.proxies.open(key)

    def acquire(self, key, lanes, site):
        self.tick(site)
        self.proxies.meet(key, lanes, site)
        self.proxies.acquire(key, lanes)

    def async_read(self, index, size, lanes, site, copy=None):
        self.tick(site)
        self.proxies.read(index, size, lanes, site, copy)

    def async_write(self, index, size, lanes, site, copy):
        self.tick(site)
        index = np.atleast_1d(index)
        if len(index) and index[0] < self.memory.param_start:
            low, high = int(index.min()) + GLOBAL, int(index.max()) + GLOBAL
            self._refuse_input(low, high, lambda: index + GLOBAL, np.broadcast_to(lanes, len(index)), site)
        self.proxies.write(index, size, lanes, site, copy)

    def async_done(self, index, size, key, site, copy):
        self.tick(site)
        self.proxies.done(index, size, key, site, copy)
        if self.lifetimes and key is not None:
            self.lifetimes.land(key, copy)

    def exited(self, lanes, site):
        if self.lifetimes:
            self.lifetimes.exited(lanes, site)

    def async_read_done(self, index, size, lanes, site, copy=None):
        self.tick(site)
        self.proxies.read_done(index, size, lanes, site, copy)

    def registers(self, slots, lanes, site):
        self.registers_taken.take(slots, lanes, site)

    def registers_done(self, lanes, sites, site):
        self.registers_taken.give(lanes, sites, site)

    # -- naming

    def fault(self, lane: int, site: int, what: str, kind: type[KernelFault]) -> KernelFault:
        return self.chunk.fault(min(lane, self.chunk.count - 1), site, what, kind)

    def line_at(self, time: int) -> str:
        """Where the event of a time happened."""
        number = time - self.launch_start - 1
        site = self.sites[number] if 0 <= number < len(self.sites) else -1
        return self.chunk.where(site) if site >= 0 else "an unknown place"

    def line_of_flight(self, cell: int, reading: bool) -> str:
        """Where the asynchronous write (read) was issued that is under way to (of) a cell."""
        site = self.proxies.site_of(cell, reading)
        return self.chunk.where(site) if site >= 0 else "an unknown place"

    def check_pieces(self, pieces) -> None:
        """Raise where an asynchronous unit reads what nobody has written."""
        shadow = self.shadows[pieces.space]
        unset = shadow.unset[pieces.cells]
        if unset.any():
            at = int(np.argmax(unset))
            where = self.name_cell(pieces.space, shadow, int(pieces.cells[at]), 0)
            raise self.fault(int(pieces.lanes[at]), pieces.site, f"uninitialised read by an asynchronous unit: nobody has written {where}",
                             Uninitialised)

    def who_at(self, time: int, lane: int) -> str:
        """Block and thread of a lane of the chunk that ran at that time."""
        first = [first for start, first in self.chunks if start < time][-1]
        return self.chunk.who(lane + (first - self.chunk.first) * self.chunk.width)

    def name_cell(self, space: str, shadow, cell: int, lane: int) -> str:
        """A cell as a person can find it."""
        at = shadow.start + cell * shadow.unit
        bytes_of = f"the {shadow.unit} bytes" if shadow.unit > 1 else "the byte"
        if space == "global":
            return f"{bytes_of} at {self.memory.name_address('global', at + GLOBAL)}"
        stride = self.chunk.shared_stride if space == "shared" else self.chunk.local_stride
        return f"{bytes_of} at {space} address {(at - shadow.start) % stride}"
