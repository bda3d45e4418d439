"""SASS: nvdisasm's listing of a cubin, and what is in it."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from cudalab import leaving
from cudalab.errors import LabError, MissingTool
from cudalab.installed import cure

FLAGS = ("-gi", "-c")  # source lines through inlined functions; code only
SECTION = re.compile(r"\s*\.section\s+\.text\.([^\s,]+)")
LOCATION = re.compile(r'\s*//## File "([^"]+)", line (\d+)')
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[T\d]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
LABEL = re.compile(r"\s*(\.L_\w+):")
MEMORY = ("LDG", "STG", "LDS", "STS", "LD", "ST", "LDL", "STL", "LDGSTS", "LDC", "LDCU", "ULDC", "LDSM", "STSM", "RED", "ATOM",
          "ATOMG", "ATOMS")
WIDTHS = ("128", "64", "U16", "S16", "U8", "S8", "16", "8")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.  address: bytes behind the function's start.  predicate: such as P0, !P1, or None.

    line: line of the .cu it was compiled from (for code of a header: the line that calls it), None if unknown.
    target: address that a branch goes to, None for what is no branch to a label.
    """

    address: int
    opcode: str
    operands: str
    predicate: str | None
    line: int | None
    target: int | None = None


def find_nvdisasm() -> Path:
    """The disassembler: from its wheel, PATH, or a toolkit.  Raises MissingTool."""
    for root in map(Path, sys.path):
        for found in sorted(root.glob("nvidia/*/bin/nvdisasm"), reverse=True):
            return found
    homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"))
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *(f"{home}/bin" for home in homes)])
    if found := shutil.which("nvdisasm", path=path):
        return Path(found)
    raise MissingTool(f"nvdisasm is not installed, so there is no SASS: {cure()}")


def disassemble(cubin: Path) -> str:
    """The listing of every function of a cubin, with source lines.  Raises MissingTool without nvdisasm, LabError if it fails."""
    leaving.check()
    command = [find_nvdisasm(), *FLAGS, cubin]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") as running:
        try:
            listing, said = _output(running)
        except BaseException:
            running.kill()
            raise
    if running.returncode:
        lines = (said.strip() or listing.strip() or f"status {running.returncode}").splitlines()
        said = next((line for line in lines if "error" in line.lower() or "fatal" in line.lower()), lines[-1])
        raise LabError(f"nvdisasm cannot read {cubin}: {said}; if it is older than NVRTC: {cure()}")
    return listing


def _output(running: subprocess.Popen) -> tuple[str, str]:
    while True:
        try:
            return running.communicate(timeout=0.1)
        except subprocess.TimeoutExpired:
            leaving.check()


def functions(sass: str) -> dict[str, list[Instruction]]:
    """The instructions of every function, by its symbol, in order of address."""
    found: dict[str, list[Instruction]] = {}
    lines: list[tuple[str, int]] = []  # where the next instructions come from, innermost call first
    fresh = True  # the next location starts a new list
    current = None
    labels: dict[str, int] = {}  # their names are unique in a listing
    waiting: list[str] = []  # labels of the next instruction
    for text in sass.splitlines():
        if section := SECTION.match(text):
            current, lines = found.setdefault(section[1], []), []
        elif location := LOCATION.match(text):
            lines = [] if fresh else lines
            lines.append((location[1], int(location[2])))
            fresh = False
        elif label := LABEL.match(text):
            waiting.append(label[1])
        elif current is not None and (instruction := INSTRUCTION.match(text)):
            fresh = True
            address, predicate, opcode, operands = instruction.groups()
            line = next((number for file, number in lines if file.endswith(".cu")), None)
            current.append(Instruction(int(address, 16), opcode, operands, predicate, line))
            labels |= dict.fromkeys(waiting, int(address, 16))
            waiting.clear()
    return {symbol: [replace(i, target=_target(i, labels)) for i in body] for symbol, body in found.items()}


def _target(instruction: Instruction, labels: dict[str, int]) -> int | None:
    name = re.search(r"`\((\.L_\w+)\)", instruction.operands) if instruction.opcode.startswith("BRA") else None
    return labels.get(name[1]) if name else None


def main_loop(instructions: list[Instruction], opcode: str = "FFMA") -> list[Instruction]:
    """The innermost code that repeats with the most instructions of this opcode; empty where no loop has one."""
    places = {i.address: index for index, i in enumerate(instructions)}
    best: list[Instruction] = []
    for index, i in enumerate(instructions):
        if i.target is not None and i.target <= i.address and i.target in places:
            body = instructions[places[i.target]:index + 1]
            count, most = (sum(x.opcode == opcode for x in b) for b in (body, best))
            if count > most or (count == most > 0 and len(body) < len(best)):
                best = body
    return best


def mix(instructions: list[Instruction]) -> dict[str, int]:
    """How many instructions of each class there are (as written, not as executed), most first.

    Memory accesses keep their width (LDS.128), matrix instructions their shape (HMMA.16816), the ways to write a move are MOV;
    the rest goes by its name without modifiers.  Padding (NOP) does not count.
    """
    counts = Counter(_kind(i) for i in instructions if i.opcode != "NOP")
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _kind(instruction: Instruction) -> str:
    name, *modifiers = instruction.opcode.split(".")
    if name in MEMORY:
        return ".".join([name, *[m for m in modifiers if m in WIDTHS][:1]])
    if name.endswith("MMA"):
        return ".".join([name, *[m for m in modifiers if re.match(r"\d+", m)][:1]])
    # ptxas spreads moves over the pipes: IMAD.MOV is one, and so is HFMA2 R, -RZ, RZ, constant
    if name == "MOV" or modifiers[:1] == ["MOV"] or (name == "HFMA2" and re.match(r"R\d+, -RZ, RZ, ", instruction.operands)):
        return "MOV"
    return name
