"""Pacing: how a kernel's float additions follow one another, set in its machine code.

Every SASS instruction carries a control code: the cycles until this warp's next instruction, whether the scheduler should prefer another
warp then, and which operands stay in the operand cache for the next instruction, which then need not read them from the register file.
ptxas lets go of the warp at every second addition of a row of them, and keeps no operand across that. Beside wgmma that is not the best:
products read and write sums in the same register file, and how many reads the additions leave it, and when, decides how fast both are.
No PTX says any of it, so it is set behind the compiler.  On an H200 it makes fp8gemm/3 2 to 4 % faster (docs/notes/tcgemm.md).

Sources: Jia, Maggioni, Staiger, Scarpazza, "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), 2.1, for where the
control code lies; Huerta, Shoushtary, Cruz, Gonzalez, "Analyzing Modern NVIDIA GPU Cores" (2025), for the operand cache; DeepSeek's
DeepGEMM, "FFMA SASS interleaving", for the idea, with another pattern.
"""

import struct
from collections.abc import Iterator

from cudalab.errors import BadConfig

TUNABLE = "PACE"  # a step's, whose value `paced` takes
VERSION = 1  # of what `paced` makes; raise it when that changes, for builds are kept
ADD, MULTIPLY_ADD = 0x7221, 0x7223  # FADD and FFMA of registers alone and without a predicate, by their low 16 bits
BYTES = 16  # of an instruction, two words
STALL, STAY = 41, 45  # bits of the second word: cycles until the next instruction, four of them; 0: let another warp in then
REUSE = 58, 59  # of a multiply-add's first and second operand
DESTINATION, OPERANDS = 16, (24, 32)  # bits of the first word: where the numbers of their registers begin
NO_REGISTER = 255
NEAR = 3  # instructions to the next addition at most, for an operand to be kept
WIDEST = 4  # registers that an instruction between may write, from its destination on
WGMMA = 0x9F0, 0xFF0  # which writes more than that: opcode, and which of its bits count
CONTROL_FLOW = 0x940, 0xFC0  # branches, calls, exits, where warps part and meet
LONGEST = 11  # cycles until the next instruction that can be said together with STAY


def paced(cubin: bytes, pace: int) -> bytes:
    """The cubin with its float additions so paced: its digits say in turn how many cycles one is before the next; 0: as it was.

    No addition lets another warp in; the operand that a multiply-add shares with the next stays in the operand cache, unless something
    between may write it or lead elsewhere.  A longer wait, for a result, stays.  Raises BadConfig for digits of 0.
    """
    if pace == 0:
        return cubin
    cycles = [int(digit) for digit in str(pace)]
    if 0 in cycles:
        raise BadConfig(f"{TUNABLE}={pace}: its digits are cycles from one addition to the next, 1 to 9; 0 alone leaves it to ptxas")
    image = bytearray(cubin)
    for start, size in _texts(cubin):
        words = list(struct.iter_unpack("<QQ", cubin[start:start + size]))
        additions = [at for at, (low, control) in enumerate(words)
                     if low & 0xFFFF in (ADD, MULTIPLY_ADD) and control >> STALL & 15 <= LONGEST]
        for turn, (at, following) in enumerate(zip(additions, [*additions[1:], len(words)])):
            low, control = words[at]
            stall = max(control >> STALL & 15, cycles[turn % len(cycles)])
            control = control & ~(15 << STALL) | stall << STALL | 1 << STAY
            for reuse, operand in zip(REUSE, OPERANDS) if low & 0xFFFF == MULTIPLY_ADD else ():
                kept = following - at <= NEAR and _keeps([low for low, _ in words[at:following + 1]], operand)
                control = control & ~(1 << reuse) | kept << reuse
            struct.pack_into("<Q", image, start + at * BYTES + 8, control)
    return bytes(image)


def _keeps(code: list[int], operand: int) -> bool:
    """Whether the last of these instructions (first words) reads the register that the first one reads, and none before it may write it."""
    register = code[0] >> operand & 255
    if code[-1] & 0xFFFF != MULTIPLY_ADD or register in (NO_REGISTER, code[0] >> DESTINATION & 255):
        return False
    return code[-1] >> operand & 255 == register and not any(
        any(low & mask == opcode for opcode, mask in (WGMMA, CONTROL_FLOW)) or 0 <= register - (low >> DESTINATION & 255) < WIDEST
        for low in code[1:-1])


def _texts(cubin: bytes) -> Iterator[tuple[int, int]]:
    """Where the code of each function lies, and its bytes: the sections .text.* of an ELF64 file."""
    headers, = struct.unpack_from("<Q", cubin, 0x28)
    each, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + each * number) for number in range(count)]
    for name, _, _, _, offset, size in sections:
        if cubin.startswith(b".text.", sections[names][4] + name):
            yield offset, size
