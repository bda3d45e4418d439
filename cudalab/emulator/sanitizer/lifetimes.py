"""Blocks of a cluster that may have ended while others still use their shared memory.  PTX ISA, "Shared State Space": an access to another
block's shared memory needs that block to run; CUDA Programming Guide, "Distributed Shared Memory".

The end of a block counts as an access to all of its shared memory by all of its threads: what other blocks did there, and what copies
that count at mbarriers did (into it, or out of it into another block), must have happened before, by what its threads know when they end,
however the scheduler happened to run them.  An access behind the end of a block in the run itself needs no rule: the emulator
finds it out of bounds, always.
"""

import numpy as np

from cudalab.emulator.sanitizer.faults import EndedBlock


class Lifetimes:
    """Of one chunk of clusters.  last: per block, when each lane of its cluster last accessed its shared memory from another block.
    landed: per block, when an asynchronous unit (a key of clocks.agents) last did."""

    def __init__(self, sanitizer):
        self.sanitizer, self.clocks, self.chunk = sanitizer, sanitizer.clocks, sanitizer.chunk
        self.span = self.chunk.cluster_size * self.chunk.width  # lanes of a cluster, which lie together
        self.last = np.zeros((self.chunk.blocks, self.span), np.int64)
        self.landed: list[dict[tuple, int]] = [{} for _ in range(self.chunk.blocks)]
        self.own: dict[int, bool] = {}  # instruction -> does it name the own block's shared memory?

    def access(self, touch) -> None:
        """Lanes load, store or do an atomic in shared memory, now."""
        if touch.site not in self.own:
            self.own[touch.site] = not {"shared", "shared::cta"}.isdisjoint(self.chunk.image.instructions[touch.site].parts)
        if not self.own[touch.site]:
            blocks = self._block(touch.index)
            apart = blocks != self.chunk.block_of[touch.lanes]
            self.last[np.broadcast_to(blocks, len(touch.lanes))[apart], touch.lanes[apart] % self.span] = self.clocks.now

    def arrive(self, key, lanes) -> None:
        """Lanes arrive at an mbarrier, now; with release semantics, so that who waits for it knows."""
        block = self._block(key[1])
        self.last[block, lanes[self.chunk.block_of[lanes] != block] % self.span] = self.clocks.now

    def count(self, key, lanes) -> None:
        """Lanes change what an mbarrier counts, now, and hand over no more than that: each as a unit of its own, of which the lane knows
        and who waits for the mbarrier."""
        clocks, block = self.clocks, self._block(key[1])
        for lane in lanes[self.chunk.block_of[lanes] != block].tolist():
            unit = "count", lane
            clocks.learn(np.array([lane]), self.sanitizer.proxies.tell(key, unit, clocks.now))
            self.landed[block][unit] = clocks.now

    def land(self, key, copy) -> None:
        """A copy has written shared memory and counts at an mbarrier of that block, now; who waits for that knows, also that it has read
        its source, which may be another block's shared memory."""
        self.landed[self._block(key[1])][key] = self.clocks.now
        origin = self._block(getattr(copy.source, "first", -1))
        if origin >= 0:
            self.landed[origin][key] = self.clocks.now

    def _block(self, index):
        """The blocks at flat indices."""
        return (index - self.chunk.memory.shared_start) // self.chunk.shared_stride

    def exited(self, lanes, site: int) -> None:
        """Lanes end at an instruction, and with the last of a block the block."""
        alive = self.chunk.alive.reshape(self.chunk.blocks, -1).any(axis=1)
        for block in np.unique(self.chunk.block_of[lanes]).tolist():
            if not alive[block] and (self.landed[block] or self.last[block].any()):
                self._end(block, int(lanes[self.chunk.block_of[lanes] == block][-1]), site)

    def _end(self, block: int, leaver: int, site: int) -> None:
        chunk, clocks, first = self.chunk, self.clocks, block // self.chunk.cluster_size * self.span  # lane of the cluster
        known = clocks.snapshot(block * chunk.width + np.arange(chunk.threads))
        late = np.where(self.last[block] > known[first:first + self.span], self.last[block], 0)
        if late.any():
            self._report(leaver, site, int(late.max()), first + int(late.argmax()))
        for unit, time in self.landed[block].items():
            if time > known[clocks.agents[unit]]:
                self._report(leaver, site, time, unit[1] if unit[0] == "count" else None)

    def _report(self, leaver: int, site: int, time: int, lane: int | None) -> None:
        """lane: that did something at a time; None: a copy did."""
        if lane is None:
            who, cure = "a copy", "a wait of this block for its mbarrier, or a barrier of the cluster behind another block's wait,"
        else:
            who = self.sanitizer.who_at(time, lane)
            cure = "a barrier of the cluster, or a wait of this block for an mbarrier at which it arrives after that,"
        raise self.sanitizer.fault(leaver, site, f"the block may end too early: {who} uses its shared memory at "
                                                 f"{self.sanitizer.line_at(time)}, and nothing orders that before the end; {cure} would",
                                   EndedBlock)
