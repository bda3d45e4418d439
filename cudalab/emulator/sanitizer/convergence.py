"""Barriers that not all threads reach.  PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier" (.aligned: all
threads of the warp execute the same instruction).  compute-sanitizer's synccheck knows the same errors.
"""

import numpy as np

from cudalab.emulator.chunk import WARP
from cudalab.emulator.sanitizer.faults import DivergentBarrier


class Convergence:
    """Of one chunk.  sites: barrier -> per lane the instruction at which it waits, -1: it does not."""

    def __init__(self, sanitizer):
        self.sanitizer, self.chunk = sanitizer, sanitizer.chunk
        self.sites: dict[int, np.ndarray] = {}

    def arrive(self, number: int, lanes, site: int) -> None:
        """Lanes come to a barrier: those of their warps that wait there already must do so at the same instruction."""
        chunk = self.chunk
        held = self.sites.setdefault(number, np.full(chunk.count, -1))
        if _aligned(chunk.image.instructions[site]):
            rows = held.reshape(-1, WARP)[lanes // WARP]
            wrong = (rows >= 0) & (rows != site)
            if wrong.any():
                row, column = np.argwhere(wrong)[0]
                other = int(lanes[row] // WARP * WARP + column)
                raise self.sanitizer.fault(int(lanes[row]), site, f"divergent barrier: {chunk.who(other)} of the same warp waits for "
                                           f"barrier {number} at {chunk.where(int(rows[row, column]))}; move the barrier out of the branch",
                                           DivergentBarrier)
        held[lanes] = site

    def open(self, number: int, blocks, going: list) -> None:
        """A barrier opens: had any thread of those that it is for ended?"""
        chunk = self.chunk
        lanes, _, site = going[0][:3]
        if number in self.sites:
            self.sites[number].reshape(chunk.blocks, -1)[blocks] = -1
        if chunk.living == chunk.blocks * chunk.threads or _counted(chunk.image.instructions[site]):
            return
        gone = (~chunk.alive & (chunk.thread_of < chunk.threads)).reshape(chunk.blocks, -1)[blocks]
        if gone.any():
            row, column = np.argwhere(gone)[0]
            block = int(blocks[row])
            here = next((int(lanes[chunk.block_of[lanes] == block][0]) for lanes, *_ in going if (chunk.block_of[lanes] == block).any()),
                        int(lanes[0]))
            raise self.sanitizer.fault(here, site, f"divergent barrier: {chunk.who(block * chunk.width + int(column))} has ended before "
                                       f"the barrier that others of its block wait at; guard the work, not the thread", DivergentBarrier)


def _aligned(ins) -> bool:
    return ins.parts[0] == "bar" or ins.has("aligned")


def _counted(ins) -> bool:
    """Does the barrier name how many threads it is for?"""
    operands = ins.operands[1:-1] if ins.has("red") else ins.operands
    return len(operands) > 1
