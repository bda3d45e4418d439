"""Declarations of variables, registers and parameters.  PTX ISA, "Variable Declarations", "Initializers", "Kernel Function Parameters"."""

import math
import re
import struct
from collections.abc import Callable

from cudalab.emulator.operands import parse_literal, split
from cudalab.emulator.program import Variable
from cudalab.emulator.types import TYPES

NAME = r"[A-Za-z_$%][\w$]*"
VARIABLE = re.compile(rf"((?:\.\w+(?:\s*\([^)]*\))?(?:\s+\d+)?\s+)+?)({NAME})\s*((?:\[\s*\w*\s*\]\s*)*)(?:=\s*(.*))?", re.DOTALL)
RANGE = re.compile(rf"({NAME})<(\d+)>")
SPACES = ("global", "const", "shared", "local", "param")
IGNORED = ("visible", "extern", "weak", "common", "ptr", "attribute", *SPACES)
MAX_REGISTERS = 1 << 20


def register_names(text: str, error: Callable[[str], Exception]):
    """The names of a .reg declaration; %f<3> means %f0, %f1, %f2."""
    for part in split(text):
        if found := RANGE.fullmatch(part):
            if int(found[2]) > MAX_REGISTERS:
                raise error(f"{found[2]} registers of one name")
            yield from (f"{found[1]}{number}" for number in range(int(found[2])))
        elif re.fullmatch(NAME, part):
            yield part
        else:
            raise error(f"'{part}' is not the name of a register")


def parse_parameters(text: str, error: Callable[[str], Exception]) -> tuple[Variable, ...]:
    """The parameters between a function's parentheses."""
    return tuple(parse_variable(part, error) for part in split(text) if part)


def _size(text: str, error: Callable[[str], Exception]) -> int:
    literal = parse_literal(text) if text else None
    if text and (literal is None or literal.kind != "int"):
        raise error(f"'{text}' elements")
    return literal.value if literal else 0


def parse_variable(text: str, error: Callable[[str], Exception]) -> Variable:
    """A declared variable or parameter, with the bytes it starts with."""
    found = VARIABLE.fullmatch(text.strip())
    if not found:
        raise error("a declaration that cannot be read")
    words, name, dimensions, value = found.groups()
    kinds = re.findall(r"\.(\w+)(?:\s*\([^)]*\))?(?:\s+(\d+))?", words)
    names = [kind for kind, _ in kinds]
    space = next((kind for kind in names if kind in SPACES), None)
    kind = next((TYPES[k] for k in names if k in TYPES), None)
    vector = next((int(k[1:]) for k in names if k in ("v2", "v4", "v8")), 1)
    unknown = [k for k in names if k not in TYPES and k not in IGNORED and k not in ("align", "v2", "v4", "v8")]
    if unknown or space is None or kind is None:
        raise error(f"a declaration with '.{unknown[0]}'" if unknown else "a declaration without a state space or a type")
    sizes = [_size(size, error) for size in re.findall(r"\[\s*(\w*)\s*\]", dimensions)]
    item = kind.bytes * vector
    align = next((int(number) for k, number in kinds if k == "align" and number), item)
    if align & (align - 1) or not align:
        raise error(f"an alignment of {align}")
    data, relocations = _initial(value.strip(), kind.bytes, kind, error) if value else (None, ())
    nbytes = item * math.prod(sizes)
    if sizes and sizes[0] == 0 and data is not None:
        nbytes = -(-len(data) // item) * item
    if data is not None:
        if len(data) > nbytes:
            raise error(f"{name} is initialised with more than it holds")
        data = data.ljust(nbytes, b"\0")
    return Variable(name, space, kind, align, nbytes, data, relocations, "extern" in names)


def _initial(text: str, width: int, kind, error):
    data, relocations = bytearray(), []
    for item in _flatten(text):
        literal = parse_literal(item)
        if literal is None:
            relocations.append((len(data), width, *_reference(item, error)))
            data += bytes(width)
        elif literal.kind == "int" and kind.kind != "float":
            data += (literal.value & (1 << 8 * width) - 1).to_bytes(width, "little")
        else:
            data += _float_bytes(literal, kind, error)
    return bytes(data), tuple(relocations)


def _flatten(text: str):
    if text.startswith("{"):
        for part in split(text.strip()[1:-1]):
            if part:
                yield from _flatten(part)
    else:
        yield text


def _float_bytes(literal, kind, error) -> bytes:
    if kind.name not in ("f16", "f32", "f64"):
        raise error(f"a floating-point value for a .{kind.name}")
    if literal.kind == "f32":
        value = struct.unpack("<f", literal.value.to_bytes(4, "little"))[0]
    else:
        value = float(literal.value) if literal.kind == "int" else struct.unpack("<d", literal.value.to_bytes(8, "little"))[0]
    return struct.pack({"f16": "<e", "f32": "<f", "f64": "<d"}[kind.name], value)


def _reference(text: str, error) -> tuple[str, int, bool]:
    found = re.fullmatch(rf"(generic\s*\(\s*)?({NAME})\s*(?:\)\s*)?(?:([-+])\s*(\d+))?\s*\)?", text)
    if not found:
        raise error(f"'{text}' cannot initialise a variable")
    addend = int(found[4] or 0) * (-1 if found[3] == "-" else 1)
    return found[2], addend, bool(found[1])
