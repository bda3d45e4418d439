"""Counters: what a run asks of a device, by instruction of the PTX, by source line, in total.

All of it is at the level of PTX, not of the machine's own code: ptxas joins loads, drops moves and addresses, and expands divisions.  What
both have in common (multiply-adds, accesses of the same width, barriers, branches) is the same number; see docs/emulator.md.

Global memory.  A request is one instruction of one warp; it asks for the 32-byte sectors in which its active lanes' bytes lie, each once.
Four sectors for a 4-byte access of a full warp are the least.

Shared memory.  Thirty-two banks, four bytes wide, word w in bank w mod 32.  A request is served in passes: all 32 lanes together for
accesses of up to 4 bytes, two half-warps for 8 bytes, four quarter-warps for 16.  Data return at 128 bytes a cycle, so where lanes in
pairs read the same, half the passes do: if every active lane i reads the address of lane i^1 (or every one that of i^2), a load of 8
bytes takes one pass and a load of 16 bytes two ("Unexpected shared memory bank conflict", forums.developer.nvidia.com, answer by NVIDIA; on
an H200 ncu counts 2 wavefronts for lanes so arranged, 4 for eight addresses read in rows).  Lanes that read one word share it; in a pass
every further word that lies in a bank takes one wavefront more: wavefronts of a pass = the most distinct words in any bank.  `shared_ideal`
is one wavefront a pass, and what is beyond it is excess: bank conflicts.  A copy through L1 (cp.async.ca) arrives a 128-byte line at a
time: every further line that its warp reads takes one wavefront more (so ncu counts on an H200, tests/test_verdict.py).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.hooks import Observer
from cudalab.emulator.image import GLOBAL, Image
from cudalab.emulator.memory import Place
from cudalab.emulator.program import Instruction, Location

SECTOR, LINE, BANKS, WORD = 32, 128, 32, 4  # bytes, bytes, banks, bytes
FIELDS = ("thread_instructions", "warp_instructions",
          "global_load_requests", "global_load_sectors", "global_load_bytes",
          "global_store_requests", "global_store_sectors", "global_store_bytes",
          "shared_load_requests", "shared_load_wavefronts", "shared_load_ideal", "shared_load_bytes",
          "shared_store_requests", "shared_store_wavefronts", "shared_store_ideal", "shared_store_bytes",
          "async_global_sectors", "async_global_bytes", "async_shared_bytes",
          "local_bytes", "branches", "divergent_branches", "barriers", "barrier_openings", "atomics", "atomic_collisions",
          "flops_f16", "flops_f32", "flops_f64", "flops_tensor")
SPACES = ("global", "shared", "local", "param", "const")
MATRIX = re.compile(r"m(\d+)n(\d+)k(\d+)")
# opcode -> class, where the opcode alone decides
CLASSES = {opcode: kind for kind, opcodes in {
    "logic": "and or xor not cnot lop3 shl shr shf bfe bfi bmsk brev popc clz bfind fns prmt szext",
    "compare, select": "setp set selp slct testp",
    "convert": "cvt", "move, address": "mov cvta isspacep mapa",
    "special function": "rcp sqrt rsqrt sin cos lg2 ex2 tanh div", "warp": "shfl vote match redux activemask elect",
    "control": "bra brx call ret exit trap brkpt nanosleep setmaxnreg griddepcontrol", "barrier": "bar barrier mbarrier",
    "fence": "membar fence",
    "atomic": "atom red", "matrix load, store": "ldmatrix stmatrix movmatrix", "tensor core": "mma wmma wgmma tcgen05"}.items()
    for opcode in opcodes.split()}
ONE_FLOP = frozenset("add sub mul div rcp sqrt rsqrt sin cos lg2 ex2 tanh".split())
REAL = dict(f16="f16", f16x2="f16", bf16="f16", bf16x2="f16", f32="f32", f32x2="f32", f64="f64")


def class_of(ins: Instruction) -> str:
    """The class of an instruction in the mix, such as "FP32" or "load global"."""
    head, parts = ins.parts[0], ins.parts
    if head in ("ld", "ldu", "st"):
        space = next((p.split("::")[0] for p in parts[1:] if p.split("::")[0] in SPACES), "generic")
        return f"{'store' if head == 'st' else 'load'} {space}"
    if head == "cp":
        return "asynchronous copy"
    kind = ins.type.name if ins.type else ""
    if head in CLASSES and not (head == "div" and kind not in REAL):
        return CLASSES[head]
    if kind in REAL:
        return {"f16": "FP16", "f32": "FP32", "f64": "FP64"}[REAL[kind]]
    return "integer" if head in ("add sub mul mad mul24 mad24 sad div rem abs neg min max addc subc madc dp4a dp2a").split() else "other"


def flops_of(ins: Instruction) -> tuple[str, int]:
    """(field, floating-point operations a thread) of an instruction: 2 for a multiply-add, 2 M N K shared by its lanes for a product."""
    head = ins.parts[0]
    if head in ("mma", "wgmma") and (shape := MATRIX.search(ins.mnemonic)):
        m, n, k = map(int, shape.groups())
        return "flops_tensor", 2 * m * n * k // (128 if head == "wgmma" else WARP)
    kind = REAL.get(ins.type.name) if ins.type else None
    if kind is None or head not in ("fma", "mad") and head not in ONE_FLOP:
        return "flops_f32", 0
    return f"flops_{kind}", (2 if head in ("fma", "mad") else 1) * (2 if ins.type.name.endswith("x2") else 1)


@dataclass
class Tally:
    """Counts of one kernel: field -> one number for each instruction of its image; touched: sectors read and written at least once."""

    image: Image
    counts: dict[str, np.ndarray]
    segments: dict[int, list] = field(default_factory=dict)  # first instruction -> [segment, lanes, warps]
    off: dict[int, int] = field(default_factory=dict)  # site -> lanes whose guard was false

    @classmethod
    def of(cls, image: Image) -> "Tally":
        return cls(image, {name: np.zeros(len(image.instructions), np.int64) for name in FIELDS})

    def settled(self) -> dict[str, np.ndarray]:
        """The counts, with those that follow from how often each segment ran."""
        counts = {name: values.copy() for name, values in self.counts.items()}
        threads, warps = counts["thread_instructions"], counts["warp_instructions"]
        for segment, lanes, rows in self.segments.values():
            threads[segment.start:segment.end] += lanes
            warps[segment.start:segment.end] += rows
        for site, lanes in self.off.items():
            threads[site] -= lanes
        for site, ins in enumerate(self.image.instructions):
            if not warps[site]:
                continue
            name, flops = flops_of(ins)
            counts[name][site] += flops * threads[site]
            kind = class_of(ins)
            if kind == "barrier" and ins.parts[0] != "mbarrier":
                counts["barriers"][site] += warps[site]
            if kind == "control" and (ins.predicate is not None or ins.parts[0] == "brx"):
                counts["branches"][site] += warps[site]
        return counts


class Counters(Observer):
    """Counts what a run does.  One object may watch several runs; `reset` starts anew."""

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        self.tallies: dict[int, Tally] = {}
        self._memory = self._chunk = self._tally = None
        self._seen: dict[tuple, tuple] = {}  # (id of a place, …) -> (the place, what was counted for it)
        self._read = self._written = np.zeros(0, bool)
        self._sectors = [0, 0]  # read, written: of memories that are no longer watched
        self._lines_apart = 0  # of the copy whose source was just read

    # -- what the emulator tells

    def begin(self, chunk) -> None:
        if chunk.memory is not self._memory:
            self._sectors = self.sectors_touched()
            self._memory = chunk.memory
            self._read, self._written = (np.zeros(chunk.memory.param_start // SECTOR + 1, bool) for _ in range(2))
        self._chunk = chunk
        if id(chunk.image) not in self.tallies:
            self.tallies[id(chunk.image)] = Tally.of(chunk.image)
        self._tally = self.tallies[id(chunk.image)]

    def segment(self, segment, lanes) -> None:
        self._seen.clear()
        entry = self._tally.segments.setdefault(segment.start, [segment, 0, 0])
        entry[1] += self._chunk.count if lanes is None else len(lanes)
        entry[2] += self._warps(lanes)

    def guarded(self, mask, count: int, site: int) -> None:
        off = count - int(np.count_nonzero(mask)) if mask.ndim else 0 if mask else count
        self._tally.off[site] = self._tally.off.get(site, 0) + off

    def branch(self, segment, lanes, mask) -> None:
        if lanes is None:
            rows = mask.reshape(-1, WARP)
            parted = rows.any(axis=1) & ~rows.all(axis=1)
        else:
            parted = np.zeros((2, self._chunk.warps), bool)
            parted[0, lanes[mask] // WARP] = True
            parted[1, lanes[~mask] // WARP] = True
            parted = parted.all(axis=0)
        self._tally.counts["divergent_branches"][segment.end - 1] += int(np.count_nonzero(parted))

    def barrier(self, number, blocks, going) -> None:
        for site in {entry[2] for entry in going}:
            self._tally.counts["barrier_openings"][site] += len(blocks)

    def access(self, kind, place: Place, offset: int, size: int, site: int) -> None:
        space = place.space
        ins = self._tally.image.instructions[site]
        if space == "param" or ins.has("const"):
            return
        lanes = self._chunk.count if place.lanes is None else len(place.lanes)
        if kind == "atomic":
            self._add("atomics", site, lanes)
            rows = np.sort(rows_of_warps(self._chunk, place, offset, size), axis=1)
            self._add("atomic_collisions", site, lanes - int(np.count_nonzero(distinct(rows))))
        way = "store" if kind in ("store", "copy") or kind == "atomic" and ins.parts[0] == "red" else "load"
        if space == "local":
            self._add("local_bytes", site, lanes * size)
        elif space == "global":
            requests, sectors = self._once((place, "sectors", offset % SECTOR, size), sectors_asked, self._chunk, place, offset, size)
            if ins.parts[:2] == ("cp", "async") and ins.has("ca"):
                self._lines_apart = self._once((place, "lines", offset % LINE), lines_apart, self._chunk, place, offset)
            self._count(f"global_{way}", site, requests=requests, sectors=sectors, bytes=lanes * size)
            if way == "load" or kind == "atomic":
                self._touch(self._read, place, offset, size)
            if way == "store" or kind == "atomic":
                self._touch(self._written, place, offset, size)
        elif space == "shared":
            # adding the same to all addresses turns the banks round and changes no count; a matrix load goes by matrices of eight lanes
            pairs = way == "load" and ins.parts[0] != "ldmatrix"
            found = self._once((place, "banks", pairs, offset % WORD, size), wavefronts, self._chunk, place, offset, size, pairs)
            requests, passes, needed = found
            if kind == "copy":
                needed, self._lines_apart = needed + self._lines_apart, 0
            self._count(f"shared_{way}", site, requests=requests, wavefronts=needed, ideal=passes, bytes=lanes * size)

    def async_read(self, index, size: int, lanes, site: int, copy=None) -> None:
        self._unit(self._read, index, size, site)

    def async_write(self, index, size: int, lanes, site: int, copy) -> None:
        self._unit(self._written, index, size, site)

    # -- how it adds up

    def _unit(self, touched: np.ndarray, index, size: int, site: int) -> None:
        """What TMA moves and wgmma reads: bytes at flat indices, without requests of warps."""
        index = np.atleast_1d(np.asarray(index)).ravel()
        if not len(index) or int(index[0]) >= self._memory.param_start:  # a tile that lies outside altogether moves nothing
            self._add("async_shared_bytes", site, len(index) * size)
            return
        first, last = index // SECTOR, (index + size - 1) // SECTOR
        sectors = np.unique(np.concatenate([np.minimum(first + more, last) for more in range(-(-size // SECTOR) + 1)]))
        touched[sectors] = True
        self._add("async_global_sectors", site, len(sectors))
        self._add("async_global_bytes", site, len(index) * size)

    def _add(self, name: str, site: int, number: int) -> None:
        self._tally.counts[name][site] += number

    def _count(self, prefix: str, site: int, **numbers: int) -> None:
        for name, number in numbers.items():
            self._tally.counts[f"{prefix}_{name}"][site] += number

    def _once(self, key: tuple, function, *arguments):
        """What was counted for a place, whose registers do not change within a segment, is counted once."""
        place, *more = key
        key = (id(place), *more)
        if key not in self._seen:
            self._seen[key] = place, function(*arguments)  # the place is kept, so that its id is not given to another
        return self._seen[key][1]

    def _warps(self, lanes) -> int:
        if lanes is None:
            return self._chunk.warps
        hit = np.zeros(self._chunk.warps, bool)
        hit[lanes // WARP] = True
        return int(np.count_nonzero(hit))

    def _touch(self, touched: np.ndarray, place: Place, offset: int, size: int) -> None:
        start = np.asarray(place.address) + (offset - GLOBAL)
        touched[start // SECTOR] = True
        if size > SECTOR:
            for more in range(1, -(-size // SECTOR)):
                touched[start // SECTOR + more] = True

    # -- what it found

    def sectors_touched(self) -> list[int]:
        """Sectors of global memory that were read, and written, at least once."""
        return [old + int(np.count_nonzero(new)) for old, new in zip(self._sectors, (self._read, self._written))]

    def total(self) -> dict[str, int]:
        """Field -> number over all kernels; `dram_bytes`: 32 for each sector of global memory read, and again for each written, once."""
        total = dict.fromkeys(FIELDS, 0)
        for tally in self.tallies.values():
            for name, values in tally.settled().items():
                total[name] += int(values.sum())
        return total | dict(dram_bytes=SECTOR * sum(self.sectors_touched()))

    def mix(self) -> dict[str, dict[str, int]]:
        """Class of instruction -> thread and warp instructions, the most frequent first."""
        found: dict[str, dict[str, int]] = {}
        for ins, counts in self._instructions():
            entry = found.setdefault(class_of(ins), dict(threads=0, warps=0))
            entry["threads"] += counts["thread_instructions"]
            entry["warps"] += counts["warp_instructions"]
        return dict(sorted(((k, e) for k, e in found.items() if e["warps"]), key=lambda item: -item[1]["warps"]))

    def widths(self, space: str, way: str) -> set[int]:
        """Bytes a lane of the loads or stores of a state space that ran."""
        counts = ((ins, tally.counts[f"{space}_{way}_requests"][site]) for tally in self.tallies.values()
                  for site, ins in enumerate(tally.image.instructions))
        return {ins.type.bytes * int((ins.one_of("v2", "v4", "v8") or "v1")[1:]) for ins, requests in counts
                if requests and ins.parts[0] in ("ld", "st")}

    def lines(self, by_ptx: bool = False) -> dict[tuple[str, int], dict[str, int]]:
        """(file, line) of the kernel's own source -> counts; what was inlined counts where it was called.  by_ptx: ("", PTX line)."""
        found: dict[tuple[str, int], dict[str, int]] = {}
        for ins, counts in self._instructions():
            place: Location | None = ins.location.outermost if ins.location else None
            key = ("", ins.ptx_line) if by_ptx else (place.file, place.line) if place else ("", 0)
            entry = found.setdefault(key, dict.fromkeys(FIELDS, 0))
            for name, number in counts.items():
                entry[name] += number
        return {key: entry for key, entry in sorted(found.items()) if entry["warp_instructions"]}

    def _instructions(self) -> Iterator[tuple[Instruction, dict[str, int]]]:
        for tally in self.tallies.values():
            counts = {name: values.tolist() for name, values in tally.settled().items()}
            for site, ins in enumerate(tally.image.instructions):
                yield ins, {name: values[site] for name, values in counts.items()}


def rows_of_warps(chunk, place: Place, offset: int, unit: int) -> np.ndarray:
    """Which units of `unit` bytes the lanes ask for, in rows of warps; -1 for lanes that ask for nothing."""
    units = (np.asarray(place.address) + offset) // unit
    if place.lanes is None:
        return np.broadcast_to(units, chunk.count).reshape(-1, WARP)
    rows = np.full((chunk.warps, WARP), -1, np.int64)
    rows.reshape(-1)[place.lanes] = units
    return rows[(rows >= 0).any(axis=1)]


def sectors_asked(chunk, place: Place, offset: int, size: int) -> tuple[int, int]:
    """(requests, sectors) of an access to global memory."""
    unit = max(size, SECTOR)
    rows = rows_of_warps(chunk, place, offset, unit)
    return len(rows), int(np.count_nonzero(distinct(np.sort(rows, axis=1)))) * (unit // SECTOR)


def lines_apart(chunk, place: Place, offset: int) -> int:
    """Lines beyond the first that each warp reads, over all warps."""
    rows = rows_of_warps(chunk, place, offset, LINE)
    return int(np.count_nonzero(distinct(np.sort(rows, axis=1)))) - len(rows)


def distinct(rows: np.ndarray) -> np.ndarray:
    """Marks, in rows that are sorted, the first of each value of at least 0."""
    first = np.empty(rows.shape, bool)
    first[:, 0] = rows[:, 0] >= 0
    np.not_equal(rows[:, 1:], rows[:, :-1], out=first[:, 1:])
    return first


def wavefronts(chunk, place: Place, offset: int, size: int, pairs: bool) -> tuple[int, int, int]:
    """(requests, passes, wavefronts) of an access to shared memory, by the rule above.  pairs: lanes that ask for the same in pairs save
    passes."""
    unit = max(size, WORD)
    rows = rows_of_warps(chunk, place, offset, unit)  # aligned accesses of one size meet in all their banks or in none
    groups = max(1, unit // WORD)  # into which hardware splits a warp: 1, 2, 4
    passes = needed = 0
    paired = in_pairs(rows) if pairs and groups > 1 else np.zeros(len(rows), bool)
    for some, parts in ((rows[~paired], groups), (rows[paired], max(1, groups // 2))):
        if len(some):
            pieces = some.reshape(len(some) * parts, WARP // parts)
            deepest = depth(pieces, BANKS * WORD // unit)
            passes += int(np.count_nonzero(deepest))
            needed += int(deepest.sum())
    return len(rows), passes, needed


def in_pairs(rows: np.ndarray) -> np.ndarray:
    """For each warp: does every active lane i ask for the same as lane i^1, or every one for the same as i^2?"""
    lane = np.arange(WARP)
    found = np.zeros(len(rows), bool)
    for step in (1, 2):
        other = rows[:, lane ^ step]
        found |= ((rows == other) | (rows < 0) | (other < 0)).all(axis=1)
    return found


def depth(rows: np.ndarray, slots: int) -> np.ndarray:
    """For each row the largest number of distinct units that lie in one of `slots` (a unit u in u mod slots); 0 where there is none."""
    ordered = np.sort(np.where(rows >= 0, rows % slots << 40 | rows, -1), axis=1)
    first = distinct(ordered)
    where = (np.arange(len(rows))[:, None] * slots + (ordered >> 40))[first]
    return np.bincount(where, minlength=len(rows) * slots).reshape(len(rows), slots).max(axis=1)


def derived(counts: Mapping[str, int]) -> dict[str, float | None]:
    """What one reads off the counts: None where there is nothing to divide by."""
    def over(a, b):
        return a / b if b else None
    flops = sum(counts[f"flops_{kind}"] for kind in ("f16", "f32", "f64", "tensor"))
    global_bytes = counts["global_load_bytes"] + counts["global_store_bytes"] + counts["async_global_bytes"]
    shared_bytes = counts["shared_load_bytes"] + counts["shared_store_bytes"] + counts["async_shared_bytes"]
    asked = counts["global_load_sectors"] + counts["global_store_sectors"]
    sectors = asked + counts["async_global_sectors"]
    requests = counts["global_load_requests"] + counts["global_store_requests"]
    return dict(flops=flops, threads_per_warp=over(counts["thread_instructions"], counts["warp_instructions"]),
                sectors_per_request=over(asked, requests), sector_use=over(global_bytes, SECTOR * sectors),
                shared_excess=sum(counts[f"shared_{way}_wavefronts"] - counts[f"shared_{way}_ideal"] for way in ("load", "store")),
                global_bytes=global_bytes, sector_bytes=SECTOR * sectors, shared_bytes=shared_bytes,
                intensity_sectors=over(flops, SECTOR * sectors), intensity_dram=over(flops, counts.get("dram_bytes", 0)))
