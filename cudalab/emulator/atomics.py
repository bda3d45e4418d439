"""Atomics.  PTX ISA, "Parallel Synchronization and Communication Instructions: atom, red".

Lanes that meet at an address go one after the other, in the order of their numbers: one of the orders that hardware may take.
"""

import numpy as np

from cudalab.emulator.errors import PtxError
from cudalab.emulator.formats import decode, encode
from cudalab.emulator.half import half_extreme
from cudalab.emulator.memory_ops import CACHE, ORDER, WHERE, space_of
from cudalab.emulator.program import Vector
from cudalab.emulator.rounding import canonical, flush
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.types import TYPES

OPERATIONS = "and or xor cas exch add inc dec min max"
FEW = 24  # meetings at one address up to which all addresses are served in rounds
INTEGER = {"add": np.add, "min": np.minimum, "max": np.maximum, "xor": np.bitwise_xor, "and": np.bitwise_and, "or": np.bitwise_or}
ATOMIC_TYPES = "b16 b32 b64 b128 u32 s32 u64 s64 f32 f64 f16 f16x2 bf16 bf16x2"


@instruction("atom", types=ATOMIC_TYPES, modifiers=f"{OPERATIONS} {ORDER} acq_rel noftz v2 v4 v8 {CACHE} {WHERE}")
def atom(code, ins):
    target, address, *values = ins.operands
    _atomic(code, ins, target, address, values)


@instruction("red", types=ATOMIC_TYPES, modifiers=f"{OPERATIONS} {ORDER} acq_rel noftz v2 v4 v8 {CACHE} {WHERE}", writes=0)
def red(code, ins):
    address, *values = ins.operands
    _atomic(code, ins, None, address, values)


def _atomic(code, ins, target, address, values):
    operation = ins.one_of(*OPERATIONS.split())
    if operation is None or ins.has("local") or ins.has("const"):
        raise PtxError(f"this form of an atomic is not supported: {ins}")
    values = values[:2 if operation == "cas" else 1]  # a cache policy may follow
    place, offset = code.place(address, space_of(code, ins, address))
    kind = ins.type if ins.type.name not in ("f16", "bf16") else TYPES[f"b{ins.type.bits}"]
    vector = isinstance(values[0], Vector)
    items = values[0].items if vector else (None,)
    for number, item in enumerate(items):
        given = [item] if vector else values
        arguments = ", ".join(code.value(v, kind) for v in given)
        call = (f"atomic(memory, {place}, {offset + number * kind.bytes}, {operation!r}, {ins.type.name!r}, ({arguments},), "
                f"{target is not None}, count, {code.mask}, {code.site})")
        into = target.items[number] if vector and target is not None else target
        if into is None:
            code.line(call)
        else:
            code.assign(into, call, kind)


@runtime
def atomic(memory, place, offset, operation, name, values, wanted, count, mask, site):
    """Do it; the values found before, if wanted."""
    dtype = TYPES[name].dtype if name not in ("f16",) else np.dtype(np.uint16)
    found = np.zeros(count, dtype) if wanted else None
    pieces = list(place.parts) or [(np.arange(count), place)]
    for positions, part in pieces:
        if mask is not None:
            kept = np.broadcast_to(mask, count)[positions].nonzero()[0]
            if not len(kept):
                continue
            if isinstance(part.index, int):
                lanes = part.lanes
                part = type(part)(part.space, np.full(len(positions), part.address), np.full(len(positions), part.index), lanes)
            positions, part = positions[kept], part.only(kept, len(positions))
        size = dtype.itemsize
        memory.check(part, offset, size, "atomic", site)
        if memory.observers or memory.flights:
            memory.observe("atomic", part, offset, size, site)
        index = np.broadcast_to((np.asarray(part.index) + offset) // size, len(positions))
        given = tuple(np.broadcast_to(v, count)[positions] for v in values)
        view, touched = memory.view(dtype), np.unique(index)
        held = view[touched]
        before = _apply(view, index, operation, name, given, wanted, part.space)
        memory.changes += view[touched].tobytes() != held.tobytes()
        if wanted:
            found[positions] = before
    return found


def _apply(view, index, operation, name, values, wanted, space):
    combine = combination(operation, name, space)
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]].nonzero()[0]
    counts = np.diff(np.r_[first, len(ordered)])
    before = np.empty(len(index), view.dtype) if wanted else None
    if counts.max() <= FEW:
        rank = np.empty(len(index), np.int64)
        rank[order] = np.arange(len(index)) - np.repeat(first, counts)
        for turn in range(int(counts.max())):
            some = (rank == turn).nonzero()[0]
            old = view[index[some]]
            if wanted:
                before[some] = old
            view[index[some]] = combine(old, *(v[some] for v in values))
        return before
    for start, number in zip(first.tolist(), counts.tolist()):
        some = order[start:start + number]
        at = index[some[0]]
        chain = _chain(view[at], [v[some] for v in values], operation, name, combine)
        if wanted:
            before[some] = chain[:-1]
        view[at] = chain[-1]
    return before


def _chain(start, values, operation, name, combine):
    """What lies at one address before each of many lanes, and at the end."""
    if operation == "exch":
        return np.r_[start, values[0]]
    if operation == "cas":
        return _chain_of_cas(start, *values)
    function = INTEGER.get(operation)
    if function is not None and TYPES[name].kind not in ("float", "packed"):
        return function.accumulate(np.r_[start, values[0]], dtype=values[0].dtype)
    if operation == "add" and name == "f64":
        return np.add.accumulate(np.r_[start, values[0]])
    if operation == "add" and name == "f32":
        chain = np.add.accumulate(np.r_[start, values[0]])
        tiny = np.abs(chain) < np.float32(2.0**-126)
        if not (tiny & (chain != 0)).any() and not (np.abs(values[0]) < np.float32(2.0**-126)).any():
            return canonical(chain)
    chain = [start]
    for lane in zip(*values):
        chain.append(combine(chain[-1], *lane))
    return np.array(chain, values[0].dtype)


def _chain_of_cas(start, compare, new):
    """The same for compare-and-swap: nothing changes between lanes that find what they compare with."""
    chain, at = np.full(len(compare) + 1, start), 0
    while at < len(compare) and (found := compare[at:] == chain[at]).any():
        at += int(np.argmax(found)) + 1
        chain[at:] = new[at - 1]
    return chain


def combination(operation, name, space):
    """What an atomic makes of the old value and its operands."""
    real = name in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
    if operation == "cas":
        return lambda old, compare, new: np.where(old == compare, new, old)[()]
    if operation == "exch":
        return lambda old, new: new
    if not real:
        kind = TYPES[name].dtype.type
        return dict(add=lambda old, v: old + v, min=np.minimum, max=np.maximum,
                    inc=lambda old, v: np.where(old >= v, kind(0), old + kind(1))[()],
                    dec=lambda old, v: np.where((old == 0) | (old > v), v, old - kind(1))[()],
                    **{name: INTEGER[name] for name in ("xor", "and", "or")})[operation]
    if name == "f32" and operation == "add":
        if space == "global":  # flushes subnormals; shared memory does not
            return lambda old, v: canonical(flush(own(flush(old) + flush(v))))
        return lambda old, v: canonical(own(old + v))
    function = dict(add=np.add, min=np.fmin, max=np.fmax)[operation]
    if name in ("f32", "f64"):
        return function
    form = name.removesuffix("x2")
    if operation != "add":
        return lambda old, v: half_extreme(operation, form, False, False, False, old, v)
    return lambda old, v: _small(function, old, v, form)


def own(value):
    return np.array(value)[()] if not np.ndim(value) else value


def _small(function, old, value, form):
    dtype = np.asarray(old).dtype
    one, other = (np.ascontiguousarray(np.atleast_1d(x)).view(np.uint16) for x in (old, value))
    result = np.asarray(encode(function(decode(one, form), decode(other, form)), form)).view(dtype)
    return result if np.ndim(old) else result[0]
