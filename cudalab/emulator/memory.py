"""One flat memory, every access checked.  PTX ISA, "State Spaces", "Generic Addressing", "Addresses as Operands".

All state spaces lie in one array of bytes, so that loads, stores, atomics, copies and matrix loads need no code of their own for each:

    module variables, tensors (gaps between them) | kernel parameters | shared memory, block by block | local memory, lane by lane

A `Place` is where a register's addresses point: computed once for a register, used by all instructions that add an offset to it.
Addresses within a space start at 0; generic addresses of shared, local and parameter memory lie in windows of their own.
"""

from dataclasses import dataclass

import numpy as np

from cudalab.emulator.image import GAP, GLOBAL

LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW = 0x7D00_0000_0000, 0x7E00_0000_0000, 0x7F00_0000_0000
WINDOWS = dict(shared=SHARED_WINDOW, local=LOCAL_WINDOW, param=PARAM_WINDOW)
RANK_SHIFT = 24  # addresses of shared memory carry the number of the block in its cluster above this bit
BLOCK_ALIGN = 1024  # of a block's shared memory: swizzled tiles of 128 bytes by 8 rows must start there
ENDED = 1 << 50  # added to an address in the shared memory of a block that is no more: out of bounds
UNSET = 0xFF  # every byte that nothing has been written to: NaN in floating point
COPIED_WHOLE = {8: np.dtype("u8"), 16: np.dtype("c16")}  # types by which NumPy moves that many bytes at once


@dataclass(frozen=True)
class Region:
    """An allocation: generic addresses start..end-1."""

    name: str
    start: int
    end: int


class Place:
    """Where the addresses of some lanes point.

    address: within the space, an array with one element a lane or an int where all are the same; index: in the flat array, likewise.
    low, high: smallest and largest address; bits: all of them or-ed.  lanes: which lanes of the chunk, None for all.
    parts: for generic addresses into several spaces, (positions, Place) of each; else empty.
    """

    __slots__ = ("space", "address", "index", "low", "high", "bits", "lanes", "parts", "_scaled")

    def __init__(self, space, address, index, lanes, parts=()):
        self.space, self.address, self.index, self.lanes, self.parts = space, address, index, lanes, parts
        if isinstance(address, int):
            self.low = self.high = self.bits = address
        else:
            self.low, self.high = int(address.min()), int(address.max())
            self.bits = int(np.bitwise_or.reduce(address))
        self._scaled = {}

    def scaled(self, shift: int):
        """index >> shift, computed once."""
        found = self._scaled.get(shift)
        if found is None:
            found = self._scaled[shift] = self.index >> shift
        return found

    def only(self, chosen: np.ndarray, count: int) -> "Place":
        """The place of those lanes among `count` whose positions are given."""
        lanes = chosen if self.lanes is None else self.lanes[chosen]
        address = self.address if isinstance(self.address, int) else self.address[chosen]
        index = self.index if isinstance(self.index, int) else self.index[chosen]
        parts = ()
        if self.parts:
            wanted = np.zeros(count, bool)
            wanted[chosen] = True
            rank = np.cumsum(wanted) - 1
            kept = [(positions[wanted[positions]], wanted[positions].nonzero()[0], part) for positions, part in self.parts]
            parts = tuple((rank[p], part.only(inner, len(wanted))) for p, inner, part in kept if len(p))
        return Place(self.space, address, index, lanes, parts)


class Memory:
    """The flat array and its checks, for one plan.

    layout: the module's variables.  tensors: (name, bytes) to allocate.  param, shared, local: bytes needed at most by one chunk.
    buffer: that of a memory which is no longer used; taken again if it is large enough.
    """

    def __init__(self, layout, tensors: list[tuple[str, int]], param: int, shared: int, local: int,
                 buffer: np.ndarray | None = None):
        regions = [Region(v.name, GLOBAL + o, GLOBAL + o + v.nbytes) for v, o in layout.offsets.items()]
        end = -(-layout.end // GAP) * GAP
        for name, nbytes in tensors:
            regions.append(Region(name, GLOBAL + end, GLOBAL + end + nbytes))
            end += -(-nbytes // GAP) * GAP + GAP
        self.regions = sorted(regions, key=lambda r: r.start)
        self.named = {r.name: r for r in regions}
        self.starts = np.array([r.start for r in self.regions], np.int64)
        self.ends = np.array([r.end for r in self.regions], np.int64)
        self.param_start = -(-end // BLOCK_ALIGN) * BLOCK_ALIGN
        self.shared_start = -(-(self.param_start + param) // BLOCK_ALIGN) * BLOCK_ALIGN
        self.local_start = -(-(self.shared_start + shared) // BLOCK_ALIGN) * BLOCK_ALIGN
        size = self.local_start + local + BLOCK_ALIGN
        raw = np.empty(size + 64, np.uint8) if buffer is None or len(buffer) < size + 64 else buffer
        start = -raw.ctypes.data % 64
        self.buffer, self.bytes = raw, raw[start:start + size // 64 * 64]
        for offset, data in layout.initial():
            self.bytes[offset:offset + len(data)] = np.frombuffer(data, np.uint8)
        self._views = {}
        self._recent = (0, 0)
        self.limits = dict(param=param, shared=0, local=0)  # bytes of each space that the running kernel has
        self.changes = 0  # how often something was written: a loop that sees no change will see none in its next turn
        self.chunk = None
        self.observers = ()
        self.flights = None  # copies on their way into shared memory: see async_copy.py

    def view(self, dtype: np.dtype, elements: int = 1) -> np.ndarray:
        """The whole memory as elements of a type, or as rows of several."""
        key = (dtype, elements)
        if key not in self._views:
            flat = self.bytes[:len(self.bytes) // 64 * 64].view(dtype)
            self._views[key] = flat if elements == 1 else flat.reshape(-1, elements)
        return self._views[key]

    def array(self, name: str) -> np.ndarray:
        """The bytes of a tensor or module variable."""
        region = self.named[name]
        return self.bytes[region.start - GLOBAL:region.end - GLOBAL]

    # -- places

    def place_global(self, base, lanes) -> Place:
        address = signed(base)
        return Place("global", address, address - GLOBAL, lanes)

    place_const = place_global

    def place_param(self, base, lanes) -> Place:
        address = signed(base)
        return Place("param", address, address + self.param_start, lanes)

    def place_shared(self, base, lanes) -> Place:
        address = signed(base)
        chunk = self.chunk
        if chunk.cluster_size > 1:  # the own block's number goes; another's leaves an address that is out of bounds
            rank = chunk.special("%cluster_ctarank", lanes).astype(np.int64) << RANK_SHIFT
            address = address - rank
            address = address if np.ndim(address) else int(address)
        return Place("shared", address, chunk.shared_base(lanes) + address, lanes)

    def place_cluster(self, base, lanes) -> Place:
        """Shared memory of any block of the cluster: PTX ISA, "Shared State Space"."""
        chunk = self.chunk
        if chunk.cluster_size == 1:
            return self.place_shared(base, lanes)
        address = np.asarray(signed(base))
        rank = address >> RANK_SHIFT
        known = np.clip(rank, 0, chunk.cluster_size - 1)  # a block that the cluster does not have leaves an address out of bounds
        offset = address - (known << RANK_SHIFT)
        index = chunk.cluster_base(lanes) + known * chunk.shared_stride + offset
        offset = offset + chunk.ended(index) * ENDED
        if np.ndim(index):
            return Place("shared", np.array(np.broadcast_to(offset, index.shape)), index, lanes)
        return Place("shared", int(offset), int(index), lanes)

    def place_local(self, base, lanes) -> Place:
        address = signed(base)
        return Place("local", address, self.chunk.local_base(lanes) + address, lanes)

    def place_generic(self, base, lanes) -> Place:
        address = signed(base)
        low, high = (address, address) if isinstance(address, int) else (int(address.min()), int(address.max()))
        if high < LOCAL_WINDOW:
            return Place("global", address, address - GLOBAL, lanes)
        if low >> 40 == high >> 40:
            return self._windowed(low >> 40, address, lanes)
        windows = np.maximum(address >> 40, (LOCAL_WINDOW >> 40) - 1)  # all that is below is global
        parts = []
        for window in np.unique(windows):
            positions = (windows == window).nonzero()[0]
            chosen = positions if lanes is None else lanes[positions]
            parts.append((positions, self._windowed(int(window), address[positions], chosen)))
        return Place("generic", address, address, lanes, tuple(parts))

    def _windowed(self, window: int, address, lanes) -> Place:
        for space, start in WINDOWS.items():
            if window == start >> 40:
                return getattr(self, f"place_{'cluster' if space == 'shared' else space}")(address - start, lanes)
        return Place("global", address, address - GLOBAL, lanes)

    # -- access

    def check(self, place: Place, offset: int, size: int, what: str, site: int) -> None:
        """Raise KernelFault unless `size` bytes at every address plus offset are there and aligned."""
        low, high = place.low + offset, place.high + offset + size
        if not (place.bits | offset) & (size - 1):
            if place.space == "global":
                start, end = self._recent
                if start <= low and high <= end:
                    return
                number = int(np.searchsorted(self.starts, low, "right")) - 1
                if number >= 0 and high <= self.regions[number].end:
                    self._recent = self.regions[number].start, self.regions[number].end
                    return
            elif low >= 0 and high <= self.limits[place.space]:
                return
        self._diagnose(place, offset, size, what, site)

    def _diagnose(self, place: Place, offset: int, size: int, what: str, site: int) -> None:
        """The exact check, lane by lane, that also says which lane is wrong and how."""
        address = np.atleast_1d(np.asarray(place.address)) + offset
        if place.space == "global":
            number = np.searchsorted(self.starts, address, "right") - 1
            outside = (number < 0) | (address + size > self.ends[number])
        else:
            outside = (address < 0) | (address + size > self.limits[place.space])
        wrong = outside | (address & size - 1 != 0)
        if not wrong.any():
            return
        at = int(np.argmax(wrong))
        lane = at if isinstance(place.address, int) or place.lanes is None else int(place.lanes[at])
        lane = lane if place.lanes is None or not isinstance(place.address, int) else int(place.lanes[0])
        bad = int(address[at])
        if outside[at]:
            raise self.chunk.fault(lane, site, f"{what} of {size} bytes at {self.name_address(place.space, bad)}, out of bounds")
        raise self.chunk.fault(lane, site, f"{what} of {size} bytes at {self.name_address(place.space, bad)}, not aligned to {size}")

    def name_address(self, space: str, address: int) -> str:
        """An address as a person can use it: which allocation, and how far into it, past its end or before its start."""
        if address >= ENDED:
            return f"shared address {address % ENDED} of a block of the cluster that has ended"
        if space != "global":
            return f"{space} address {address} (there are {self.limits[space]} bytes)"
        number = int(np.searchsorted(self.starts, address, "right")) - 1
        around = self.regions[max(number, 0):number + 2]
        region = min(around, key=lambda r: max(r.start - address, address - r.end), default=None)
        if region is None or not region.start - GAP * 4096 <= address <= region.end + GAP * 4096:
            return f"global address {address:#x}, which belongs to nothing"
        past = address - region.end
        where = f"{region.start - address} bytes before" if address < region.start else f"{past} bytes behind the end of" if past >= 0 \
            else f"byte {address - region.start} of"
        return f"{where} {region.name} ({region.end - region.start} bytes)"

    def load(self, place: Place, offset: int, dtype: np.dtype, site: int, mask=None):
        """One element a lane, or a scalar where all lanes read the same."""
        if mask is not None or place.parts:
            return self._load_parts(place, offset, dtype, 1, site, mask)[0]
        size = dtype.itemsize
        self.check(place, offset, size, "read", site)
        if self.observers or self.flights:
            self.observe("load", place, offset, size, site)
        return self._take(place, offset, self.view(dtype), size)

    def load_vector(self, place: Place, offset: int, dtype: np.dtype, elements: int, site: int, mask=None) -> list:
        """`elements` neighbouring elements a lane, as that many arrays (or scalars)."""
        if mask is not None or place.parts:
            return self._load_parts(place, offset, dtype, elements, site, mask)
        size = dtype.itemsize * elements
        self.check(place, offset, size, "read", site)
        if self.observers or self.flights:
            self.observe("load", place, offset, size, site)
        rows = self._take(place, offset, self.view(dtype, elements), size)
        return list(rows) if rows.ndim == 1 else [rows[:, i].copy() for i in range(elements)]

    def _take(self, place: Place, offset: int, view: np.ndarray, size: int):
        shift = size.bit_length() - 1
        if isinstance(place.index, int):
            return view[(place.index + offset) >> shift]
        if offset >= 0 and not offset & (size - 1):
            return view[offset >> shift:].take(place.scaled(shift), axis=0, mode="wrap")
        return view.take((place.index + offset) >> shift, axis=0, mode="wrap")

    def _load_parts(self, place: Place, offset: int, dtype, elements: int, site: int, mask) -> list:
        """Under a mask, or from several spaces; lanes that read nothing get zeros."""
        if mask is not None and not mask.ndim:
            if not mask:
                return [dtype.type(0)] * elements
            return self.load_vector(place, offset, dtype, elements, site) if elements > 1 else [self.load(place, offset, dtype, site)]
        if mask is not None:
            chosen = mask.nonzero()[0]
            result = [np.zeros(len(mask), dtype) for _ in range(elements)]
            pieces = [(chosen, place.only(chosen, len(mask)))] if len(chosen) else []
        else:
            result = [np.zeros(len(place.address), dtype) for _ in range(elements)]
            pieces = place.parts
        for positions, piece in pieces:
            got = self.load_vector(piece, offset, dtype, elements, site) if elements > 1 else [self.load(piece, offset, dtype, site)]
            for into, values in zip(result, got):
                into[positions] = values
        return result

    def store(self, place: Place, offset: int, dtype: np.dtype, values: tuple, site: int, mask=None) -> None:
        """Write one element a lane, or several neighbouring ones; where lanes meet at an address the last one stays."""
        if mask is not None:
            if mask.ndim:
                chosen = mask.nonzero()[0]
                if len(chosen):
                    self.store(place.only(chosen, len(mask)), offset, dtype, tuple(v[chosen] if v.ndim else v for v in values), site)
                return
            if not mask:
                return
        if place.parts:
            for positions, part in place.parts:
                self.store(part, offset, dtype, tuple(v[positions] if v.ndim else v for v in values), site)
            return
        size = dtype.itemsize * len(values)
        self.check(place, offset, size, "write", site)
        self.changes += 1
        if self.observers or self.flights:
            for observer in self.observers:
                observer.values(place, offset, values, site)
            self.observe("store", place, offset, size, site)
        index = place.index
        if isinstance(index, int):
            values = tuple(v[-1] if v.ndim else v for v in values)
            row = self.view(dtype, len(values))
            row[(index + offset) // size] = values[0] if len(values) == 1 else values
            return
        index = index + offset if offset else index
        if len(values) == 1:
            self.view(dtype)[index >> size.bit_length() - 1] = values[0]
            return
        rows = np.empty((len(index), len(values)), dtype)
        for column, value in enumerate(values):
            rows[:, column] = value
        self.put_rows(index, rows, size)

    def rows(self, index: np.ndarray, size: int) -> np.ndarray:
        """Rows of `size` bytes at flat byte indices that are multiples of it, as 32-bit words; without checks."""
        whole = COPIED_WHOLE.get(size)
        word = np.dtype(np.uint32)
        if whole is None:
            return self.view(word, size // 4).take(index // size, axis=0).reshape(len(index), -1)
        return self.view(whole).take(index >> size.bit_length() - 1).view(word).reshape(len(index), -1)

    def put_rows(self, index: np.ndarray, rows: np.ndarray, size: int) -> None:
        """Write rows of `size` bytes at flat byte indices that are multiples of it."""
        self.changes += 1
        whole = COPIED_WHOLE.get(size)
        if whole is None:
            view = self.view(rows.dtype, rows.shape[1])
            view[index >> size.bit_length() - 1] = rows if view.ndim == 2 else rows[:, 0]
        else:
            self.view(whole)[index >> size.bit_length() - 1] = rows.view(whole)[:, 0]

    def observe(self, kind: str, place: Place, offset: int, size: int, site: int) -> None:
        """Tell observers of an access that has passed its checks; refuse one that meets a copy still on its way."""
        if self.flights and place.space == "shared":
            self.flights.refuse(kind, place, offset, size, site)
        for observer in self.observers:
            observer.access(kind, place, offset, size, site)

    def string(self, address: int, limit: int = 1 << 16) -> bytes:
        """The zero-terminated string at a generic global address."""
        start = address - GLOBAL
        found = self.bytes[start:start + limit].tobytes() if 0 <= start < self.param_start else b""
        return found.split(b"\0", 1)[0]


def signed(base):
    """Addresses of a register as int64, or one int."""
    if isinstance(base, int) or not base.ndim:
        return int(base)
    return base.view(np.int64) if base.dtype.itemsize == 8 else base.astype(np.int64)
