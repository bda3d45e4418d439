"""Matrix multiplication by warpgroups.  PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions: wgmma.mma_async,
wgmma.fence, wgmma.commit_group, wgmma.wait_group", "Register Fragments and Shared Memory Matrix Layouts", "Matrix Descriptor Format".

Each instruction multiplies 64 rows of A by N columns of B, 32 bytes deep.  Products and their sum with the accumulator are float64,
rounded once to the accumulator's type.  Results are there at once; what hardware leaves undefined until wgmma.wait_group is told to
observers (registers, async_read and their ends), and operands in shared memory that change before the wait are an error.
"""

import functools
from dataclasses import dataclass

import numpy as np

from cudalab.emulator.errors import PtxError
from cudalab.emulator.elements import elements
from cudalab.emulator.memory import COPIED_WHOLE
from cudalab.emulator.program import Immediate, Vector
from cudalab.emulator.segments import registers_of
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.taking_part import participants
from cudalab.emulator.tensor_maps import swizzled

GROUP = 128  # lanes of a warpgroup
ROWS, DEPTH = 64, 32  # of A: rows, and bytes of a row
CHUNK = 16
PAIRS = (("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32"), *((a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
         *((a, b) for a in ("s8", "u8") for b in ("s8", "u8")))
ACCUMULATORS = dict(f16=("f16", "f32"), bf16=("f32",), tf32=("f32",), e4m3=("f16", "f32"), e5m2=("f16", "f32"), s8=("s32",), u8=("s32",))
SWIZZLES = (0, 128, 64, 32)  # by bits 62, 63 of a descriptor


# -- operands in shared memory


@functools.lru_cache(maxsize=512)
def layout(descriptor: int, rows: int, transposed: bool) -> np.ndarray:
    """Where the matrix that a descriptor names lies, as offsets in the block's shared memory of each 16 bytes.

    K-major: (rows, 2), the two 16 bytes of each row.  Transposed (M- or N-major, elements of 16 bits): (k, rows // 8), for each k the
    16 bytes of eight neighbouring rows.  PTX ISA, "Strides", "Canonical Layouts", "Matrix Descriptor Format".
    """
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    width = SWIZZLES[descriptor >> 62]
    if not transposed:
        row, part = np.arange(rows)[:, None], np.arange(2)
        if width:
            address = start + row // 8 * stride + row % 8 * width + part * CHUNK
        else:
            address = start + row // 8 * stride + row % 8 * CHUNK + part * leading
    else:
        k, eight = np.arange(DEPTH // 2)[:, None], np.arange(rows // 8)
        if width:
            across = width // CHUNK  # groups of eight in a row of the swizzle
            address = start + eight // across * leading + eight % across * CHUNK + k % 8 * width + k // 8 * stride
        else:
            address = start + eight * stride + k % 8 * CHUNK + k // 8 * leading
    return swizzled(address, width)


def bits(name: str) -> int:
    return dict(f16=16, bf16=16, tf32=32).get(name, 8)


@dataclass
class Matrix:
    """An operand of several warpgroups: for each the flat index of each 16 bytes, and which values they are."""

    index: np.ndarray
    name: str
    transposed: bool

    def raw(self, memory) -> np.ndarray:
        return memory.view(COPIED_WHOLE[CHUNK]).take(self.index >> 4)

    def values(self, raw: np.ndarray) -> np.ndarray:
        """(warpgroup, row, k) as float64."""
        values = elements(np.ascontiguousarray(raw).view(np.uint8).reshape(len(raw), raw.shape[1], -1), self.name)
        return values.transpose(0, 2, 1) if self.transposed else values


def operand(chunk, firsts, descriptors, rows, name, transposed, site) -> Matrix:
    """The operand that each warpgroup's descriptor names.  firsts: the warpgroups' first lanes."""
    memory = chunk.memory
    base = np.broadcast_to(chunk.shared_base(firsts), len(firsts))
    unique = np.unique(descriptors)
    patterns = []
    for descriptor in unique.tolist():
        lane = int(firsts[np.argmax(descriptors == descriptor)])
        if descriptor >> 49 & 7:
            raise chunk.fault(lane, site, "a matrix descriptor with a base offset, which is not supported: begin tiles where swizzles do")
        pattern = layout(descriptor, rows, transposed)
        if pattern.max() + CHUNK > memory.limits["shared"]:
            raise chunk.fault(lane, site, f"wgmma reads 16 bytes at {memory.name_address('shared', int(pattern.max()))}, out of bounds")
        patterns.append(pattern)
    if len(unique) == 1:
        index = base[:, None, None] + patterns[0]
    else:
        index = base[:, None, None] + np.stack(patterns)[np.searchsorted(unique, descriptors)]
    return Matrix(index, name, transposed)


# -- products


@dataclass
class Product:
    """A multiplication not waited for: the warpgroups' first lanes, the group it is in for each, its operands and their bytes."""

    firsts: np.ndarray
    groups: np.ndarray
    operands: list[Matrix]
    raws: list[np.ndarray]
    site: int


class Products:
    """The multiplications of a chunk not waited for yet.  committed: per lane (the first of a warpgroup counts), groups closed."""

    def __init__(self, chunk):
        self.chunk = chunk
        self.pending: list[Product] = []
        self.committed = np.zeros(chunk.count, np.int64)

    def wait(self, firsts, pending: int, site: int) -> None:
        chunk, kept, sites = self.chunk, [], []
        waits = np.zeros(chunk.count, bool)
        waits[firsts] = True
        for product in self.pending:
            done = waits[product.firsts] & (product.groups < self.committed[product.firsts] - pending)
            if done.any():
                sites.append(product.site)
                self._end(product, done, site)
            if not done.all():
                stays = ~done
                kept.append(Product(product.firsts[stays], product.groups[stays],
                                    [Matrix(m.index[stays], m.name, m.transposed) for m in product.operands],
                                    [raw[stays] for raw in product.raws], product.site))
        self.pending = kept
        for observer in chunk.observers:
            observer.registers_done((firsts[:, None] + np.arange(GROUP)).reshape(-1), tuple(sites), site)

    def _end(self, product: Product, done, site: int) -> None:
        chunk = self.chunk
        for matrix, raw in zip(product.operands, product.raws):
            now = matrix.raw(chunk.memory)
            same = (now.view(np.uint64) == raw.view(np.uint64)).reshape(len(raw), -1).all(axis=1)
            if (~same & done).any():
                lane = int(product.firsts[np.argmax(~same & done)])
                raise chunk.fault(lane, site, f"shared memory has changed that wgmma at {chunk.where(product.site)} was still to read")
            for observer in chunk.observers:
                for first, index in zip(product.firsts[done], matrix.index[done]):
                    observer.async_read_done(index.reshape(-1), CHUNK, np.array([first]), site)


def products_of(chunk) -> Products:
    if not hasattr(chunk, "products"):
        chunk.products = Products(chunk)
    return chunk.products


@runtime
def whole_warpgroups(chunk, lanes, count, mask, site):
    """The first lanes of the warpgroups that execute an instruction; raises unless they are whole and agree on its guard."""
    who, _ = participants(chunk, lanes, count, mask)
    firsts = who[::GROUP]
    whole = len(who) % GROUP == 0 and (who[GROUP - 1::GROUP] - firsts == GROUP - 1).all() and (firsts % chunk.width % GROUP == 0).all()
    if not whole:
        raise chunk.fault(int(who[0]), site, "an instruction for a warpgroup that not all of its 128 threads execute")
    return firsts


@instruction("wgmma.fence.sync", modifiers="aligned", writes=0, collective=GROUP)
def fence(code, ins):
    code.line(f"whole_warpgroups(chunk, lanes, count, {code.mask}, {code.site})")
    if code.watched:
        code.line(f"chunk.fence({ins.mnemonic!r}, lanes, {code.site})")


@instruction("wgmma.commit_group.sync", modifiers="aligned", writes=0, collective=GROUP)
def commit_group(code, ins):
    code.line(f"wgmma_commit(chunk, whole_warpgroups(chunk, lanes, count, {code.mask}, {code.site}))")


@runtime
def wgmma_commit(chunk, firsts):
    products_of(chunk).committed[firsts] += 1


@instruction("wgmma.wait_group.sync", modifiers="aligned", writes=0, collective=GROUP)
def wait_group(code, ins):
    code.line(f"wgmma_wait(chunk, whole_warpgroups(chunk, lanes, count, {code.mask}, {code.site}), {ins.operands[0].value}, {code.site})")


@runtime
def wgmma_wait(chunk, firsts, pending, site):
    products_of(chunk).wait(firsts, pending, site)


@instruction("wgmma.mma_async.sync", modifiers="aligned m64n*k* satfinite", types="f16 bf16 tf32 e4m3 e5m2 s8 u8", updates=True,
             collective=GROUP)
def mma_async(code, ins):
    target, a, b, *scales = ins.operands
    shape = next(part for part in ins.parts if part.startswith("m64n"))
    columns, depth = (int(n) for n in shape[4:].split("k"))
    if len(ins.types) != 3:
        raise PtxError(f"this form of wgmma is not supported: {ins}")
    kind, one, other = (t.name for t in ins.types)
    sixteen = bits(one) == 16
    from_registers = isinstance(a, Vector)
    wanted = 1 + 2 * (one not in ("s8", "u8")) + sixteen * (2 - from_registers)  # scale-d, scales of A and B, transpositions
    if (one, other) not in PAIRS or kind not in ACCUMULATORS[one] or depth != DEPTH * 8 // bits(one) or columns % 8 or \
            not 8 <= columns <= 256 or len(scales) != wanted or not isinstance(target, Vector):
        raise PtxError(f"this form of wgmma is not supported: {ins}")
    words = columns // (4 if kind == "f16" else 2)
    if len(target.items) != words or from_registers and len(a.items) != 4:
        raise PtxError(f"wgmma with {len(target.items)} registers of results where {words} are due: {ins}")
    scale_d, *immediates = scales
    if not all(isinstance(i, Immediate) for i in immediates):
        raise PtxError(f"wgmma with a scale or transposition that is no constant: {ins}")
    fixed = [i.value for i in immediates]
    signs = fixed[0] * fixed[1] if len(fixed) > 1 else 1
    across = ([0] if from_registers else []) + fixed[2:] if sixteen else [0, 0]
    if abs(signs) != 1 or any(t not in (0, 1) for t in across):
        raise PtxError(f"wgmma scales by 1 or -1 and transposes or not: {ins}")
    held = dict(f16="b32", f32="f32", s32="s32")[kind]
    before = code.notes.pop(("chain", code.site), None) or f"({', '.join(code.value(item, held) for item in target.items)},)"
    following = chained(code, ins)
    first = f"({', '.join(code.value(item, 'b32') for item in a.items)},)" if from_registers else code.value(a, "b64")
    accumulate = code.constant(np.bool_(scale_d.value)) if isinstance(scale_d, Immediate) else code.value(scale_d, "pred")
    slots = tuple(code.image.slot(item) for item in (*target.items, *(a.items if from_registers else ())))
    form = code.constant((kind, one, other, columns, signs, bool(across[0]), bool(across[1]), ins.has("satfinite"), slots))
    result = code.temp(f"multiply(chunk, lanes, count, {code.mask}, {code.site}, {form}, {before}, {first}, {code.value(b, 'b64')}, "
                       f"{accumulate}, {following is None})")
    if following is not None:
        code.notes["chain", following] = result
        return
    for number, item in enumerate(target.items):
        code.assign(item, f"{result}[{number}]", held, number=kind == "f32")


def chained(code, ins) -> int | None:
    """The number of the next instruction that accumulates into the same registers, if nothing touches them before: its results need no
    detour through registers."""
    target = set(ins.operands[0].items)
    if ins.predicate is not None:
        return None
    for site in range(code.site + 1, code.segment.end):
        other = code.image.instructions[site]
        if other.mnemonic == ins.mnemonic and other.predicate is None and other.operands[0] == ins.operands[0]:
            rest = {register for operand in other.operands[1:] for register in registers_of(operand)}
            return None if rest & target else site
        if target & {register for operand in other.operands for register in registers_of(operand)}:
            return None
    return None


@runtime
def multiply(chunk, lanes, count, mask, site, form, before, a, b, accumulate, scatter):
    """The registers of the results (lanes that the guard keeps out get anything); not scatter: as `before` of the next instruction.

    before: the registers, or what that one left.
    """
    kind, one, other, columns, sign, a_across, b_across, saturate, slots = form
    if mask is not None and not np.any(mask):
        return [np.zeros(count, held.dtype) for held in before]
    firsts = whole_warpgroups(chunk, lanes, count, mask, site)
    positions = None if mask is None else np.broadcast_to(mask, count).nonzero()[0]

    def rows(value):
        """A register as (warpgroup, lane)."""
        value = np.broadcast_to(value, count)
        return (value if positions is None else value[positions]).reshape(-1, GROUP)

    def uniform(value, what):
        each = rows(value)
        if (each != each[:, :1]).any():
            at = np.argwhere(each != each[:, :1])[0]
            raise chunk.fault(int(firsts[at[0]] + at[1]), site, f"{what} that is not the same in all lanes of the warpgroup")
        return each[:, 0]

    memory = chunk.memory
    operands = []
    if isinstance(a, tuple):
        left = elements(fragment([rows(word) for word in a]), one)
    else:
        operands.append(operand(chunk, firsts, uniform(a, "a descriptor"), ROWS, one, a_across, site))
    operands.append(operand(chunk, firsts, uniform(b, "a descriptor"), columns, other, b_across, site))
    raws = [matrix.raw(memory) for matrix in operands]
    if not isinstance(a, tuple):
        left = operands[0].values(raws[0])
    if sign < 0:
        left = -left
    keep, old = uniform(accumulate, "a scale of the accumulator"), 0.0
    if keep.any():
        old = before if isinstance(before, np.ndarray) else gather([rows(word) for word in before], kind)
        old = old if keep.all() else np.where(keep[:, None, None], old, old.dtype.type(0))
    right = operands[-1].values(raws[-1]).transpose(0, 2, 1)
    if kind == "s32":
        total = whole_sum(np.matmul(left, right) + old, saturate)
    else:
        total = chunk.accumulator.multiply_add("wgmma", (one, other), left, right, old, kind)
    products = products_of(chunk)
    products.pending.append(Product(firsts, products.committed[firsts], operands, raws, site))
    for observer in chunk.observers:
        observer.registers(slots, (firsts[:, None] + np.arange(GROUP)).reshape(-1), site)
        for matrix in operands:
            for first, index in zip(firsts, matrix.index):
                observer.async_read(index.reshape(-1), CHUNK, np.array([first]), site)
    if not scatter:
        return total
    result = to_registers(total, kind)
    if positions is None:
        return list(result)
    whole = np.zeros((len(result), count), result.dtype)
    whole[:, positions] = result
    return list(whole)


def fragment(words: list[np.ndarray]) -> np.ndarray:
    """A in registers as bytes (warpgroup, row, byte): word r of lane 4g+t of warp w is bytes 16(r/2)+4t.. of row 16w + g + 8(r%2)."""
    stacked = np.stack(words, axis=-1).reshape(-1, 4, 8, 4, 2, 2)  # group, warp, g, t, r / 2, r % 2
    return np.ascontiguousarray(stacked.transpose(0, 1, 5, 2, 4, 3)).reshape(-1, ROWS, DEPTH // 4).view(np.uint8)


# Accumulators: register 4j+2h+e (f16: half e of register 2j+h) of lane 4g+t of warp w is row 16w+8h+g, column 8j+2t+e.


def gather(words: list[np.ndarray], kind: str) -> np.ndarray:
    """Registers, each (warpgroup, lane), as (warpgroup, row, column)."""
    stacked = np.stack(words)
    if kind == "f16":
        order = stacked.view(np.float16).reshape(-1, 2, len(stacked[0]), 4, 8, 4, 2).transpose(2, 3, 1, 4, 0, 5, 6)
    else:
        order = stacked.reshape(-1, 2, 2, len(stacked[0]), 4, 8, 4).transpose(3, 4, 1, 5, 0, 6, 2)
    return order.reshape(len(stacked[0]), ROWS, -1)


def to_registers(tile: np.ndarray, kind: str) -> np.ndarray:
    """The other way: (register, lane)."""
    order = tile.reshape(len(tile), 4, 2, 8, tile.shape[2] // 8, 4, 2)
    if kind == "f16":
        return np.ascontiguousarray(order.transpose(4, 2, 0, 1, 3, 5, 6)).view(np.uint32).reshape(tile.shape[2] // 4, -1)
    return order.transpose(4, 2, 6, 0, 1, 3, 5).reshape(tile.shape[2] // 2, -1)


def whole_sum(total: np.ndarray, saturate: bool) -> np.ndarray:
    """An exact sum as s32, at its limits or wrapped around."""
    return np.clip(total, -2.0**31, 2.0**31 - 1).astype(np.int32) if saturate else total.astype(np.int64).astype(np.int32)
