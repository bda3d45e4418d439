"""`fragments`: what is found by running instructions on the emulator is what its tables of the PTX ISA say; and what is refused."""

import json

import numpy as np
import pytest
from command import fails, works

from cudalab import fragments
from cudalab.dtypes import itemsize
from cudalab.emulator import Emulator
from cudalab.emulator.fragments import FRAGMENTS
from cudalab.errors import LabError, UnknownName

KINDS = [("m16n8k16", "bf16"), ("m16n8k8", "tf32"), ("m16n8k32", "fp8_e4m3"), ("m16n8k32", "int8")]


@pytest.fixture(scope="module")
def place():
    return Emulator("sm_90a")


def table(fragment, name):
    """[row][column] -> (lane, element) by a map of the emulator."""
    rows, columns = fragment.shape
    registers = fragment.scatter(np.arange(rows * columns).reshape(1, rows, columns))
    cells = [[None] * columns for _ in range(rows)]
    for number, values in enumerate(registers):
        for (lane, at), place in np.ndenumerate(values):
            cells[place // columns][place % columns] = lane, f"{name}{number * values.shape[1] + at}"
    return cells


@pytest.mark.parametrize("what, dtype", KINDS)
def test_mma_is_found_to_be_what_the_tables_say(place, what, dtype):
    a, b, d = fragments.layouts(what, dtype, place)
    maps = FRAGMENTS[what, 8 * itemsize(dtype)]
    assert (a.cells, b.cells, d.cells) == (table(maps.a, "a"), table(maps.b, "b"), table(maps.c, "d"))


@pytest.mark.parametrize("what, dtype, n", [("m64n24k16", "f16", 24), ("m64n8k32", None, 8)])
def test_wgmma_is_four_warps_of_mma(place, what, dtype, n):
    """Sixteen rows a warp; eight columns after another; A in registers as mma.sync's A."""
    a, d = fragments.layouts(what, dtype, place)
    maps = FRAGMENTS[("m16n8k16", 16) if n == 24 else ("m16n8k32", 8)]
    for m in range(64):
        assert a.cells[m] == [(32 * (m // 16) + lane, element) for lane, element in table(maps.a, "a")[m % 16]]
        for column in range(n):
            lane, element = table(maps.c, "d")[m % 16][column % 8]
            assert d.cells[m][column] == (32 * (m // 16) + lane, f"d{int(element[1:]) + 4 * (column // 8)}")


def test_ldmatrix_turns_a_matrix(place):
    plain, turned = (fragments.layouts(what, None, place) for what in ("ldmatrix", "ldmatrix.trans"))
    assert len(plain) == len(turned) == 4
    for one, other in zip(plain, turned):
        assert one.cells == [list(row) for row in zip(*other.cells)] and one.cells[3][5][0] == 4 * 3 + 5 // 2


@pytest.mark.parametrize("width", [128, 64, 32])
def test_swizzled_units_meet_in_no_bank(place, width):
    """Units of the same number of eight rows, or of as many as lines of 128 bytes hold, lie in eight different places of a line."""
    layout, = fragments.layouts(f"swizzle{width}", None, place)
    for unit in range(width // 16):
        assert len({int(row[unit][1]) for row in layout.cells[:8]}) == 8
    places = {cell for row in layout.cells for cell in row}
    assert len(places) == len(layout.cells) * width // 16


def test_a_contradiction_is_told():
    with pytest.raises(LabError, match="where another one is"):
        fragments._place("x", "lane", 1, 2, "a", [(0, 0, 0, 0), (1, 0, 0, 0)])
    with pytest.raises(LabError, match="not every place"):
        fragments._place("x", "lane", 1, 2, "a", [(0, 0, 0, 0)])


@pytest.mark.parametrize("what, dtype, says", [
    ("m16n16k16", None, "m16n8k16"), ("m16n8k16", "fp8_e4m3", "takes bf16 or f16"), ("mma", None, "swizzle128"),
    ("m64n12k16", None, "in eights"), ("ldmatrix", "bf16", "with m")])
def test_what_there_is_not(place, what, dtype, says):
    with pytest.raises(UnknownName, match=says):
        fragments.layouts(what, dtype, place)


def test_the_verb(lab, tmp_path):
    said = works(lab("fragments", "m16n8k8", "--plot", tmp_path / "f.svg"))
    assert "mma.sync m16n8k8 tf32: B, 8 x 8" in said.stdout and "31:d3" in said.stdout and "emulator" in said.stderr
    assert "<svg" in (tmp_path / "f.svg").read_text()[:500]
    found = json.loads(works(lab("fragments", "swizzle64", "--json")).stdout)
    assert found[0]["cells"][0][0] == dict(line=0, element="0")
    fails(lab("fragments", "nosuch"), "fragments can be shown")
