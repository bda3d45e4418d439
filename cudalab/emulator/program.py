"""What the parser makes of PTX text: plain data.  PTX ISA, "PTX Module Scope Directives", "Instruction Operands"."""

import functools
from dataclasses import dataclass, field

from cudalab.emulator.types import TYPES, Type


@dataclass(frozen=True)
class Location:
    """A source line, as a .loc directive names it; `inlined_at` where the code was inlined from a function there."""

    file: str
    line: int
    inlined_at: "Location | None" = None

    def __str__(self) -> str:
        name = self.file.rsplit("/", 1)[-1]
        return f"{name}:{self.line}" + (f" (inlined at {self.inlined_at})" if self.inlined_at else "")

    @property
    def outermost(self) -> "Location":
        """The line of the kernel's own source that led here."""
        return self.inlined_at.outermost if self.inlined_at else self


@dataclass(eq=False, slots=True)
class Register:
    """A declared register, which nobody changes.  Each declaration is its own object, so scopes and functions cannot be confused."""

    name: str
    type: Type


@dataclass(frozen=True)
class Special:
    """A predefined register such as %tid.x.  PTX ISA, "Special Registers"."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A literal: an integer's value, or the bits of a float.  kind: int, f32, f64."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, eq=False)
class Variable:
    """A declared variable.  space: global, const, shared, local, param.  nbytes 0: its size comes from the launch (extern shared).

    data: the initial bytes, None for none.  relocations: (offset in bytes, width in bytes, name, addend, generic) to be added in.
    """

    name: str
    space: str
    type: Type
    align: int
    nbytes: int
    data: bytes | None = None
    relocations: tuple[tuple[int, int, str, int, bool], ...] = ()
    external: bool = False


@dataclass(frozen=True)
class Symbol:
    """The address of a variable or a function, `offset` bytes behind its start."""

    target: "Variable | Function"
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Label:
    """A place in a function: the number of the instruction that follows it."""

    name: str
    index: int


@dataclass(eq=False)
class Table:
    """What .branchtargets lists for brx.idx; empty for .callprototype and .calltargets, which name no place of this function."""

    name: str
    labels: tuple[Label, ...] = ()


@dataclass(frozen=True)
class Address:
    """[base + offset]; coordinates: what follows the base in the brackets of a tensor instruction."""

    base: "Register | Variable | Immediate"
    offset: int = 0
    coordinates: tuple = ()


@dataclass(frozen=True)
class Vector:
    """{a, b, …}, also the parenthesised lists of a call."""

    items: tuple


@dataclass(frozen=True)
class Pair:
    """a|b: two results of one instruction."""

    first: object
    second: object


@dataclass(frozen=True)
class Not:
    """!p"""

    operand: Register


@dataclass(frozen=True)
class Sink:
    """_: a result that is not wanted."""


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction: `mnemonic` whole, its dotted `parts`, operands, guard predicate, and where it stands."""

    mnemonic: str
    operands: tuple
    predicate: Register | None
    negated: bool
    ptx_line: int
    location: Location | None
    text: str
    parts: tuple[str, ...] = ()
    types: tuple[Type, ...] = ()

    @property
    def type(self) -> Type | None:
        """The last type of the mnemonic: that of the operation."""
        return self.types[-1] if self.types else None

    def has(self, part: str) -> bool:
        return part in self.parts

    def one_of(self, *parts: str) -> str | None:
        """Which of these the mnemonic has."""
        return next((p for p in parts if p in self.parts), None)

    def __str__(self) -> str:
        return f"'{self.text}' (PTX line {self.ptx_line}" + (f", {self.location}" if self.location else "") + ")"


@dataclass(eq=False)
class Function:
    """A kernel (entry) or a device function.  A function without a body has `body` None."""

    name: str
    entry: bool
    params: tuple[Variable, ...] = ()
    returns: tuple[Variable, ...] = ()
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instruction] | None = None


@dataclass(eq=False)
class Module:
    """A PTX module: version, target, variables and functions by name."""

    version: tuple[int, int]
    target: str
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def parts_of(mnemonic: str) -> tuple[tuple[str, ...], tuple[Type, ...]]:
    """The dotted parts of a mnemonic, and those among them that are types."""
    parts = tuple(mnemonic.split("."))
    return parts, tuple(TYPES[p] for p in parts[1:] if p in TYPES)
