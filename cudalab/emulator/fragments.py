"""Which lane of a warp holds which element of a matrix, as data.  PTX ISA, "Warp Level Matrix Instructions: Matrix Fragments for mma.…"
(each shape's section is named in FRAGMENTS).

A lane is (g, t): g = lane / 4 ("groupID"), t = lane % 4 ("threadID_in_group").  A map says of which axes the rows and the columns of a
matrix consist, outermost first, and which of these axes number the registers of a lane and the elements packed in a register:

    "j h | e -> h g, j t e"      register 2j + h of a lane, element e of it, is the matrix element (8h + g, 8j + 2t + e)
"""

import functools
from dataclasses import dataclass

import numpy as np

from cudalab.emulator.elements import elements

WARP = 32
SIZES = dict(g=8, t=4, h=2, j=2, q=4, e=2, b=4, n=8, w=32)  # of the axes; e, b, n, w: elements of 16, 8, 4 and 1 bits in a register


@dataclass(frozen=True)
class Map:
    """A fragment of one matrix: the axes of its registers, of the elements in one, of the matrix's rows and of its columns."""

    registers: str
    packed: str
    rows: str
    columns: str

    @classmethod
    def of(cls, text: str) -> "Map":
        held, matrix = text.replace(" ", "").split("->")
        return cls(*held.split("|"), *matrix.split(","))

    @functools.cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return length(self.rows), length(self.columns)

    @property
    def count(self) -> int:
        """Registers of a lane."""
        return length(self.registers)

    @property
    def by_rows(self) -> bool:
        """Lies what a register holds along the rows?  If not, along the columns: a matrix B."""
        return not self.rows.endswith("t" + self.packed)

    def gather(self, registers: list[np.ndarray], kind: str) -> np.ndarray:
        """The matrices of all warps, (warps, rows, columns), of a type of elements, from the registers of all their lanes, each one value a
        lane, warp by warp.  Elements become float64; f32, s32 and f64 stay as they are."""
        warps, held = len(registers[0]) // WARP, registers[0].dtype
        sizes, fours = self._stored
        whole = fours and held.itemsize == 4
        raw = np.empty((warps, *sizes), held)
        view = (raw.view(np.complex128)[..., 0] if whole else raw).transpose(self._axes(whole))
        for at, values in zip(self._places, registers, strict=True):
            view[at] = values.view(np.complex128).reshape(warps, 8) if whole else values.reshape(warps, 8, 4)
        rows, columns = self.shape
        values = elements(raw, kind)
        return values.reshape(warps, rows, columns) if self.by_rows else values.reshape(warps, columns, rows).transpose(0, 2, 1)

    @functools.cached_property
    def _order(self) -> str:
        """The axes of a matrix as they lie in memory, without the packed ones."""
        return (self.rows + self.columns if self.by_rows else self.columns + self.rows).removesuffix(self.packed)

    @functools.cached_property
    def _stored(self) -> tuple[tuple[int, ...], bool]:
        """Their sizes; and whether the four lanes of a group are neighbours, so that they can be moved as one."""
        return tuple(SIZES[axis] for axis in self._order), self._order.endswith("t")

    @functools.cache
    def _axes(self, whole: bool) -> tuple[int, ...]:
        """Where the axes of registers, warps and lanes are in memory.  whole: the last one, t, is gone."""
        find = self._order.index
        return (*(1 + find(axis) for axis in self.registers), 0, *(1 + find(axis) for axis in ("g" if whole else "gt")))

    @functools.cached_property
    def _places(self) -> list[tuple[int, ...]]:
        return list(np.ndindex(*(SIZES[axis] for axis in self.registers)))

    def scatter(self, matrices: np.ndarray) -> list[np.ndarray]:
        """The registers that hold such matrices: each with its packed elements side by side, one row a lane."""
        sizes, axes = self._spread
        view = matrices.reshape(-1, *sizes).transpose(axes)
        packed = length(self.packed)
        return [view[at].reshape(-1, packed) for at in self._places]

    @functools.cached_property
    def _spread(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes of the axes of rows and columns, and where those of registers, warps, lanes and packed elements are among them."""
        order = self.rows + self.columns
        axes = (*(1 + order.index(axis) for axis in self.registers), 0, *(1 + order.index(axis) for axis in "gt" + self.packed))
        return tuple(SIZES[axis] for axis in order), axes


@functools.cache
def length(axes: str) -> int:
    return int(np.prod([SIZES[axis] for axis in axes]))


@dataclass(frozen=True)
class Fragments:
    """The maps of one shape: A (M x K), B (K x N), and C and D (M x N) with one element a register."""

    section: str
    a: Map
    b: Map
    c: Map

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N, K."""
        return *self.c.shape, self.a.shape[1]


C16, C8 = "h e | -> h g, t e", "e | -> g, t e"
HALF_C = Map.of("h | e -> h g, t e")  # C and D of 16 rows in f16: two elements a register


def _fragments(section: str, a: str, b: str) -> Fragments:
    a = Map.of(a)
    return Fragments(section, a, Map.of(b), Map.of(C16 if a.shape[0] == 16 else C8))


# (shape, bits of an element of A and B) -> maps
FRAGMENTS = {
    ("m8n8k4", 64): _fragments("Matrix Fragments for mma.m8n8k4 with .f64 floating point type", "| -> g, t", "| -> t, g"),
    ("m16n8k4", 64): _fragments("Matrix Fragments for mma.m16n8k4 with .f64 floating point type", "h | -> h g, t", "| -> t, g"),
    ("m16n8k8", 64): _fragments("Matrix Fragments for mma.m16n8k8 with .f64 floating point type", "j h | -> h g, j t", "j | -> j t, g"),
    ("m16n8k16", 64): _fragments("Matrix Fragments for mma.m16n8k16 with .f64 floating point type", "q h | -> h g, q t", "q | -> q t, g"),
    ("m16n8k4", 32): _fragments("Matrix Fragments for mma.m16n8k4 with .tf32 floating point type", "h | -> h g, t", "| -> t, g"),
    ("m16n8k8", 32): _fragments("Matrix Fragments for mma.m16n8k8 with .tf32 floating point type", "j h | -> h g, j t", "j | -> j t, g"),
    ("m16n8k8", 16): _fragments("Matrix Fragments for mma.m16n8k8 with .f16 and .bf16 floating point types",
                                "h | e -> h g, t e", "| e -> t e, g"),
    ("m16n8k16", 16): _fragments("Matrix Fragments for mma.m16n8k16 with floating point type (.f16 and .bf16)",
                                 "j h | e -> h g, j t e", "j | e -> j t e, g"),
    ("m8n8k16", 8): _fragments("Matrix Fragments for mma.m8n8k16 with integer type", "| b -> g, t b", "| b -> t b, g"),
    ("m16n8k16", 8): _fragments("Matrix Fragments for mma.m16n8k16 with .s8, .u8, .e4m3, .e5m2 types",
                                "h | b -> h g, t b", "| b -> t b, g"),
    ("m16n8k32", 8): _fragments("Matrix Fragments for mma.m16n8k32 with .s8, .u8, .e4m3, .e5m2 types",
                                "j h | b -> h g, j t b", "j | b -> j t b, g"),
    ("m8n8k32", 4): _fragments("Matrix Fragments for mma.m8n8k32 with .s4 and .u4 types", "| n -> g, t n", "| n -> t n, g"),
    ("m16n8k32", 4): _fragments("Matrix Fragments for mma.m16n8k32 with .s4 and .u4 types", "h | n -> h g, t n", "| n -> t n, g"),
    ("m16n8k64", 4): _fragments("Matrix Fragments for mma.m16n8k64 with .s4 and .u4 types", "j h | n -> h g, j t n", "j | n -> j t n, g"),
    ("m8n8k128", 1): _fragments("Matrix Fragments for mma.m8n8k128 with .b1 type", "| w -> g, t w", "| w -> t w, g"),
    ("m16n8k128", 1): _fragments("Matrix Fragments for mma.m16n8k128 with .b1 type", "h | w -> h g, t w", "| w -> t w, g"),
    ("m16n8k256", 1): _fragments("Matrix Fragments for mma.m16n8k256 with .b1 type", "j h | w -> h g, j t w", "j | w -> j t w, g"),
}
