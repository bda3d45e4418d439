"""printf and assert of device code.  CUDA C++ Programming Guide, "Formatted Output", "Assertion".

The compiler calls vprintf(format, arguments) and __assertfail(message, file, line, function, size of a character).
"""

import re

import numpy as np

from cudalab.emulator.memory import GLOBAL, LOCAL_WINDOW
from cudalab.emulator.table import runtime

CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcspn%])")


def lower_vprintf(code, ins, returned, arguments):
    texts, values = (code.symbol(a) for a in arguments)
    code.line(f"print_lanes(chunk, lanes, count, {code.mask}, {texts}, {values}, {code.symbol(returned[0]) if returned else None})")


def lower_assertfail(code, ins, returned, arguments):
    places = tuple(code.symbol(a) for a in arguments)
    code.line(f"fail_assertion(chunk, lanes, count, {code.mask}, {places}, {code.site})")


def _rows(chunk, lanes, count, mask):
    """The lanes that take part, and the local memory of all."""
    every = chunk.all_lanes if lanes is None else lanes
    every = every if mask is None else every[np.broadcast_to(mask, len(every))]
    memory = chunk.memory
    return every, memory.bytes[memory.local_start:memory.local_start + chunk.count * chunk.local_stride].reshape(chunk.count, -1)


def _word(row: np.ndarray, at: int, kind: str):
    size = np.dtype(kind).itemsize
    return row[at:at + size].copy().view(kind)[0]


@runtime
def print_lanes(chunk, lanes, count, mask, texts, values, returned):
    """Print for one lane after the other, as a device would on one of the orders open to it."""
    every, local = _rows(chunk, lanes, count, mask)
    for lane in every.tolist():
        row = local[lane]
        text = string_at(chunk, lane, int(_word(row, texts, "u8")))
        start = int(_word(row, values, "u8"))
        data = row[start - LOCAL_WINDOW:] if start >= LOCAL_WINDOW else chunk.memory.bytes[start - GLOBAL:][:4096]
        shown, number = format_c(text, data if start else row[:0], lambda address, lane=lane: string_at(chunk, lane, address))
        chunk.output(shown)
        if returned is not None:
            row[returned:returned + 4] = np.array([number], np.int32).view(np.uint8)
    if returned is not None:
        for observer in chunk.observers:
            observer.local_copy(every, None, returned, 4)


def string_at(chunk, lane: int, address: int) -> str:
    """The C string at a generic address of a lane."""
    if LOCAL_WINDOW <= address < LOCAL_WINDOW + chunk.local_stride:
        start = chunk.memory.local_start + lane * chunk.local_stride
        data = chunk.memory.bytes[start + address - LOCAL_WINDOW:start + chunk.local_stride].tobytes().split(b"\0", 1)[0]
    else:
        data = chunk.memory.string(address)
    return data.decode(errors="replace")


def format_c(text: str, data: np.ndarray, string) -> tuple[str, int]:
    """A C format with its packed arguments: each at a multiple of its size, 4 bytes for int, 8 for long, double and pointers."""
    at, number, pieces, end = 0, 0, [], 0

    def take(kind):
        nonlocal at, number
        size = np.dtype(kind).itemsize
        at = -(-at // size) * size
        value = data[at:at + size].copy().view(kind)[0]
        at, number = at + size, number + 1
        return value.item()

    for found in CONVERSION.finditer(text):
        pieces.append(text[end:found.start()])
        end = found.end()
        flags, width, precision, length, kind = found.groups()
        if kind == "%":
            pieces.append("%")
            continue
        width = str(take("i4")) if width == "*" else width
        precision = str(take("i4")) if precision == "*" else precision
        shape = "%" + flags + width + ("" if precision is None else f".{precision}")
        wide = length in ("l", "ll", "j", "z", "t")
        if kind in "di":
            value = take("i8" if wide else "i4")
            pieces.append((shape + "d") % _narrow(value, length, True))
        elif kind in "uoxX":
            pieces.append((shape + ("d" if kind == "u" else kind)) % _narrow(take("u8" if wide else "u4"), length, False))
        elif kind == "c":
            pieces.append((shape + "s") % chr(take("i4") & 255))
        elif kind == "s":
            pieces.append((shape + "s") % string(take("u8")))
        elif kind == "p":
            pieces.append((shape + "s") % hex(take("u8")))
        elif kind in "aA":
            value = take("f8").hex()
            pieces.append((shape.split(".")[0] + "s") % (value.upper() if kind == "A" else value))
        elif kind != "n":
            pieces.append((shape + kind) % take("f8"))
    return "".join([*pieces, text[end:]]), number


def _narrow(value: int, length: str | None, signed: bool) -> int:
    bits = {"h": 16, "hh": 8}.get(length)
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> bits - 1 else value


@runtime
def fail_assertion(chunk, lanes, count, mask, places, site):
    every, local = _rows(chunk, lanes, count, mask)
    if not len(every):
        return
    lane = int(every[0])
    message, file, line, function = places[:4]
    row = local[lane]
    texts = [string_at(chunk, lane, int(_word(row, at, "u8"))) for at in (message, file, function)]
    raise chunk.fault(lane, site, f"{texts[1]}:{_word(row, line, 'u4')}: {texts[2]}: assertion `{texts[0]}' failed")
