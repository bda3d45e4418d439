"""Pacing of float additions: what it changes in the machine code, and nothing else."""

import numpy as np
import pytest

from cudalab import pacing, register_banks, sass
from cudalab.build import build
from cudalab.errors import BadConfig
from cudalab.registry import resolve_step

MAY_CHANGE = 31 << pacing.STALL | sum(1 << bit for bit in pacing.REUSE)
STEP = resolve_step("fp8gemm/3")


def built(pace, variant="block"):
    problem = STEP.op.problem(dict(M=4096, N=4096, K=4096), "fp8_e4m3", variant)
    return build(STEP.plan(problem, STEP.config(problem, dict(PACE=pace))), "sm_90a")


def instructions(build):
    (listing,) = sass.functions(build.sass).values()
    return listing


def words(cubin):
    """Its instructions, two words each: code begins at a multiple of their bytes."""
    return np.frombuffer(cubin[:len(cubin) // pacing.BYTES * pacing.BYTES], "<u8").reshape(-1, 2)


@pytest.mark.parametrize("variant", ["block", "promoted"])
def test_only_how_additions_follow_one_another_changes(variant):
    plain, paced = built(0, variant), built(21, variant)
    assert len(plain.cubin) == len(paced.cubin) and plain.ptx.splitlines()[1:] == paced.ptx.splitlines()[1:]
    changed = words(plain.cubin) ^ words(paced.cubin)
    at = np.flatnonzero(changed.any(axis=1))
    assert len(at) >= 64 and not np.any(changed & ~np.uint64([0, MAY_CHANGE]))
    assert set((words(plain.cubin)[at, 0] & 0xFFFF).tolist()) <= {pacing.ADD, pacing.MULTIPLY_ADD}

    shown = [[(i.address, i.opcode, i.operands.replace(".reuse", "")) for i in instructions(b)] for b in (plain, paced)]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("pace, cycles", [(21, [2, 1]), (12, [1, 2]), (113, [1, 1, 3])])
def test_the_digits_are_cycles_in_turn(pace, cycles):
    low, codes = words(pacing.paced(built(0).cubin, pace)).T
    codes = codes[low & 0xFFF == 0x223]
    stalls = codes >> pacing.STALL & 15
    wanted = np.resize(cycles, len(codes))
    assert np.all(codes >> pacing.STAY & 1) and np.all(stalls >= wanted) and np.mean(stalls == wanted) > 0.9


def test_a_scale_that_stays_in_the_operand_cache_is_no_conflict():
    plain, paced = (register_banks.count(sass.main_loop(instructions(built(pace)))) for pace in (0, 21))
    assert plain.multiply_adds == paced.multiply_adds >= 128
    assert plain.conflicts > plain.multiply_adds / 2.5 and paced.conflicts < paced.multiply_adds / 6


def test_an_operand_that_may_be_overwritten_is_not_kept():
    """By hand: of each pair of multiply-adds the first and the second operand are the same, R4 and R8."""
    def pair(between=(), written=0):
        return [multiply_add(written), *between, multiply_add(1)]

    move, wide, wgmma, far, branch = (instruction(*i) for i in ((0xC02, 4), (0x984, 6), (0x9F3, 24), (0xC02, 40), (0x947, 40)))
    pairs = {0b11: [pair(), pair([far]), pair([far, far])], 0b10: [pair(written=4), pair([move])], 0b01: [pair([wide])],
             0b00: [pair([wgmma]), pair([far, far, far]), pair([branch]), [multiply_add(0), instruction(0x7221, 1, 4, 8)]]}
    for kept, codes in pairs.items():
        for code in codes:
            control = int.from_bytes(pacing.paced(elf(b"".join(code)), 1)[72:80], "little")
            assert control >> pacing.REUSE[0] & 3 == kept, code


def instruction(opcode, written, first=0, second=0):
    return (opcode | written << 16 | first << 24 | second << 32).to_bytes(8, "little") + (1 << pacing.STALL).to_bytes(8, "little")


def multiply_add(written):
    return instruction(0x7223, written, 4, 8)


def test_what_has_no_encoding_is_left_alone():
    """Additions under a predicate; a wait so long that nvdisasm knows no code for it without letting another warp in."""
    long = (0x7223).to_bytes(8, "little") + (12 << pacing.STALL).to_bytes(8, "little")
    for code in (instruction(0x1223, 0, 4, 8) * 2, long * 2):
        assert pacing.paced(elf(code), 21) == elf(code)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("path", ["sgemm/2", "sgemm/12", "softmax/3", "layernorm/3", "axis/5"])
def test_any_kernel_can_be_paced(path, target, tmp_path):
    """nvdisasm reads what comes out, and sees the same instructions."""
    step = resolve_step(path)
    plain = build(step.plan(step.problems("bench")[0]), target)
    (tmp_path / "paced.cubin").write_bytes(pacing.paced(plain.cubin, 21))
    shown = [[(i.address, i.opcode, i.operands.replace(".reuse", "")) for code in sass.functions(text).values() for i in code]
             for text in (plain.sass, sass.disassemble(tmp_path / "paced.cubin"))]
    assert shown[0] == shown[1]


def elf(code):
    """An ELF64 file of one function: the header, the code, names, and headers of the two sections."""
    names = b"\0.text.k\0.shstrtab\0"
    at = 64 + len(code) + len(names)
    header = bytearray(64)
    header[0x28:0x30] = at.to_bytes(8, "little")
    header[0x3A:0x40] = b"".join(number.to_bytes(2, "little") for number in (64, 2, 1))
    sections = [(1, 64, len(code)), (9, 64 + len(code), len(names))]
    heads = b"".join(name.to_bytes(4, "little") + bytes(20) + start.to_bytes(8, "little") + size.to_bytes(8, "little") + bytes(24)
                     for name, start, size in sections)
    return bytes(header) + code + names + heads


def test_a_pace_without_cycles_is_refused():
    assert pacing.paced(b"anything", 0) == b"anything"
    for pace in (10, 201):
        with pytest.raises(BadConfig, match="1 to 9"):
            built(pace)
