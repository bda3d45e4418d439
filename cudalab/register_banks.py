"""Register banks: how often a loop's multiply-adds wait for their operands, counted in SASS.

From compute capability 8.6 on a scheduler can start a multiply-add every cycle, but the register file gives less than that reads: the
even registers are one bank, the odd ones another, and a bank gives one register a cycle.  An operand marked `.reuse` stays in a
cache of its operand place for the next multiply-add and needs no read.  Seen on an H200: clearing every reuse flag of an SGEMM loop halves
its speed, and bare multiply-add loops run at the rate this count predicts (docs/notes/sgemm.md).
"""

import re
from dataclasses import dataclass

from cudalab.sass import Instruction

OPCODE = "FFMA"
REGISTER = re.compile(r"[-|]*R(\d+)\b")


@dataclass(frozen=True)
class Banks:
    """Of one loop.  multiply_adds, conflicts: FFMAs, and those of them that cost one more cycle.

    nearest_read: instructions between a 16-byte read of shared memory and its first use, at the least; None without such reads.
    """

    multiply_adds: int
    conflicts: int
    nearest_read: int | None


def count(loop: list[Instruction]) -> Banks:
    """The bank conflicts of a loop's FFMAs, whose operand caches hold across other instructions but not across the loop's end."""
    cached: dict[int, int] = {}  # operand place -> register
    multiply_adds = conflicts = 0
    for i in loop:
        if i.opcode != OPCODE:
            continue
        reads, kept = [0, 0], {}
        for place, operand in enumerate(_operands(i)[1:4]):
            if register := REGISTER.match(operand):
                number = int(register[1])
                reads[number % 2] += cached.get(place) != number
                if operand.endswith(".reuse"):
                    kept[place] = number
        cached = kept
        multiply_adds += 1
        conflicts += max(reads) > 1
    return Banks(multiply_adds, conflicts, _nearest_read(loop))


def _nearest_read(loop: list[Instruction]) -> int | None:
    distances = []
    for index, i in enumerate(loop):
        if i.opcode != "LDS.128" or not (first := REGISTER.match(i.operands)):
            continue
        written = {int(first[1]) + n for n in range(4)}
        for distance in range(1, len(loop)):
            later = loop[(index + distance) % len(loop)]
            if any((r := REGISTER.match(operand)) and int(r[1]) in written for operand in _operands(later)[1:]):
                distances.append(distance)
                break
    return min(distances, default=None)


def _operands(instruction: Instruction) -> list[str]:
    return [operand.strip() for operand in instruction.operands.split(",")]
