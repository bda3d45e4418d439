"""Tensor maps under emulation.  PTX ISA, "Tensors: Tensor Dimension, Size and Format; Tensor Access Modes; Swizzling Modes; Tensor-map".

On a device the driver encodes 128 opaque bytes (cuTensorMapEncodeTiled); here they are a record of our own, so a kernel that copies a map
works and one that looks inside does not.  What the driver refuses `spec.TensorMap` refuses.
"""

import functools
from dataclasses import dataclass

import numpy as np

from cudalab.emulator.memory import BLOCK_ALIGN, COPIED_WHOLE
from cudalab.errors import BadLaunch
from cudalab.tensormap import MAP_FORMATS, TensorMap

MAGIC = 0x70616D726F736E74  # "tnsormap"
MAP_KINDS = tuple(MAP_FORMATS)
CHUNK = 16  # bytes that a swizzle moves as one
RECORD = np.dtype(dict(
    names=["magic", "base", "bytes", "swizzle", "rank", "nan", "kind", "dims", "strides", "box", "steps"],
    formats=["u8", "u8", "u1", "u1", "u1", "u1", "u1", ("u8", 5), ("u8", 4), ("u2", 5), ("u1", 5)],
    offsets=[0, 8, 24, 25, 26, 27, 28, 32, 72, 104, 114], itemsize=128))


@dataclass(frozen=True)
class Map:
    """A decoded map: generic address of the tensor, bytes of an element, dimensions (innermost first), strides in bytes, box, steps.

    swizzle: 0, 32, 64, 128 bytes.  nan: elements outside are NaN, else zero.  kind: number of the element type in MAP_KINDS.
    """

    base: int
    bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    nan: bool
    kind: int

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements of the box along each dimension; every steps[i]-th is taken."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.steps))

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the box in shared memory, wherever it lies: elements outside of the tensor count."""
        return int(np.prod(self.counts)) * self.bytes


def encode(tensor_map: TensorMap, address: int) -> bytes:
    """The 128 bytes of a map whose tensor lies at a generic address."""
    inner = tensor_map.box[0] * tensor_map.itemsize
    if tensor_map.swizzle and inner != tensor_map.swizzle:
        raise BadLaunch(f"a tensor map over {tensor_map.name}: rows of {inner} bytes swizzled by {tensor_map.swizzle}; the emulator takes "
                        f"swizzled rows of exactly that width only: make the box {tensor_map.swizzle // tensor_map.itemsize} elements wide")
    record = np.zeros((), RECORD)
    rank = len(tensor_map.dims)
    record["magic"], record["base"], record["rank"] = MAGIC, address, rank
    record["bytes"], record["swizzle"], record["nan"] = tensor_map.itemsize, tensor_map.swizzle, tensor_map.fill == "nan"
    record["dims"][:rank], record["box"][:rank], record["steps"][:rank] = tensor_map.dims, tensor_map.box, tensor_map.element_strides
    record["strides"][:rank - 1] = tensor_map.strides
    record["kind"] = MAP_KINDS.index(tensor_map.dtype)
    return record.tobytes()


def decode(data: np.ndarray) -> Map | None:
    """The map in 128 bytes; None if there is none."""
    record = data.view(RECORD)[0]
    if record["magic"] != MAGIC:
        return None
    rank, size = int(record["rank"]), int(record["bytes"])
    numbers = {name: tuple(int(n) for n in record[name][:rank]) for name in ("dims", "box", "steps")}
    return Map(int(record["base"]), size, strides=(size, *(int(n) for n in record["strides"][:rank - 1])),
               swizzle=int(record["swizzle"]), nan=bool(record["nan"]), kind=int(record["kind"]), **numbers)


def swizzled(address: np.ndarray, width: int) -> np.ndarray:
    """Where in shared memory the 16 bytes lie that belong at an address.  PTX ISA, "Swizzling Modes": bits 4.. of the address are
    exclusive-ored with bits 7..: three of them for 128 bytes, two for 64, one for 32."""
    return address ^ ((address >> 7 & width // CHUNK - 1) << 4) if width else address


class Box:
    """A box of a tensor in global memory: the part of it that lies inside, as a view, and where that lies in the box."""

    def __init__(self, memory, tensor_map: Map, start: tuple[int, ...], flat: int):
        """start: coordinates of the box's first element.  flat: where the tensor begins in the flat memory."""
        self.map, counts = tensor_map, tensor_map.counts
        self.inside, first, sizes, strides = [], flat, [], []
        for dim, at, step, count, stride in zip(tensor_map.dims, start, tensor_map.steps, counts, tensor_map.strides):
            low = min(max(0, -(at // step)), count)  # the first of the elements at, at + step, … that is not negative
            high = min(max(low, -(-(dim - at) // step)), count)
            self.inside.append(slice(low, high))
            first += (at + low * step) * stride
            sizes.append(high - low)
            strides.append(stride * step)
        self.empty = 0 in sizes
        if self.empty:
            first = flat  # not somewhere behind the tensor
        self.first, self.end = first, first + sum((n - 1) * s for n, s in zip(sizes, strides)) + tensor_map.bytes
        self.sizes, self.strides = sizes, strides
        self.memory = memory

    def view(self) -> np.ndarray:
        """The elements inside, slowest dimension first, as unsigned integers that may be written."""
        kind = np.dtype(f"u{self.map.bytes}")
        flat = self.memory.bytes[self.first:self.end]
        return np.ndarray(self.sizes[::-1], kind, flat, strides=self.strides[::-1])

    @property
    def whole(self) -> tuple[slice, ...]:
        return tuple(self.inside[::-1])

    def read(self) -> np.ndarray:
        """The box as bytes, packed; outside of the tensor zeros, or NaNs."""
        shape, kind = self.map.counts[::-1], np.dtype(f"u{self.map.bytes}")
        if self.sizes == list(self.map.counts):
            return np.ascontiguousarray(self.view()).reshape(-1).view(np.uint8)
        box = np.full(shape, (1 << 8 * kind.itemsize - 1) - 1 if self.map.nan else 0, kind)
        if not self.empty:
            box[self.whole] = self.view()
        return box.reshape(-1).view(np.uint8)

    def write(self, data: np.ndarray, combine=None) -> None:
        """Write packed bytes of a box to the part inside.  combine: (old, new) -> what to store."""
        if self.empty:
            return
        new = data.view(f"u{self.map.bytes}").reshape(self.map.counts[::-1])[self.whole]
        view = self.view()
        view[...] = new if combine is None else combine(view.copy(), np.ascontiguousarray(new))

    def rows(self) -> tuple[np.ndarray, int]:
        """(flat index of every innermost run, its bytes) of what lies inside."""
        if self.empty:
            return np.zeros(0, np.int64), 0
        index = np.int64(self.first)
        for size, stride in zip(self.sizes[1:], self.strides[1:]):
            index = np.add.outer(np.arange(size) * stride, index)
        return np.atleast_1d(index).reshape(-1), self.sizes[0] * self.map.bytes


@functools.lru_cache(maxsize=256)
def pattern(start: int, nbytes: int, swizzle: int) -> np.ndarray:
    """Where the 16 bytes of a tile lie that starts so far behind a multiple of the swizzle's period."""
    return swizzled(start + np.arange(0, nbytes, CHUNK), swizzle)


class Tile:
    """Packed bytes in shared memory, in rows that may be swizzled: flat index of the first byte, length, swizzle in bytes."""

    def __init__(self, memory, first: int, nbytes: int, swizzle: int = 0):
        self.memory, self.first, self.nbytes, self.swizzle = memory, first, nbytes, swizzle

    def index(self) -> np.ndarray:
        """The flat index of each 16 bytes."""
        within = (self.first - self.memory.shared_start) % BLOCK_ALIGN
        return self.first - within + pattern(within, self.nbytes, self.swizzle)

    def rows(self) -> tuple[np.ndarray, int]:
        return (self.index(), CHUNK) if self.swizzle else (np.array([self.first]), self.nbytes)

    def read(self) -> np.ndarray:
        if not self.swizzle:
            return self.memory.bytes[self.first:self.first + self.nbytes].copy()
        return self.memory.view(COPIED_WHOLE[CHUNK])[self.index() >> 4].view(np.uint8)

    def write(self, data: np.ndarray, combine=None) -> None:
        if combine is not None:
            data = combine(self.read(), data)
        if not self.swizzle:
            self.memory.bytes[self.first:self.first + self.nbytes] = data
        else:
            self.memory.view(COPIED_WHOLE[CHUNK])[self.index() >> 4] = data.view(COPIED_WHOLE[CHUNK])
