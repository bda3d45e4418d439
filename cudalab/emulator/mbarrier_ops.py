"""The instructions on barriers in shared memory: see mbarrier.py.  PTX ISA, "Parallel Synchronization and Communication Instructions:
mbarrier.init, .inval, .expect_tx, .complete_tx, .arrive, .arrive_drop, .test_wait, .try_wait, .pending_count, cp.async.mbarrier.arrive".
"""

import numpy as np

from cudalab.emulator.mbarrier import BYTES, MOST
from cudalab.emulator.memory_ops import space_of
from cudalab.emulator.program import Sink
from cudalab.emulator.table import instruction, runtime
from cudalab.emulator.taking_part import indices, participants, values_of

SPACES = "shared shared::cta shared::cluster"
ORDER = "release acquire relaxed cta cluster"


def _call(code, ins, name: str, address, *values: str) -> str:
    place, offset = code.place(address, space_of(code, ins, address))
    return f"{name}(chunk, {', '.join([place, str(offset), 'lanes', 'count', str(code.mask), str(code.site), *values])})"


@instruction("mbarrier.init", types="b64", modifiers=SPACES, writes=0)
def init(code, ins):
    address, count = ins.operands
    code.line(_call(code, ins, "mbarrier_init", address, code.value(count, "u32")))


@runtime
def mbarrier_init(chunk, place, offset, lanes, count, mask, site, counts):
    who, positions = participants(chunk, lanes, count, mask)
    if len(who):
        index = indices(chunk.memory, place, offset, count, positions, BYTES, "an mbarrier", site)
        chunk.waiters["mbarrier"].init(index, who, values_of(counts, count, positions), site)


@instruction("mbarrier.inval", types="b64", modifiers=SPACES, writes=0)
def inval(code, ins):
    code.line(_call(code, ins, "mbarrier_inval", ins.operands[0]))


@runtime
def mbarrier_inval(chunk, place, offset, lanes, count, mask, site):
    who, positions = participants(chunk, lanes, count, mask)
    if len(who):
        index = indices(chunk.memory, place, offset, count, positions, BYTES, "an mbarrier", site)
        chunk.waiters["mbarrier"].invalidate(index, who, site)


@instruction("mbarrier.arrive", "mbarrier.arrive_drop", types="b64", modifiers=f"{SPACES} {ORDER} expect_tx noComplete")
def arrive(code, ins):
    state, address, *count = ins.operands
    counts = code.value(count[0], "u32") if count else "None"
    call = _call(code, ins, "mbarrier_arrive", address, counts, str(ins.has("expect_tx")), str(not ins.has("noComplete")),
                 str(ins.parts[1] == "arrive_drop"), str(not ins.has("relaxed")))
    if isinstance(state, Sink):
        code.line(call)
    else:
        code.assign(state, call, "b64")


@runtime
def mbarrier_arrive(chunk, place, offset, lanes, count, mask, site, number, expects, complete, drop, releases):
    """number: arrivals, with `expects` bytes to expect."""
    states = np.zeros(count, np.uint64)
    who, positions = participants(chunk, lanes, count, mask)
    if len(who):
        index = indices(chunk.memory, place, offset, count, positions, BYTES, "an mbarrier", site)
        given = None if number is None else values_of(number, count, positions)
        counts = np.ones(len(who), np.int64) if expects or given is None else given
        found = chunk.waiters["mbarrier"].count(index, who, counts, given if expects else None, site, complete, drop, releases)
        states[slice(None) if positions is None else positions] = found
    return states


@instruction("mbarrier.expect_tx", types="b64", modifiers=f"{SPACES} {ORDER}", writes=0)
def expect_tx(code, ins):
    code.line(_call(code, ins, "mbarrier_bytes", ins.operands[0], code.value(ins.operands[1], "u32"), "True"))


@instruction("mbarrier.complete_tx", types="b64", modifiers=f"{SPACES} {ORDER}", writes=0)
def complete_tx(code, ins):
    code.line(_call(code, ins, "mbarrier_bytes", ins.operands[0], code.value(ins.operands[1], "u32"), "False"))


@runtime
def mbarrier_bytes(chunk, place, offset, lanes, count, mask, site, tx, expects):
    who, positions = participants(chunk, lanes, count, mask)
    if len(who):
        index = indices(chunk.memory, place, offset, count, positions, BYTES, "an mbarrier", site)
        barriers = chunk.waiters["mbarrier"]
        tx = values_of(tx, count, positions)
        barriers.expect(index, who, tx if expects else -tx, site)


@instruction("mbarrier.pending_count", types="b64")
def pending_count(code, ins):
    target, state = ins.operands
    code.assign(target, f"({code.value(state, 'b64')} & {code.constant(np.uint64(MOST))}).astype(u4)", "b32")


@instruction("mbarrier.try_wait", types="b64", modifiers=f"{SPACES} {ORDER} parity", waits="mbarrier")
def try_wait(code, ins):
    """A time limit, if there is one, is not kept: a wait ends when the phase does."""
    target, address, wanted, *limit = ins.operands
    place, offset = code.place(address, space_of(code, ins, address))
    slot = None if isinstance(target, Sink) else code.image.slot(target)
    parity = ins.has("parity")
    value = code.value(wanted, "u32" if parity else "b64")
    index = code.temp(f"barrier_index(chunk, {place}, {offset}, count, {code.mask}, {code.site})")
    code.result = (f"Wait('mbarrier', ({index}, {value}, {parity}, {not ins.has('relaxed')}, {slot}), {code.mask}, {code.site + 1}, "
                   f"{code.site})")


@runtime
def barrier_index(chunk, place, offset, count, mask, site):
    """The flat index of each lane's barrier; 0 where the guard keeps a lane out."""
    if mask is None:
        return indices(chunk.memory, place, offset, count, None, BYTES, "an mbarrier", site)
    positions = np.broadcast_to(mask, count).nonzero()[0]
    index = np.zeros(count, np.int64)
    if len(positions):
        index[positions] = indices(chunk.memory, place, offset, count, positions, BYTES, "an mbarrier", site)
    return index


@instruction("mbarrier.test_wait", types="b64", modifiers=f"{SPACES} {ORDER} parity")
def test_wait(code, ins):
    target, address, wanted = ins.operands
    parity = ins.has("parity")
    code.assign(target, _call(code, ins, "mbarrier_test", address, code.value(wanted, "u32" if parity else "b64"), str(parity),
                                     str(not ins.has("relaxed"))), "pred")


@runtime
def mbarrier_test(chunk, place, offset, lanes, count, mask, site, wanted, parity, acquires):
    """Is the phase over?  If not, what is on its way to the barrier arrives, for the next time."""
    result = np.zeros(count, bool)
    who, positions = participants(chunk, lanes, count, mask)
    if len(who):
        index = indices(chunk.memory, place, offset, count, positions, BYTES, "an mbarrier", site)
        result[slice(None) if positions is None else positions] = chunk.waiters["mbarrier"].test(
            index, who, values_of(wanted, count, positions), parity, acquires, site)
    return result


@instruction("cp.async.mbarrier.arrive", types="b64", modifiers=f"{SPACES} noinc", writes=0)
def cp_async_arrive(code, ins):
    code.line(_call(code, ins, "mbarrier_after_copies", ins.operands[0], str(ins.has("noinc"))))


@runtime
def mbarrier_after_copies(chunk, place, offset, lanes, count, mask, site, counted):
    """An arrival once the lane's cp.async so far have arrived; counted: among those that the barrier expects already (.noinc)."""
    who, positions = participants(chunk, lanes, count, mask)
    if len(who):
        index = indices(chunk.memory, place, offset, count, positions, BYTES, "an mbarrier", site)
        barriers = chunk.waiters["mbarrier"]
        if not counted:
            barriers.raise_pending(index, who, site)
        chunk.waiters["transfers"].after_copies(index, who, site)
