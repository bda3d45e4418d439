"""Function calls.  PTX ISA, "Control Flow Instructions: call, ret", "Abstracting the ABI", "Device Function Parameters".

A device function's parameters, and those that a call site declares, are memory of the thread.  A call copies them to the callee's, notes
for each lane where to go on, and goes there; a return copies what it gives back to the RETURNED bytes at the start of local memory,
from where the call site takes it.  Registers of different functions are different, so nothing needs to be saved unless a function comes
to call itself: then what the caller still needs is kept in frames.
"""

import numpy as np

from cudalab.emulator import printf
from cudalab.emulator.errors import PtxError
from cudalab.emulator.frames import Frames
from cudalab.emulator.image import FUNCTIONS, RETURNED
from cudalab.emulator.program import Function, Instruction, Register, Symbol, Vector
from cudalab.emulator.scheduler import EXIT
from cudalab.emulator.table import instruction, runtime

MACHINE = {"vprintf": printf.lower_vprintf, "__assertfail": printf.lower_assertfail}  # functions that need no PTX


def parts(ins: Instruction):
    """Returned variable, callee (Function or Register) and arguments of a call."""
    operands = list(ins.operands)
    returned = operands.pop(0) if isinstance(operands[0], Vector) and len(operands) > 1 else Vector(())
    callee, *rest = operands
    arguments = rest[0] if rest and isinstance(rest[0], Vector) else Vector(())
    callee = callee.target if isinstance(callee, Symbol) else callee
    if not isinstance(callee, (Function, Register)) or not all(isinstance(a, Symbol) for a in (*returned.items, *arguments.items)):
        raise PtxError(f"this form of call is not supported: {ins}")
    return returned.items, callee, arguments.items


def after_call(code, ins):
    """At the place where a call goes on: take what it returned."""
    returned, callee, _ = parts(ins)
    if isinstance(callee, Function) and callee.name in MACHINE:
        return
    if _recursive(code, ins, code.image.owner[code.segment.start]):
        code.restore = f"frames_of(chunk).pop(lanes, {code.segment.start})"
    for symbol in returned:
        code.line(f"copy_local(chunk, lanes, None, 0, {code.symbol(symbol)}, {min(symbol.target.nbytes, RETURNED)})")


def _recursive(code, ins, owner) -> bool:
    callee = parts(ins)[1]
    image = code.image
    callees = [callee] if isinstance(callee, Function) else image.callees[owner]
    return any(c is owner or image.reaches(c, owner) for c in callees)


@instruction("call", modifiers="uni", writes=0, ends=True, after=after_call)
def call(code, ins):
    returned, callee, arguments = parts(ins)
    if isinstance(callee, Function) and callee.body is None:
        MACHINE[callee.name](code, ins, returned, arguments)
        return
    image, following = code.image, code.site + 1
    if _recursive(code, ins, image.owner[code.site]):
        own = image.owner[code.site]
        if own is image.kernel:
            raise PtxError(f"a kernel that is called: {ins}")
        code.closing.append(f"frames_of(chunk).push(lanes, count, {code.mask}, {own_slots(code)}, {image.frames[own]}, "
                            f"{image.slot(('return', own), np.int64)})")
    offsets = [(code.symbol(a), a.target.nbytes) for a in arguments]
    if isinstance(callee, Function):
        copies = _copies(code, offsets, callee, ins)
        code.closing.append(f"enter(chunk, lanes, count, {code.mask}, {copies}, {image.slot(('return', callee), np.int64)}, {following})")
        target = image.first[callee]
        code.result = str(target) if code.mask is None else f"({code.mask}, {target}, {following})"
        return
    known = {}
    for function in image.callees[image.owner[code.site]]:
        if function.body is not None and [p.nbytes for p in function.params] == [size for _, size in offsets]:
            address = image.layout.address(function.name)
            known[address] = (image.first[function], _copies(code, offsets, function, ins), image.slot(("return", function), np.int64))
    code.line(f"t_callee = own({code.value(callee, 'u64')})")
    code.result = f"enter_pointed(chunk, lanes, count, {code.mask}, t_callee, {code.constant(known)}, {following}, {code.site})"


def own_slots(code) -> tuple[int, ...]:
    """The slots that live on behind the call."""
    live = code.segment.live_out
    return tuple(slot for slot in range(live.bit_length()) if live >> slot & 1)


def _copies(code, offsets, callee: Function, ins) -> tuple:
    if len(offsets) != len(callee.params) or any(size < p.nbytes for (_, size), p in zip(offsets, callee.params)):
        raise PtxError(f"a call whose arguments do not fit {callee.name}: {ins}")
    return tuple((start, code.image.offsets[p], p.nbytes) for (start, _), p in zip(offsets, callee.params))


def lower_return(code, ins):
    """ret in a device function."""
    function = code.image.owner[code.site]
    for variable in function.returns:
        code.line(f"copy_local(chunk, lanes, {code.mask}, {code.image.offsets[variable]}, 0, {min(variable.nbytes, RETURNED)})")
        if variable.nbytes > RETURNED:
            raise PtxError(f"{function.name} returns {variable.nbytes} bytes; at most {RETURNED} are supported")
    slot = code.image.slot(("return", function), np.int64)
    code.result = f"leave(chunk, lanes, count, {code.mask}, {slot}, {code.site + 1})"


@instruction("ret", modifiers="uni", writes=0, ends=True)
def ret(code, ins):
    if code.image.owner[code.site] is not code.image.kernel:
        lower_return(code, ins)
    else:
        code.result = str(EXIT) if code.mask is None else f"({code.mask}, {EXIT}, {code.site + 1})"


def chosen(chunk, lanes, mask):
    """The lanes that a guard lets through, as an array."""
    every = chunk.all_lanes if lanes is None else lanes
    return every if mask is None else every[np.broadcast_to(mask, len(every))]


@runtime
def copy_local(chunk, lanes, mask, source, target, nbytes):
    """Copy bytes within the local memory of each lane."""
    memory = chunk.memory
    table = memory.bytes[memory.local_start:memory.local_start + chunk.count * chunk.local_stride].reshape(chunk.count, -1)
    some = slice(None) if lanes is None and mask is None else chosen(chunk, lanes, mask)
    table[some, target:target + nbytes] = table[some, source:source + nbytes]
    for observer in memory.observers:
        observer.local_copy(some, source, target, nbytes)


@runtime
def enter(chunk, lanes, count, mask, copies, slot, following):
    """Hand over arguments, and note where each lane goes on."""
    for source, target, nbytes in copies:
        copy_local(chunk, lanes, mask, source, target, nbytes)
    some = chosen(chunk, lanes, mask)
    registers = chunk.registers
    held = registers[slot]
    if not held.ndim:
        held = registers[slot] = np.full(chunk.count, held)
    held[some] = following


@runtime
def enter_pointed(chunk, lanes, count, mask, addresses, known, following, site):
    """The same through pointers to functions; where each lane goes next."""
    every = chunk.all_lanes if lanes is None else lanes
    targets = np.full(len(every), following)
    calls = np.ones(len(every), bool) if mask is None else np.broadcast_to(mask, len(every))
    addresses = np.broadcast_to(addresses, len(every))
    for address in np.unique(addresses[calls]):
        some = calls & (addresses == address)
        if int(address) not in known:
            what = "a function of another signature" if FUNCTIONS <= address < FUNCTIONS << 1 else "nothing that can be called"
            raise chunk.fault(int(every[np.argmax(some)]), site, f"a call through the pointer {int(address):#x}, which is {what}")
        first, copies, slot = known[int(address)]
        enter(chunk, every[some], None, None, copies, slot, following)
        targets[some] = first
    return targets


@runtime
def leave(chunk, lanes, count, mask, slot, following):
    """Where each lane goes on behind its call."""
    back = chunk.registers[slot]
    back = back if lanes is None else back[lanes]
    return back if mask is None else np.where(mask, back, following)


@runtime
def frames_of(chunk) -> Frames:
    if not hasattr(chunk, "frames"):
        chunk.frames = Frames(chunk)
    return chunk.frames
