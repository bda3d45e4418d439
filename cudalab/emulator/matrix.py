"""8 x 8 matrices of 16-bit elements between shared memory and the registers of a warp.  PTX ISA, "Warp-level matrix load instruction:
ldmatrix", "Warp-level matrix store instruction: stmatrix", "Warp-level matrix transpose instruction: movmatrix".

A row of a matrix is 16 bytes in shared memory.  The addresses of the rows of matrix j come from lanes 8j to 8j + 7; those of other lanes
are not looked at.  In registers, lane (g, t) (see fragments.py) holds elements 2t and 2t + 1 of row g, or with .trans of column g.

The forms for elements of 8 bits and less (m8n16, m16n16, m16n8) begin with sm_100a and are not supported.
"""

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.errors import PtxError
from cudalab.emulator.memory import Place
from cudalab.emulator.program import Vector
from cudalab.emulator.table import instruction, runtime

ROW = 16  # bytes
NUMBERS = dict(x1=1, x2=2, x4=4)
MODIFIERS = "aligned m8n8 x1 x2 x4 trans shared shared::cta"
WORD, WHOLE = np.dtype(np.uint32), np.dtype(np.complex128)  # NumPy moves 16 bytes at once if they are one element


@instruction("ldmatrix.sync", types="b16", modifiers=MODIFIERS, collective=WARP)
def ldmatrix(code, ins):
    target, address = ins.operands
    items = form_items(ins, target)
    got = code.temp(f"load_matrices({_arguments(code, ins, address, items)})")
    for number, item in enumerate(items):
        code.assign(item, f"{got}[{number}]", "b32")


@instruction("stmatrix.sync", types="b16", modifiers=MODIFIERS, writes=0, collective=WARP)
def stmatrix(code, ins):
    address, source = ins.operands
    items = form_items(ins, source)
    values = ", ".join(code.value(item, "b32") for item in items)
    code.line(f"store_matrices({_arguments(code, ins, address, items)}, ({values},))")


@instruction("movmatrix.sync", types="b16", modifiers="aligned m8n8 trans", collective=WARP)
def movmatrix(code, ins):
    if not all(ins.has(part) for part in ("aligned", "m8n8", "trans")):
        raise PtxError(f"this form of movmatrix is not supported: {ins}")
    together(code)
    code.assign(ins.operands[0], f"turn({code.value(ins.operands[1], 'b32')}, count)", "b32")


def form_items(ins, operand) -> tuple:
    """The registers of an ldmatrix or stmatrix, one a matrix.  Raises PtxError for a form that there is not."""
    number = NUMBERS.get(ins.one_of(*NUMBERS))
    if not ins.has("aligned") or not ins.has("m8n8") or not isinstance(operand, Vector) or len(operand.items) != number:
        raise PtxError(f"this form of {ins.parts[0]} is not supported: {ins}")
    return operand.items


def _arguments(code, ins, address, items) -> str:
    place, offset = code.place(address, "shared" if ins.one_of("shared", "shared::cta") else "generic")
    together(code)
    return f"chunk, {place}, {offset}, {len(items)}, {ins.has('trans')}, count, {code.site}"


def together(code) -> None:
    """Generated code that raises where a warp is not complete.  A guard holds no lane back here: the scheduler has sent those past it."""
    code.line(f"whole_warps(chunk, {code.once('warps', 'Warps(lanes, count)')}, {code.site})")


@runtime
def whole_warps(chunk, group, site) -> None:
    """Raise where only some lanes of a warp execute an instruction that takes all 32 (.aligned)."""
    if not group.whole:
        present = group.present.sum(axis=1)
        row = int(np.argmax(present < WARP))
        lane = group.lane(row, int(np.argmax(group.present[row])))
        name = chunk.image.instructions[site].parts[0]
        raise chunk.fault(lane, site, f"{name} is executed by {present[row]} of the {WARP} threads of a warp; it takes all")


def row_places(chunk, place: Place, number: int, count: int, site) -> Place:
    """Where the rows lie, for the lanes that give their addresses."""
    if number * 8 < WARP:
        chosen = (np.arange(0, count, WARP)[:, None] + np.arange(number * 8)).reshape(-1)
        place = place.only(chosen, count)
    if len(place.parts) == 1:
        place = place.parts[0][1]
    if place.space != "shared":
        lane = 0 if place.lanes is None else int(place.lanes[0])
        raise chunk.fault(lane, site, f"{chunk.image.instructions[site].parts[0]} of an address that is not in shared memory")
    return place


@runtime
def load_matrices(chunk, place, offset, number, trans, count, site) -> np.ndarray:
    """A row of registers a matrix, one value a lane."""
    memory, rows = chunk.memory, count // WARP * number * 8
    place = row_places(chunk, place, number, count, site)
    memory.check(place, offset, ROW, "ldmatrix read", site)
    if memory.observers or memory.flights:
        memory.observe("load", place, offset, ROW, site)
    index = place.index + offset >> 4
    found = memory.view(WHOLE)[np.broadcast_to(index, rows) if isinstance(index, int) else index]
    values = np.ascontiguousarray(found.reshape(-1, number, 8).transpose(1, 0, 2)).view(WORD)
    return (turned(values) if trans else values).reshape(number, count)


@runtime
def store_matrices(chunk, place, offset, number, trans, count, site, registers) -> None:
    """Write the matrices that registers hold, a row at each address."""
    place = row_places(chunk, place, number, count, site)
    values = np.stack([np.broadcast_to(value, count) for value in registers], 1).reshape(-1, WARP, number)
    values = np.ascontiguousarray(values.transpose(0, 2, 1))  # warp, matrix, lane
    words = (turned(values) if trans else values).reshape(-1, 4)
    chunk.memory.store(place, offset, WORD, tuple(words[:, word].copy() for word in range(4)), site)


def turned(values: np.ndarray) -> np.ndarray:
    """Matrices of 16-bit elements, 32 words each, transposed."""
    halves = values.reshape(-1, WARP).view(np.uint16).reshape(-1, 8, 8)
    return np.ascontiguousarray(halves.transpose(0, 2, 1)).view(WORD)


@runtime
def turn(value, count) -> np.ndarray:
    """The transposed matrix of each warp, one register a lane."""
    return turned(np.ascontiguousarray(np.broadcast_to(value, count))).reshape(-1)
