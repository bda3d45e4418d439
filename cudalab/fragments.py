"""Which lane of a warp, or warpgroup, holds which element: read from what the instructions themselves leave in registers and memory.

Matrices are filled with numbers that name their places, the instruction runs, and every register is stored as it is (the ops of
parts/p06_fragments.py).  A sum says whose row and column it is of one bit at a time: row m of A is the bit of m, all else one.
Nothing here goes by the tables of the PTX ISA.
"""

import re
from dataclasses import dataclass

import numpy as np

from cudalab.dtypes import encode, itemsize
from cudalab.errors import LabError, UnknownName

ROW = 32  # bytes of K that one instruction takes of a row
MMA = {16: ("bf16", "f16"), 8: ("tf32",), 32: ("fp8_e4m3", "int8")}  # K of an instruction -> types, the usual one first
OTHERS = ("ldmatrix", "ldmatrix.trans", "swizzle128", "swizzle64", "swizzle32")
EXAMPLES = ("m16n8k16", "m16n8k8", "m16n8k32", "m64n16k16", *OTHERS)


@dataclass(frozen=True)
class Layout:
    """A matrix, or a tile in memory: cells[row][column] = (holder, element), lane 5 and a3, or in memory line 2 and chunk 6."""

    title: str
    holder: str  # "lane", "thread" or "line"
    cells: list[list[tuple[int, str]]]

    def lines(self) -> list[str]:
        """The matrix as text: a cell "5:a3" is element a3 of lane 5."""
        texts = [[f"{holder}:{element}" for holder, element in row] for row in self.cells]
        width = max(len(text) for row in texts for text in row) + 1
        head = " " * 5 + "".join(str(column).rjust(width) for column in range(len(texts[0])))
        return [self.title, head, *(str(at).rjust(4) + " " + "".join(text.rjust(width) for text in row) for at, row in enumerate(texts))]

    def as_dict(self) -> dict:
        return dict(title=self.title, cells=[[{self.holder: holder, "element": element} for holder, element in row] for row in self.cells])


def layouts(what: str, dtype: str | None, place) -> list[Layout]:
    """What an instruction ("m16n8k16", "m64n64k16", "ldmatrix", …) or a swizzle ("swizzle128") does on a backend, Gpu or Emulator.

    Raises UnknownName for one that there is not, LabError where what was found contradicts itself.
    """
    shape = re.fullmatch(r"m(16|64)n(\d+)k(8|16|32)", what)
    if what in OTHERS and dtype is None:
        return _swizzle(what, place) if what.startswith("swizzle") else _ldmatrix(what, place)
    if not shape or shape[1] == "16" and shape[2] != "8":
        raise UnknownName(f"'{what}'{f' of {dtype}' if dtype else ''} is nothing whose fragments can be shown; there are "
                          f"{', '.join(EXAMPLES)}; wgmma is m64, n in eights to 256; a type goes with m… only")
    m, n, k = map(int, shape.groups())
    dtype = dtype or MMA[k][0]
    if dtype not in MMA[k]:
        raise UnknownName(f"{what} takes {' or '.join(MMA[k])}, not {dtype}; K is {', '.join(f'{d} for {t[0]}' for d, t in MMA.items())}")
    return _mma(dtype, k, place) if m == 16 else _wgmma(dtype, n, k, place)


def _run(place, step: str, sizes: dict, dtype: str | None, variant: str | None, inputs: dict) -> dict:
    from cudalab.registry import resolve_step
    step = resolve_step(step)
    return place.run(step.plan(step.op.problem(sizes, dtype, variant)), inputs)


def _bits(count: int) -> int:
    return max(1, (count - 1).bit_length())


def _rows(values, dtype: str):
    """The bytes of rows of elements with these values."""
    return np.ascontiguousarray(encode(np.asarray(values, np.float32), dtype)).view(np.uint8)


def _codes(rows: int, columns: int, size: int):
    """Two sets of rows whose elements, as unsigned integers, are the low and the high byte of their own number."""
    numbers = np.arange(rows * columns).reshape(rows, columns)
    return np.stack([numbers & 255, numbers >> 8]).astype(f"u{size}").view(np.uint8)


def _from_codes(registers, size: int, columns: int, name: str, rows: int, title: str, turned: bool = False) -> Layout:
    """The layout of a matrix whose codes came to (2, lanes, registers)."""
    held = np.ascontiguousarray(registers).view(f"u{size}").astype(int)
    numbers = (held[0] & 255) + 256 * (held[1] & 255)
    return _place(title, "lane", rows, columns, name, ((lane, at, *divmod(number, columns)) for lane, row in enumerate(numbers.tolist())
                                                       for at, number in enumerate(row)), turned)


def _place(title, holder, rows, columns, name, found, turned=False) -> Layout:
    """found: (holder, number of the element, row, column) of all.  Raises LabError where a place has no holder or two."""
    cells = [[None] * columns for _ in range(rows)]
    for who, at, row, column in found:
        if row >= rows or column >= columns or cells[row][column]:
            raise LabError(f"{title}: {holder} {who} says it holds row {row}, column {column}, where another one is or nothing can be")
        cells[row][column] = who, f"{name}{at}"
    if any(cell is None for row in cells for cell in row):
        raise LabError(f"{title}: not every place has a {holder}")
    return Layout(title, holder, [list(column) for column in zip(*cells)] if turned else cells)


def _probes(m: int, n: int, k: int, dtype: str):
    """Bytes of A and B whose products are one bit of the row's number, then of the column's, one pair a bit."""
    A, B = [], []
    for bit in range(_bits(m) + _bits(n)):
        a, b = np.zeros((m, k)), np.zeros((n, k))
        a[:, 0] = np.arange(m) >> bit & 1 if bit < _bits(m) else 1
        b[:, 0] = 1 if bit < _bits(m) else np.arange(n) >> bit - _bits(m) & 1
        A.append(a), B.append(b)
    return _rows(A, dtype), _rows(B, dtype)


def _sums(D, m: int, n: int, title: str, holder: str) -> Layout:
    """The layout of the sums that _probes gave: (bits, lanes, registers)."""
    bits = np.rint(np.asarray(D, np.float64)).astype(int)
    rows, columns = (sum(bits[first + i] << i for i in range(count)) for first, count in ((0, _bits(m)), (_bits(m), _bits(n))))
    return _place(title, holder, m, n, "d", ((lane, at, rows[lane, at], columns[lane, at]) for lane, at in np.ndindex(*rows.shape)))


def _mma(dtype: str, k: int, place) -> list[Layout]:
    size, rng = itemsize(dtype), np.random.default_rng(0)
    a, b = _probes(16, 8, k, dtype)
    proof = [rng.integers(-3, 4, shape) for shape in ((16, k), (8, k))]
    A, B = (np.concatenate([_codes(rows, k, size), probe, _rows(values, dtype)[None]])
            for rows, probe, values in ((16, a, proof[0]), (8, b, proof[1])))
    found = _run(place, "mma_fragments/raw", dict(P=len(A)), dtype, None, dict(A=A, B=B))
    name = f"mma.sync m16n8k{k} {dtype}"
    sums = _sums(found["D"][2:-1], 16, 8, f"{name}: C and D, 16 x 8", "lane")
    meant = proof[0] @ proof[1].T
    got = np.array([[found["D"][-1][lane][int(element[1:])] for lane, element in row] for row in sums.cells])
    if (got != meant).any():
        raise LabError(f"{name}: what ldmatrix puts into the registers is not what mma.sync multiplies")
    return [_from_codes(found["RA"][:2], size, k, "a", 16, f"{name}: A, 16 x {k}"),
            _from_codes(found["RB"][:2], size, k, "b", 8, f"{name}: B, {k} x 8", turned=True), sums]


def _wgmma(dtype: str, n: int, k: int, place) -> list[Layout]:
    if n % 8 or not 8 <= n <= 256:
        raise UnknownName(f"wgmma of {n} columns: they come in eights, 8 to 256")
    A, B = _probes(64, n, k, dtype)
    name = f"wgmma m64n{n}k{k} {dtype}"
    sums = _sums(_run(place, "wgmma_fragments/raw", dict(P=len(A), N=n), dtype, "shared", dict(A=A, B=B))["D"], 64, n,
                 f"{name}: D, 64 x {n}", "thread")
    # A in registers, one bit of each place's number at a time, times one: D is A
    each, wide = ROW * 64 // 128 // itemsize(dtype), max(k, 8)
    numbers = np.arange(128 * each)
    A = _rows([(numbers >> bit & 1).reshape(64, k) for bit in range(_bits(128 * each))], dtype)
    one = _rows(np.broadcast_to(np.eye(wide, k), (len(A), wide, k)), dtype)
    D = _run(place, "wgmma_fragments/raw", dict(P=len(A), N=wide), dtype, "registers", dict(A=A, B=one))["D"]
    like = sums.cells if n >= wide else _wgmma(dtype, wide, k, place)[1].cells
    bits = np.rint(np.asarray(D, np.float64)).astype(int)
    taken = [(*divmod(sum(int(bits[i, t, int(e[1:])]) << i for i in range(len(A))), each), row, column)
             for row in range(64) for column in range(k) for t, e in [like[row][column]]]
    return [_place(f"{name}: A in registers, 64 x {k}", "thread", 64, k, "a", taken), sums]


def _ldmatrix(what: str, place) -> list[Layout]:
    X = np.arange(256, dtype=np.uint16).reshape(1, 32, 8).view(np.uint8)
    R = _run(place, "ldmatrix_fragments/raw", dict(P=1), None, "turned" if what.endswith("trans") else "plain", dict(X=X))["R"][0]
    numbers = np.ascontiguousarray(R).view(np.uint16).astype(int)  # lanes, 2 * register + half
    places = [(lane, at, int(numbers[lane, at])) for lane, at in np.ndindex(*numbers.shape)]
    return [_place(f"{what}: matrix {i}, 8 rows of 16 bytes", "lane", 8, 8, "r",
                   ((lane, at, number // 8 % 8, number % 8) for lane, at, number in places if number // 64 == i)) for i in range(4)]


def _swizzle(what: str, place) -> list[Layout]:
    from cudalab.parts.p06_fragments import TILE_ROWS
    width = int(what.removeprefix("swizzle"))
    numbers = np.arange(TILE_ROWS * width // 16).astype(np.uint8).repeat(16).reshape(TILE_ROWS, width)  # every byte says its unit's
    Y = _run(place, "swizzle_units/raw", dict(P=1), None, what, dict(X=numbers))["Y"]
    at = {int(unit): place for place, unit in enumerate(Y.reshape(-1, 16)[:, 0])}
    cells = [[(at[int(unit)] // 8, str(at[int(unit)] % 8)) for unit in row] for row in numbers[:, ::16]]
    return [Layout(f"{what}: rows of {width} bytes in units of 16; where each lies: line of 128 bytes, place in it", "line", cells)]


def draw(found: list[Layout], title: str, file) -> None:
    """A picture of layouts, .svg or .png; a cell has the colour of who holds it.  Raises MissingTool without matplotlib, BadResults."""
    from cudalab import plot
    plot.require_file(file)
    rc_context, Figure = plot.matplotlib()
    cell, gap = (0.36, 0.26), 0.9
    heights = [len(layout.cells) * cell[1] + gap for layout in found]
    with rc_context(plot.RC):
        figure = Figure(figsize=(max(4, max(len(layout.cells[0]) for layout in found) * cell[0] + 0.8), sum(heights)), layout="constrained")
        for layout, axes in zip(found, np.atleast_1d(figure.subplots(len(found), 1, gridspec_kw=dict(height_ratios=heights)))):
            holders = np.array([[holder for holder, _ in row] for row in layout.cells])
            axes.pcolormesh(holders % 32, cmap="hsv", alpha=0.35, edgecolors="white", linewidth=0.5, vmin=0, vmax=32)
            for (row, column), holder in np.ndenumerate(holders):
                axes.text(column + 0.5, row + 0.5, f"{holder}:{layout.cells[row][column][1]}", ha="center", va="center", fontsize=5)
            axes.invert_yaxis()
            axes.set_title(f"{layout.title} ({layout.holder}:element)" if layout.holder != "line" else layout.title, loc="left", fontsize=8)
            axes.set_xticks(np.arange(holders.shape[1]) + 0.5, range(holders.shape[1]), fontsize=5)
            axes.set_yticks(np.arange(holders.shape[0]) + 0.5, range(holders.shape[0]), fontsize=5)
            axes.tick_params(length=0)
        figure.suptitle(title, fontsize=9)
        plot.write(figure, file)
