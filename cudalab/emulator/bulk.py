"""Bulk copies.  PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk, cp.reduce.async.bulk, cp.async.bulk.prefetch,
cp.async.bulk.commit_group, cp.async.bulk.wait_group, cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, st.async, red.async".
"""

import functools

import numpy as np

from cudalab.emulator.async_copy import _lanes as chosen_lanes_of
from cudalab.emulator.atomics import combination
from cudalab.emulator.errors import PtxError
from cudalab.emulator.image import GLOBAL
from cudalab.emulator.program import Address, Vector
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.taking_part import indices, participants, values_of
from cudalab.emulator.tensor_maps import MAP_KINDS, Box, Map, Tile, decode
from cudalab.emulator.transfers import Copy
from cudalab.emulator.types import TYPES

UNIT = 16  # bytes: sizes and addresses of bulk copies are multiples
TILE_ALIGN = 128  # of a box in shared memory
MAP_ALIGN, MAP_BYTES = 64, 128
BARRIER = 8
SPACES = "global shared::cta shared::cluster"
COUNTED = "mbarrier::complete_tx::bytes"
MORE = "multicast::cluster L2::cache_hint tile"
OPERATIONS = "add min max inc dec and or xor"
REDUCED = "u32 s32 u64 s64 b32 b64 f16 bf16 f32 f64"


def _spaces(ins) -> tuple[str, str]:
    """(of the target, of the source)"""
    named = [part for part in ins.parts if part in SPACES.split()]
    if len(named) != 2 or ("shared::cta" in named and named.index("shared::cta") == 0 and named[1] != "global"):
        raise PtxError(f"this form of a bulk copy is not supported: {ins}")
    return named[0], named[1]


def _place(code, operand, space: str) -> str:
    place, offset = code.place(operand, {"shared::cluster": "cluster", "shared::cta": "shared"}.get(space, space))
    return f"({place}, {offset})"


def _completion(code, ins, operands: list) -> tuple[str, str]:
    """The mbarrier (or None) and the mask of blocks (or None) among the operands that are left."""
    barrier = mask = "None"
    if ins.has(COUNTED):
        barrier = _place(code, operands.pop(0), "shared::cluster")
    elif not ins.has("bulk_group"):
        raise PtxError(f"a bulk copy without a way to wait for it: {ins}")
    if ins.has("multicast::cluster"):
        mask = code.value(operands.pop(0), "b16")
    if ins.has("L2::cache_hint"):
        operands.pop(0)
    if operands:
        raise PtxError(f"this form of a bulk copy is not supported: {ins}")
    return barrier, mask


# -- plain bytes


@instruction("cp.async.bulk", modifiers=f"{SPACES} {COUNTED} bulk_group {MORE}", writes=0)
def bulk(code, ins):
    _bulk(code, ins, "None")


@instruction("cp.reduce.async.bulk", types=REDUCED, modifiers=f"{SPACES} {COUNTED} bulk_group {OPERATIONS} noftz L2::cache_hint", writes=0)
def bulk_reduce(code, ins):
    _bulk(code, ins, code.constant((ins.one_of(*OPERATIONS.split()), ins.type.name)))


def _bulk(code, ins, reduction):
    to, origin = _spaces(ins)
    target, source, size, *more = ins.operands
    arguments = [_place(code, target, to), _place(code, source, origin), code.value(size, "u32")]
    barrier, mask = _completion(code, ins, more)
    code.line(f"bulk_copy(chunk, lanes, count, {code.mask}, {code.site}, {', '.join(arguments)}, {barrier}, {mask}, {reduction})")


@runtime
def bulk_copy(chunk, lanes, count, mask, site, to, origin, size, barrier, blocks, reduction):
    """to, origin, barrier: (Place, offset).  blocks: those of the cluster that get the data, as bits.  reduction: (operation, type)."""
    memory = chunk.memory
    who, positions = participants(chunk, lanes, count, mask)
    if not len(who):
        return
    sizes = values_of(size, count, positions)
    if (sizes % UNIT).any():
        raise chunk.fault(int(who[np.argmax(sizes % UNIT)]), site, f"a bulk copy of {sizes[np.argmax(sizes % UNIT)]} bytes; it must be a "
                                                                  f"multiple of {UNIT}")
    target, source = (indices(memory, *place, count, positions, UNIT, "a bulk copy", site, place[0].space) if sizes.any() else None
                      for place in (to, origin))
    barriers = barrier and indices(memory, *barrier, count, positions, BARRIER, "an mbarrier", site)
    spread = blocks is not None and values_of(blocks, count, positions)
    copies = []
    for number, (lane, nbytes) in enumerate(zip(who.tolist(), sizes.tolist())):
        if not nbytes:
            continue
        at = int(source[number])
        check_range(chunk, origin[0].space, at, nbytes, lane, site, "a bulk copy reads")
        for first, counter in destinations(chunk, lane, int(target[number]), None if barriers is None else int(barriers[number]),
                                           None if blocks is None else int(spread[number]), site):
            check_range(chunk, to[0].space, first, nbytes, lane, site, "a bulk copy writes")
            copies.append(Copy(lane, site, Tile(memory, at, nbytes), Tile(memory, first, nbytes), nbytes, counter,
                               reduction and combiner(*reduction)))
    chunk.waiters["transfers"].start(copies)


def destinations(chunk, lane: int, first: int, barrier: int | None, blocks: int | None, site: int):
    """(flat index of the target, of the mbarrier) in each block that gets the data: the same place in all of them."""
    if blocks is None:
        yield first, barrier
        return
    start, stride, size = chunk.memory.shared_start, chunk.shared_stride, chunk.cluster_size
    if blocks == 0 or blocks >> size:
        raise chunk.fault(lane, site, f"a copy to the blocks {blocks:#b} of a cluster of {size}")
    cluster = int(chunk.block_of[lane]) // size * size
    for rank in range(size):
        if blocks >> rank & 1:
            block = start + (cluster + rank) * stride
            if chunk.ended(block):
                raise chunk.fault(lane, site, f"a copy to block {rank} of the cluster, which has ended")
            yield tuple(at if at is None else block + (at - start) % stride for at in (first, barrier))


def check_range(chunk, space: str, first: int, nbytes: int, lane: int, site: int, what: str) -> None:
    """Raise unless nbytes from a flat index on lie within one allocation."""
    memory = chunk.memory
    if space == "shared":
        offset = (first - memory.shared_start) % chunk.shared_stride
        if offset + nbytes > memory.limits["shared"]:
            raise chunk.fault(lane, site, f"{what} {nbytes} bytes at {memory.name_address('shared', offset)}, out of bounds")
        return
    address = first + GLOBAL
    number = int(np.searchsorted(memory.starts, address, "right")) - 1
    if number < 0 or address + nbytes > memory.regions[number].end:
        raise chunk.fault(lane, site, f"{what} {nbytes} bytes at {memory.name_address('global', address)}, out of bounds")


@functools.cache
def combiner(operation: str, name: str):
    """(old bytes, new bytes) -> the bytes of a reduction."""
    combine, dtype = combination(operation, name, "global"), TYPES[name].dtype if name != "f16" else np.dtype(np.uint16)

    def apply(old, new):
        flat = [np.ascontiguousarray(x).reshape(-1).view(dtype) for x in (old, new)]
        return np.ascontiguousarray(combine(*flat)).astype(dtype).view(old.dtype).reshape(old.shape)
    return apply


# -- boxes of tensors


@instruction("cp.async.bulk.tensor", modifiers=f"1d 2d 3d 4d 5d {SPACES} {COUNTED} bulk_group {MORE}", writes=0)
def tensor(code, ins):
    _tensor(code, ins, "None")


@instruction("cp.reduce.async.bulk.tensor", modifiers=f"1d 2d 3d 4d 5d {SPACES} bulk_group {OPERATIONS} tile L2::cache_hint", writes=0)
def tensor_reduce(code, ins):
    _tensor(code, ins, repr(ins.one_of(*OPERATIONS.split())))


def _tensor(code, ins, operation):
    to, origin = _spaces(ins)
    loads = origin == "global"
    if not loads and (to != "global" or ins.has(COUNTED)):
        raise PtxError(f"this form of a bulk copy is not supported: {ins}")
    if loads:
        tile, box, *more = ins.operands
    else:
        box, tile, *more = ins.operands
    if not isinstance(box, Address) or len(box.coordinates) != 1 or not isinstance(box.coordinates[0], Vector):
        raise PtxError(f"a tensor map without coordinates: {ins}")
    rank = int(next(part for part in ins.parts if part in ("1d", "2d", "3d", "4d", "5d"))[0])
    coordinates = [code.value(item, "s32") for item in box.coordinates[0].items]
    if len(coordinates) != rank:
        raise PtxError(f"{len(coordinates)} coordinates of a tensor of {rank} dimensions: {ins}")
    arguments = [_place(code, Address(box.base, box.offset), "generic"), f"({', '.join(coordinates)},)",
                 _place(code, tile, to if loads else origin)]
    barrier, mask = _completion(code, ins, more)
    code.line(f"tensor_copy(chunk, lanes, count, {code.mask}, {code.site}, {loads}, {', '.join(arguments)}, {barrier}, {mask}, "
              f"{operation})")


@runtime
def tensor_copy(chunk, lanes, count, mask, site, loads, where, coordinates, tile, barrier, blocks, operation):
    """loads: from global to shared memory, else the other way.  where: of the map; tile: of the box in shared memory."""
    memory = chunk.memory
    who, positions = participants(chunk, lanes, count, mask)
    if not len(who):
        return
    maps = maps_at(chunk, where, who, count, positions, len(coordinates), site)
    starts = np.stack([values_of(c, count, positions) for c in coordinates], axis=1).tolist()
    tiles = indices(memory, *tile, count, positions, UNIT, "a box of a tensor", site)
    if (tiles % TILE_ALIGN).any():
        raise chunk.fault(int(who[np.argmax(tiles % TILE_ALIGN)]), site, f"a box of a tensor in shared memory, not aligned to {TILE_ALIGN}")
    barriers = barrier and indices(memory, *barrier, count, positions, BARRIER, "an mbarrier", site)
    spread = None if blocks is None else values_of(blocks, count, positions)
    copies = []
    for number, lane in enumerate(who.tolist()):
        tensor_map = maps[number]
        box = Box(memory, tensor_map, starts[number], tensor_map.base - GLOBAL)
        if not box.empty:
            check_range(chunk, "global", box.first, box.end - box.first, lane, site,
                        "a tensor copy reads" if loads else "a tensor copy writes")
        nbytes = tensor_map.nbytes
        at = None if barriers is None else int(barriers[number])
        for first, counter in destinations(chunk, lane, int(tiles[number]), at, None if spread is None else int(spread[number]), site):
            check_range(chunk, "shared", first, nbytes, lane, site, "a tensor copy writes" if loads else "a tensor copy reads")
            packed = Tile(memory, first, nbytes, tensor_map.swizzle)
            source, target = (box, packed) if loads else (packed, box)
            combine = operation and combiner(operation, reduced_type(chunk, tensor_map, operation, lane, site))
            copies.append(Copy(lane, site, source, target, nbytes, counter, combine))
    chunk.waiters["transfers"].start(copies)


def reduced_type(chunk, tensor_map: Map, operation: str, lane: int, site: int) -> str:
    """The type that a reduction into a tensor works in."""
    kind = MAP_KINDS[tensor_map.kind]
    name = dict(i32="s32", i64="s64").get(kind, kind)
    if operation in ("and", "or", "xor"):
        name = f"b{8 * tensor_map.bytes}"
    if name not in REDUCED.split():
        raise chunk.fault(lane, site, f"a reduction of elements of type {kind}, which is not supported")
    return name


def maps_at(chunk, where, who, count, positions, rank: int, site: int) -> list[Map]:
    """The tensor map of each lane."""
    memory = chunk.memory
    place, offset = where
    if positions is not None:
        place = place.only(positions, count)
    if place.parts:
        raise chunk.fault(int(who[0]), site, "tensor maps in several state spaces at once")
    memory.check(place, offset, MAP_ALIGN, "a tensor map", site)
    memory.check(place, offset + MAP_ALIGN, MAP_ALIGN, "a tensor map", site)
    index = np.atleast_1d(np.asarray(place.index) + offset)
    found = {}
    for at in np.unique(index).tolist():
        found[at] = tensor_map = known(memory.bytes[at:at + MAP_BYTES].tobytes())
        if tensor_map is None or len(tensor_map.dims) != rank:
            lane = int(who[np.argmax(np.broadcast_to(index, len(who)) == at)])
            raise chunk.fault(lane, site, f"a copy of {rank} dimensions by what is no tensor map" if tensor_map is None else
                              f"a copy of {rank} dimensions by a tensor map of {len(tensor_map.dims)}")
    return [found[int(at)] for at in np.broadcast_to(index, len(who))]


@functools.lru_cache(maxsize=64)
def known(data: bytes) -> Map | None:
    return decode(np.frombuffer(data, np.uint8))


# -- waiting for groups; hints


@instruction("cp.async.bulk.commit_group", writes=0)
def bulk_commit(code, ins):
    code.line(f"transfers_of(chunk).commit({chosen_lanes_of(code)})")


@instruction("cp.async.bulk.wait_group", modifiers="read", writes=0)
def bulk_wait(code, ins):
    code.line(f"transfers_of(chunk).wait({chosen_lanes_of(code)}, {ins.operands[0].value}, {ins.has('read')}, {code.site})")


@instruction("cp.async.bulk.prefetch", modifiers=f"L2 global tensor 1d 2d 3d 4d 5d {MORE}", writes=0)
def prefetch(code, ins):
    """A hint to the L2 cache changes no value."""


# -- single values to shared memory of the cluster


@instruction("st.async", modifiers=f"weak shared::cluster {COUNTED} v2 v4", types="b32 b64 u32 u64 s32 s64 f32 f64", writes=0)
def st_async(code, ins):
    _store(code, ins, "None")


@instruction("red.async", modifiers=f"relaxed cluster shared::cluster {COUNTED} {OPERATIONS}", types="u32 s32 u64 b32", writes=0)
def red_async(code, ins):
    _store(code, ins, code.constant((ins.one_of(*OPERATIONS.split()), ins.type.name)))


def _store(code, ins, reduction):
    target, source, barrier = ins.operands
    values = ", ".join(code.values(source, ins.type))
    code.line(f"async_store(chunk, lanes, count, {code.mask}, {code.site}, {_place(code, target, 'shared::cluster')}, ({values},), "
              f"{_place(code, barrier, 'shared::cluster')}, {reduction})")


@runtime
def async_store(chunk, lanes, count, mask, site, to, values, barrier, reduction):
    memory = chunk.memory
    who, positions = participants(chunk, lanes, count, mask)
    if not len(who):
        return
    if chunk.launch.cluster is None:
        raise chunk.fault(int(who[0]), site, "st.async or red.async in a launch without clusters, an illegal instruction on a device; "
                                             "an H200 runs them in a cluster of one block, compute-sanitizer wants two")
    columns = [np.broadcast_to(v, count) if positions is None else np.broadcast_to(v, count)[positions] for v in values]
    rows = np.ascontiguousarray(np.stack(columns, axis=1))
    nbytes = rows.shape[1] * rows.itemsize
    rows = rows.view(np.uint8).reshape(len(who), nbytes)
    target = indices(memory, *to, count, positions, nbytes, "an asynchronous store", site)
    barriers = indices(memory, *barrier, count, positions, BARRIER, "an mbarrier", site)
    wrong = (target - memory.shared_start) // chunk.shared_stride != (barriers - memory.shared_start) // chunk.shared_stride
    if wrong.any():
        raise chunk.fault(int(who[np.argmax(wrong)]), site, "an asynchronous store whose mbarrier is in another block than its target")
    chunk.waiters["transfers"].start([
        Copy(lane, site, row, Tile(memory, first, nbytes), nbytes, at, reduction and combiner(*reduction))
        for lane, row, first, at in zip(who.tolist(), rows, target.tolist(), barriers.tolist())])
