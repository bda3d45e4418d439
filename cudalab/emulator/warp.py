"""Instructions that the lanes of a warp execute together.  PTX ISA, "Data Movement and Conversion Instructions: shfl.sync", "Parallel
Synchronization and Communication Instructions: bar.warp.sync, vote.sync, match.sync, activemask, redux.sync".

The scheduler brings together all living lanes that a member mask names; what a lane gets from one that is not there is undefined in PTX,
and an error here.
"""

import functools

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.errors import PtxError
from cudalab.emulator.program import Pair, Sink
from cudalab.emulator.table import instruction, runtime

LANE = np.arange(WARP)
BIT = np.uint32(1) << LANE.astype(np.uint32)


@runtime
class Warps:
    """The lanes of a group as rows of 32.  present: which places of the rows are lanes that take part."""

    def __init__(self, lanes, count: int, mask=None):
        self.count, self.slots, self.lanes = count, None, lanes
        self.numbers = None  # of the warps in the chunk, None for all
        whole = lanes is None or count % WARP == 0 and (lanes[::WARP] % WARP == 0).all() and (lanes[31::WARP] - lanes[::WARP] == 31).all()
        if whole:
            self.rows = count // WARP
            self.numbers = None if lanes is None else lanes[::WARP] // WARP
            self.present = np.broadcast_to(np.True_, (self.rows, WARP))
        else:
            self.numbers, rank = np.unique(lanes // WARP, return_inverse=True)
            self.rows = len(self.numbers)
            self.slots = rank * WARP + lanes % WARP
            self.present = np.zeros((self.rows, WARP), bool)
            self.present.reshape(-1)[self.slots] = True
        self.whole = whole and mask is None  # every lane of every warp takes part
        if mask is not None:
            self.present = self.present & self.spread(mask)

    def spread(self, values) -> np.ndarray:
        """One value a lane as rows of warps."""
        if not values.ndim:
            return np.broadcast_to(values, (self.rows, WARP))
        if self.slots is None:
            return values.reshape(self.rows, WARP)
        rows = np.zeros(self.rows * WARP, values.dtype)
        rows[self.slots] = values
        return rows.reshape(self.rows, WARP)

    def collect(self, rows: np.ndarray) -> np.ndarray:
        """Rows of warps as one value a lane."""
        flat = rows.reshape(-1)
        return np.array(flat) if self.slots is None else flat[self.slots]

    def each(self, values: np.ndarray) -> np.ndarray:
        """One value a warp as one a lane."""
        return self.collect(np.repeat(values, WARP))

    def lane(self, row: int, column: int) -> int:
        """The lane of the chunk at a place in the rows."""
        return int((row if self.numbers is None else self.numbers[row]) * WARP + column)


def pack(rows: np.ndarray) -> np.ndarray:
    """Rows of 32 booleans as 32-bit numbers."""
    return np.packbits(rows, axis=-1, bitorder="little").view("<u4")[..., 0]


def warps(code) -> str:
    """The local variable that holds the segment's lanes as warps."""
    if code.mask is not None:
        return code.temp(f"Warps(lanes, count, {code.mask})")
    return code.once("warps", "Warps(lanes, count)")


@instruction("shfl.sync", types="b32", modifiers="up down bfly idx", collective=32, members=4)
def shfl(code, ins):
    target, value, b, c, members = ins.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    mode = ins.one_of("up", "down", "bfly", "idx")
    values = ", ".join([code.value(value, "b32"), *(code.value(o, "u32") for o in (b, c, members))])
    result = code.temp(f"shuffle(chunk, {warps(code)}, {mode!r}, {values}, {code.site})")
    code.assign(first, f"{result}[0]", "b32")
    code.assign(second, f"{result}[1]", "pred", alias=True)


@runtime
def shuffle(chunk, group, mode, value, b, c, members, site):
    """The values of other lanes, and whether the lane asked for was within bounds (else the own value)."""
    if b.ndim or c.ndim:
        b, c = group.spread(b).astype(np.int64), group.spread(c).astype(np.int64)
    else:
        b, c = int(b), int(c)
    whole = group.slots is None and not members.ndim and members == 0xFFFFFFFF and isinstance(b, int) and group.whole
    if whole:
        index, inside = uniform_shuffle(group.rows, mode, b, c)
        return value.take(index) if value.ndim else value, inside
    source, inside = sources(mode, b, c)
    _check_sources(chunk, group, source, members, site)
    rows = group.spread(value)
    taken = rows[:, source] if source.ndim == 1 else np.take_along_axis(rows, source, 1)
    return group.collect(taken), group.collect(np.broadcast_to(inside, rows.shape))


def sources(mode, b, c):
    """From which lane each lane reads, itself where the one asked for is out of bounds; and whether that is within bounds."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    limit = LANE & segment | clamp & ~segment & 31
    source = dict(up=lambda: LANE - b, down=lambda: LANE + b, bfly=lambda: LANE ^ b, idx=lambda: LANE & segment | b & ~segment & 31)[mode]()
    inside = source >= limit if mode == "up" else source <= limit
    return np.where(inside, source, LANE), inside


@functools.lru_cache(maxsize=256)
def uniform_shuffle(rows: int, mode: str, b: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """For so many whole warps that all shuffle alike: from where each lane reads, and whether that is within bounds."""
    source, inside = sources(mode, b, c)
    index, everywhere = (np.arange(rows)[:, None] * WARP + source).reshape(-1), np.tile(inside, rows)
    index.flags.writeable = everywhere.flags.writeable = False
    return index, everywhere


def _check_sources(chunk, group, source, members, site):
    """Raise where a lane reads one that does not take part."""
    if not members.ndim and members == 0xFFFFFFFF and group.present.all():
        return
    source = np.broadcast_to(source, group.present.shape)
    named = (group.spread(members) >> source.astype(np.uint32) & np.uint32(1)).astype(bool)
    wrong = group.present & ~(np.take_along_axis(group.present, source, 1) & named)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise chunk.fault(group.lane(row, column), site, f"shfl.sync reads lane {source[row, column]}, which does not take part")


@instruction("vote.sync", modifiers="all any uni ballot", collective=32, members=2)
def vote(code, ins):
    target, predicate, members = ins.operands
    mode = ins.one_of("all", "any", "uni", "ballot")
    if mode is None:
        raise PtxError(f"this form of vote is not supported: {ins}")
    code.assign(target, f"vote({warps(code)}, {mode!r}, {code.value(predicate, 'pred')}, {code.value(members, 'u32')})",
                "b32" if mode == "ballot" else "pred")


@runtime
def vote(group, mode, predicate, members):
    asked = group.spread(members) & pack(group.present)[:, None]
    yes = pack(group.spread(predicate) & group.present)[:, None] & asked
    result = dict(all=lambda: yes == asked, any=lambda: yes != 0, uni=lambda: (yes == asked) | (yes == 0), ballot=lambda: yes)[mode]()
    return group.collect(result)


@instruction("match.any.sync", types="b32 b64", collective=32, members=2)
def match_any(code, ins):
    target, value, members = ins.operands
    code.assign(target, f"same_value({warps(code)}, {code.value(value, ins.type)}, {code.value(members, 'u32')})", "b32")


@runtime
def same_value(group, value, members):
    """The lanes that hold the same value, as a mask."""
    rows = group.spread(value)
    equal = (rows[:, :, None] == rows[:, None, :]) & group.present[:, None, :]
    return group.collect(pack(equal) & group.spread(members))


@instruction("match.all.sync", types="b32 b64", collective=32, members=2)
def match_all(code, ins):
    target, value, members = ins.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    asked = code.value(members, "u32")
    same = code.temp(f"all_same({warps(code)}, {code.value(value, ins.type)}, {asked})")
    code.assign(first, f"np.where({same}, {asked}, {code.constant(np.uint32(0))})", "b32")
    code.assign(second, same, "pred", alias=True)


@runtime
def all_same(group, value, members):
    """Do all lanes that take part hold one value?"""
    rows = group.spread(value)
    equal = pack((rows[:, :, None] == rows[:, None, :]) & group.present[:, None, :])
    asked = group.spread(members) & pack(group.present)[:, None]
    return group.collect(equal & asked == asked)


@instruction("redux.sync", types="u32 s32 b32", modifiers="add min max and or xor", collective=32, members=2)
def redux(code, ins):
    target, value, members = ins.operands
    operation = ins.one_of("add", "min", "max", "and", "or", "xor")
    code.assign(target, f"reduce_warp({warps(code)}, {operation!r}, {code.value(value, ins.type)}, {code.value(members, 'u32')})", ins.type)


REDUCTIONS = dict(add=np.add, min=np.minimum, max=np.maximum, xor=np.bitwise_xor, **{"and": np.bitwise_and, "or": np.bitwise_or})


@runtime
def reduce_warp(group, operation, value, members):
    function, kind = REDUCTIONS[operation], value.dtype
    neutral = dict(add=0, xor=0, min=np.iinfo(kind).max, max=np.iinfo(kind).min, **{"and": -1, "or": 0})[operation]
    neutral = np.array(neutral).astype(kind)
    rows = np.where(group.present, group.spread(value), neutral)
    if not members.ndim and members == 0xFFFFFFFF:
        return group.each(function.reduce(rows, axis=1, dtype=kind))
    taken = (group.spread(members)[:, :, None] & BIT) != 0
    return group.collect(function.reduce(np.where(taken, rows[:, None, :], neutral), axis=2, dtype=kind))


@instruction("activemask", types="b32")
def activemask(code, ins):
    """The lanes that happen to run together here."""
    code.assign(ins.operands[0], f"active({warps(code)})", "b32")


@runtime
def active(group):
    return group.each(pack(group.present))


@instruction("bar.warp.sync", writes=0, collective=32, members=0)
def warp_barrier(code, ins):
    if code.watched:
        code.line(f"chunk.warp_barrier({warps(code)}, {code.value(ins.operands[0], 'u32')}, {code.site})")
