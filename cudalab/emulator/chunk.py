"""Blocks that run together: their lanes, registers, special registers, and where a fault happened.  PTX ISA, "Special Registers".

Lanes are numbered block by block; each block takes whole warps, so lane // 32 is always a warp.  Where a block has no multiple of 32
threads, the lanes that fill up its last warp are never alive.
"""

import functools

import numpy as np

from cudalab.emulator.errors import KernelFault
from cudalab.emulator.image import Image
from cudalab.emulator.memory import BLOCK_ALIGN, RANK_SHIFT, UNSET, Memory
from cudalab.emulator.table import WAITERS, runtime

WARP = 32
TEXT = 100  # characters of an instruction in a message


@runtime
def pick(values, lanes):
    """The values of some lanes; what all lanes share stays as it is."""
    return values.take(lanes) if values.ndim else values


@runtime
def put(chunk: "Chunk", slot: int, lanes: np.ndarray, values) -> None:
    """Set a register in some lanes."""
    held = chunk.registers[slot]
    if not held.ndim:
        if not values.ndim and (len(lanes) == chunk.living or values.tobytes() == held.tobytes()):
            chunk.registers[slot] = values
            return
        held = chunk.registers[slot] = np.full(chunk.count, held)
    held[lanes] = values


@runtime
def own(values):
    """A copy that no other register shares."""
    return values.copy() if values.ndim else values


@runtime
def select(mask, new, old):
    """new where the mask holds, else old."""
    if mask.ndim:
        return np.where(mask, new, old)
    return own(new if mask else old)


class Chunk:
    """The state of blocks first..first+blocks-1 of a launch, numbered cluster by cluster.  count: lanes; alive: which have not exited.

    positions: x, y, z of the blocks in the grid.  eager: asynchronous operations take effect when they start, not when they are waited for.
    """

    def __init__(self, image: Image, launch, memory: Memory, first: int, blocks: int, observers: tuple = (), output=None,
                 eager: bool = False):
        self.image, self.launch, self.memory, self.first, self.blocks = image, launch, memory, first, blocks
        self.observers, self.output, self.eager = observers, output, eager
        self.threads = int(np.prod(launch.block))
        self.width = -(-self.threads // WARP) * WARP
        self.count = blocks * self.width
        self.warps = self.count // WARP
        self.cluster = launch.cluster or (1, 1, 1)
        self.cluster_size = int(np.prod(self.cluster))
        self.positions = positions(first + np.arange(blocks), launch.grid, self.cluster)
        self.shared_size = image.shared_size(launch.smem)
        self.shared_stride = -(-max(self.shared_size, 1) // BLOCK_ALIGN) * BLOCK_ALIGN
        self.local_stride = -(-image.local_size // 16) * 16
        self.all_lanes, self.block_of, self.thread_of = numbering(blocks, self.width)
        self.alive = self.thread_of < self.threads
        self.living = blocks * self.threads
        self.registers = [np.zeros((), dtype)[()] for dtype in image.slot_types]
        self._shared = (memory.shared_start + self.block_of * self.shared_stride) if blocks > 1 else memory.shared_start
        self._local = memory.local_start + self.all_lanes * self.local_stride if image.local_size else memory.local_start
        self._special: dict[str, object] = {}
        self.accumulator = None  # how tensor cores add up (accumulate.Accumulator); set by who launches
        self.steps = 0
        memory.chunk, memory.flights = self, None
        memory.limits = dict(param=image.param_size, shared=self.shared_size, local=image.local_size)
        memory.bytes[memory.shared_start:memory.shared_start + blocks * self.shared_stride] = UNSET
        memory.bytes[memory.local_start:memory.local_start + self.count * self.local_stride] = UNSET
        self.waiters = {kind: cls(self) for kind, cls in WAITERS.items()}

    def start_lanes(self) -> np.ndarray | None:
        """The lanes that exist; None for all."""
        return None if self.width == self.threads else self.alive.nonzero()[0]

    def shared_base(self, lanes):
        """Where in the flat memory the shared memory of each lane's block starts."""
        return self._shared if isinstance(self._shared, int) or lanes is None else self._shared[lanes]

    def cluster_base(self, lanes):
        """Where in the flat memory the shared memory of the first block of each lane's cluster starts."""
        if self.blocks == self.cluster_size:
            return self.memory.shared_start
        blocks = self.block_of if lanes is None else self.block_of[lanes]
        return self.memory.shared_start + blocks // self.cluster_size * self.cluster_size * self.shared_stride

    def ended(self, index):
        """For flat indices in shared memory: has every thread of the block there ended?"""
        if self.living == self.blocks * self.threads:
            return 0
        blocks = np.clip((index - self.memory.shared_start) // self.shared_stride, 0, self.blocks - 1)
        return ~self.alive.reshape(self.blocks, -1).any(axis=1)[blocks]

    def shared_address(self, offset, lanes):
        """The address of a variable in the own block's shared memory: its block's number in the cluster above bit 24."""
        if self.cluster_size == 1:
            return offset
        return offset | (self.special("%cluster_ctarank", lanes).astype(offset.dtype) << offset.dtype.type(RANK_SHIFT))

    def local_base(self, lanes):
        return self._local if isinstance(self._local, int) or lanes is None else self._local[lanes]

    def special(self, name: str, lanes):
        """The values of a special register."""
        if name in ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo", "%clock_hi", "%globaltimer_hi"):
            return self._clock(name)
        if name not in self._special:
            values = self._compute(name)
            if values.ndim and (values == values[0]).all():
                values = values[0]
            self._special[name] = values
        return self._special[name] if lanes is None else pick(self._special[name], lanes)

    def _clock(self, name: str):
        """A count of the emulator's steps, never a time."""
        if name in ("%clock64", "%globaltimer"):
            return np.uint64(self.steps)
        return np.uint32(self.steps >> 32 if name.endswith("_hi") else self.steps & 0xFFFFFFFF)

    def _compute(self, name: str):
        name, _, axis = name[1:].partition(".")
        number = "xyz".find(axis) if axis else 0
        block, grid = self.launch.block, self.launch.grid
        cluster = self.cluster
        if axis == "w":
            return np.uint32(0)
        if name == "tid":
            return np.tile(coordinate(np.arange(self.width), block, number), self.blocks)
        if name == "ntid":
            return np.uint32(block[number])
        if name == "nctaid":
            return np.uint32(grid[number])
        if name in ("laneid", "warpid"):
            return (self.thread_of % WARP if name == "laneid" else self.thread_of // WARP).astype(np.uint32)
        if name.startswith("lanemask_"):
            return lane_mask(name[9:], (self.thread_of % WARP).astype(np.uint64))
        fixed = dict(nwarpid=self.width // WARP, smid=0, nsmid=1, gridid=1, is_explicit_cluster=int(self.launch.cluster is not None),
                     total_smem_size=self.shared_size, dynamic_smem_size=self.launch.smem, aggr_smem_size=self.shared_size,
                     cluster_nctarank=int(np.prod(cluster)))
        if name in fixed:
            return np.uint32(fixed[name])
        if name == "nclusterid":
            return np.uint32(grid[number] // cluster[number])
        if name == "cluster_nctaid":
            return np.uint32(cluster[number])
        position = self.positions
        x, y, z = (p % np.uint32(c) for p, c in zip(position, cluster))
        by_block = dict(ctaid=position[number], cluster_ctaid=(x, y, z)[number], clusterid=position[number] // np.uint32(cluster[number]),
                        cluster_ctarank=x + np.uint32(cluster[0]) * (y + np.uint32(cluster[1]) * z))
        if name in by_block:
            return np.repeat(by_block[name], self.width)
        raise KernelFault(f"{self.image.kernel.name} reads the special register %{name}, which the emulator does not have")

    def guarded(self, mask, count: int, site: int) -> None:
        for observer in self.observers:
            observer.guarded(mask, count, site)

    def fence(self, mnemonic: str, lanes, site: int) -> None:
        for observer in self.observers:
            observer.fence(mnemonic, lanes, site)

    def warp_barrier(self, warps, members, site: int) -> None:
        for observer in self.observers:
            observer.warp_barrier(warps, members, site)

    def fault(self, lane: int, site: int, what: str, kind: type[KernelFault] = KernelFault) -> KernelFault:
        """The error for something that a lane did at an instruction."""
        return kind(f"{self.image.kernel.name}: {what}; {self.who(lane)}, {self.where(site)}")

    def who(self, lane: int) -> str:
        block = tuple(int(p[lane // self.width]) for p in self.positions)
        thread = tuple(int(coordinate(np.array(lane % self.width), self.launch.block, axis)) for axis in range(3))
        return f"block {block}, thread {thread}"

    def where(self, site: int) -> str:
        ins = self.image.instructions[site]
        text = ins.text if len(ins.text) <= TEXT else ins.text[:TEXT] + "…"
        return f"{ins.location}, {text!r} (PTX line {ins.ptx_line})" if ins.location else f"{text!r} (PTX line {ins.ptx_line})"


@functools.lru_cache(maxsize=64)
def numbering(blocks: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of lanes, of their blocks, and of their threads in the block; nobody may write to them."""
    lanes = np.arange(blocks * width)
    arrays = lanes, lanes // width, lanes % width
    for array in arrays:
        array.flags.writeable = False
    return arrays


def positions(numbers: np.ndarray, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> list[np.ndarray]:
    """x, y and z in the grid of the blocks with these numbers; blocks are numbered cluster by cluster."""
    size = int(np.prod(cluster))
    if size == 1:
        return [coordinate(numbers, grid, axis) for axis in range(3)]
    clusters = tuple(g // c for g, c in zip(grid, cluster))
    return [coordinate(numbers // size, clusters, axis) * np.uint32(cluster[axis]) + coordinate(numbers % size, cluster, axis)
            for axis in range(3)]


def coordinate(number: np.ndarray, sizes: tuple[int, int, int], axis: int):
    """The x, y or z of something numbered along x first."""
    return (number // int(np.prod(sizes[:axis], dtype=np.int64)) % sizes[axis]).astype(np.uint32)


def lane_mask(which: str, lane: np.ndarray) -> np.ndarray:
    """PTX ISA, "Special Registers: %lanemask_eq" and its like."""
    one = np.uint64(1)
    equal = one << lane
    masks = dict(eq=equal, le=(equal << one) - one, lt=equal - one, ge=~(equal - one), gt=~((equal << one) - one))
    return (masks[which] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
