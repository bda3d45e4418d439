"""Control flow cut into straight-line segments, and which registers live across their borders.

A segment begins at a label, behind whatever may branch, at an instruction that waits (which stands alone), and at the first instruction
that several lanes execute together: those need their warp complete, the ones before do not.
"""

from dataclasses import dataclass, field

from cudalab.emulator.image import Image
from cudalab.emulator.program import Address, Instruction, Label, Not, Pair, Register, Table, Vector
from cudalab.emulator.table import Entry, find
from cudalab.emulator.types import TYPES

CARRY = Register("%cc", TYPES["b32"])  # the condition code register, which no operand names


@dataclass(eq=False)
class Segment:
    """Instructions start..end-1.  live_in, live_out: slots whose values are needed before and behind it, as bits of an integer.

    collective: lanes that must come together at its start (0, 32, 128); members: operand that is their member mask, or None; guarded: only
    those whom the first instruction's guard lets through.
    """

    start: int
    end: int
    collective: int = 0
    members: object = None
    guarded: bool = False
    successors: tuple[int, ...] = ()
    reads: int = 0
    writes: int = 0
    live_in: int = 0
    live_out: int = 0
    function: object = field(default=None, repr=False)
    runs: int = 0


def registers_of(operand):
    """Every register that an operand names."""
    match operand:
        case Register():
            yield operand
        case Vector(items=items):
            for item in items:
                yield from registers_of(item)
        case Pair(first=first, second=second):
            yield from registers_of(first)
            yield from registers_of(second)
        case Not(operand=inner):
            yield inner
        case Address(base=base, coordinates=coordinates):
            yield from registers_of(base)
            for item in coordinates:
                yield from registers_of(item)


def effects(ins: Instruction, entry: Entry) -> tuple[set[Register], set[Register]]:
    """The registers an instruction writes and those it reads.  A guarded write keeps the old value in some lanes: it reads too."""
    writes, reads = set(), set()
    for number, operand in enumerate(ins.operands):
        touched = writes if number < entry.writes and not isinstance(operand, Address) else reads
        if isinstance(operand, Register):  # the usual case
            touched.add(operand)
        else:
            touched.update(registers_of(operand))
    if ins.has("cc"):
        writes.add(CARRY)
    if ins.parts[0] in ("addc", "subc", "madc"):
        reads.add(CARRY)
    if entry.updates or ins.predicate is not None:
        reads |= writes
    if ins.predicate is not None:
        reads.add(ins.predicate)
    return writes, reads


def cut(image: Image) -> dict[int, Segment]:
    """The segments of an image by their first instruction, with liveness.  Raises PtxError for an instruction nobody can lower."""
    entries = [find(ins) for ins in image.instructions]
    touched = [effects(ins, entry) for ins, entry in zip(image.instructions, entries)]
    targets = [_targets(image, number) for number in range(len(entries))]
    starts = set(image.first.values())
    for number, (ins, entry) in enumerate(zip(image.instructions, entries)):
        starts.update(targets[number])
        if entry.ends:
            starts.add(number + 1)
        if entry.waits or (entry.collective and ins.predicate is not None):
            starts |= {number, number + 1}
    segments = {}
    count = len(entries)
    ordered = sorted(s for s in starts if s < count)
    for start, end in zip(ordered, [*ordered[1:], count]):
        for segment in _split_at_collectives(image, entries, touched, start, end):
            segments[segment.start] = segment
    _flow(image, touched, targets, segments)
    return segments


def _split_at_collectives(image: Image, entries: list[Entry], touched: list, start: int, end: int):
    """Cut before every instruction whose company of lanes differs from the one the segment began with."""
    segment, written = Segment(start, end), set()
    for number in range(start, end):
        ins, entry = image.instructions[number], entries[number]
        if entry.collective:
            members = ins.operands[entry.members] if entry.members is not None else None
            same = (segment.collective, segment.members) == (entry.collective, members) and members not in written
            if number == start:
                segment.collective, segment.members, segment.guarded = entry.collective, members, ins.predicate is not None
            elif not same:
                segment.end = number
                yield segment
                segment, written = Segment(number, end, entry.collective, members), set()
        written |= touched[number][0]
    yield segment


def _targets(image: Image, number: int) -> tuple[int, ...]:
    first = image.first[image.owner[number]]
    found = []
    for operand in image.instructions[number].operands:
        if isinstance(operand, Label):
            found.append(first + operand.index)
        elif isinstance(operand, Table):
            found += [first + label.index for label in operand.labels]
    return tuple(found)


def _flow(image: Image, touched: list, targets: list, segments: dict[int, Segment]) -> None:
    for segment in segments.values():
        for number in range(segment.start, segment.end):
            writes, reads = touched[number]
            for register in reads:
                segment.reads |= 1 << image.slot(register) & ~segment.writes
            for register in writes:
                segment.writes |= 1 << image.slot(register)
        last = image.instructions[segment.end - 1]
        stops = last.predicate is None and last.parts[0] in ("bra", "brx", "ret", "exit")
        successors = list(targets[segment.end - 1])
        if not stops and segment.end in segments and image.owner[segment.end] is image.owner[segment.start]:
            successors.append(segment.end)
        segment.successors = tuple(s for s in successors if s in segments)
    changed = True
    while changed:
        changed = False
        for start in sorted(segments, reverse=True):
            segment = segments[start]
            segment.live_out = 0
            for successor in segment.successors:
                segment.live_out |= segments[successor].live_in
            live = segment.reads | segment.live_out & ~segment.writes
            if live != segment.live_in:
                segment.live_in, changed = live, True
