"""Operands of an instruction, and the scopes in which their names mean something.  PTX ISA, "Instruction Operands", "Constants"."""

import re
import struct
from collections.abc import Callable

from cudalab.emulator.program import (Address, Function, Immediate, Label, Module, Not, Pair, Register, Sink, Special, Symbol, Table,
                                      Variable, Vector)

INTEGER = re.compile(r"([-+~]*)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")
HEX_FLOAT = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]+)")
DECIMAL = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?")
WITH_OFFSET = re.compile(r"(.+?)\s*([-+])\s*(-?\s*(?:0[xX][0-9a-fA-F]+|\d+))U?", re.DOTALL)
SPECIAL = re.compile(r"%(?:(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)(?:\.[xyzw])?|laneid|warpid|nwarpid"
                     r"|smid|nsmid|gridid|is_explicit_cluster|cluster_ctarank|cluster_nctarank|lanemask_(?:eq|le|lt|ge|gt)"
                     r"|clock|clock_hi|clock64|globaltimer|globaltimer_lo|globaltimer_hi"
                     r"|total_smem_size|dynamic_smem_size|aggr_smem_size|envreg\d+)")
WARP_SIZE = 32


class Scope:
    """The names of one { } block, inside those of the block around it."""

    def __init__(self, outer: "Scope | None", names: dict[str, object]):
        self.outer, self.names, self.parsed = outer, names, {}

    @classmethod
    def of(cls, module: Module, function: Function) -> "Scope":
        """The outermost scope of a function.  The module's names stay live, for what is declared further down."""
        own = {variable.name: variable for variable in (*function.params, *function.returns)}
        return cls(cls(cls(None, module.functions), module.variables), own)

    def inner(self) -> "Scope":
        return Scope(self, {})

    def declare(self, name: str, what, error: Callable[[str], Exception]) -> None:
        if name in self.names:
            raise error(f"{name} is declared twice")
        self.names[name] = what

    def find(self, name: str):
        scope = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None


def split(text: str) -> list[str]:
    """What commas outside brackets separate."""
    if not re.search(r"[\[{(]", text):
        return [part.strip() for part in text.split(",")]
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def parse_operand(text: str, scope: Scope, error: Callable[[str], Exception]):
    """The operand that a text means in a scope."""
    if text not in scope.parsed:
        scope.parsed[text] = _operand(text, scope, error)
    return scope.parsed[text]


def _operand(text: str, scope: Scope, error):
    if not text:
        raise error("an operand is missing")
    first, last = text[0], text[-1]
    if first == "[":
        if last != "]":
            raise error("a bracket that is never closed")
        return _address(text[1:-1].strip(), scope, error)
    if first in "{(" and "|" not in text:
        if last != {"{": "}", "(": ")"}[first]:
            raise error("a bracket that is never closed")
        inside = text[1:-1].strip()
        return Vector(tuple(parse_operand(item, scope, error) for item in split(inside)) if inside else ())
    if text == "_":
        return Sink()
    if first == "!":
        return Not(_register(text[1:].strip(), scope, error))
    if "|" in text:
        one, other = text.split("|", 1)
        return Pair(parse_operand(one.strip(), scope, error), parse_operand(other.strip(), scope, error))
    if (literal := parse_literal(text)) is not None:
        return literal
    known = scope.find(text)
    if isinstance(known, (Register, Label, Table)):
        return known
    if isinstance(known, (Variable, Function)):
        return Symbol(known)
    if SPECIAL.fullmatch(text):
        return Special(text)
    if found := WITH_OFFSET.fullmatch(text):
        target = scope.find(found[1])
        if isinstance(target, Variable):
            return Symbol(target, _signed(found[2], found[3]))
    raise error(f"'{text}' is not declared")


def parse_literal(text: str) -> Immediate | None:
    """The value of a literal constant; None for what is not one."""
    if found := HEX_FLOAT.fullmatch(text):
        sign, kind, digits = found.groups()
        width = 32 if kind in "fF" else 64
        if len(digits) * 4 != width:
            return None
        return Immediate(int(digits, 16) ^ (1 << width - 1 if sign else 0), f"f{width}")
    if found := INTEGER.fullmatch(text):
        digits = found[2]
        value = int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0) if not re.fullmatch(r"0\d+", digits) else None
        if value is None:
            return None
        for sign in reversed(found[1]):
            value = -value if sign == "-" else ~value if sign == "~" else value
        return Immediate(value)
    if DECIMAL.fullmatch(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    return Immediate(WARP_SIZE) if text == "WARP_SZ" else None


def _register(text: str, scope: Scope, error) -> Register:
    found = scope.find(text)
    if not isinstance(found, Register):
        raise error(f"'{text}' is not a declared register")
    return found


def _address(text: str, scope: Scope, error) -> Address:
    base, *rest = split(text)
    coordinates = tuple(parse_operand(item, scope, error) for item in rest)
    offset = 0
    target = scope.find(base)
    if target is None and (found := WITH_OFFSET.fullmatch(base)):
        base, offset = found[1], _signed(found[2], found[3])
        target = scope.find(base)
    if isinstance(target, (Register, Variable)):
        return Address(target, offset, coordinates)
    if (literal := parse_literal(base)) is not None and literal.kind == "int":
        return Address(literal, offset, coordinates)
    raise error(f"'{base}' is not an address")


def _signed(sign: str, digits: str) -> int:
    value = int(digits.replace(" ", ""), 0)
    return -value if sign == "-" else value
