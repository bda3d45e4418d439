"""Order through memory: fences, and atomic or volatile accesses that serve as flags.  PTX ISA, "Memory Consistency Model: Release and
Acquire Patterns", "Morally Strong Operations".

Whoever writes a flag hands over what he knew at his last fence, and beyond that what other lanes did before their own last fence, if he
knows of it through a barrier ("all write, all __threadfence(), __syncthreads(), one sets the flag").  Whoever has seen the flag learns it
at his next fence.  Fences of a block (membar.cta) count only within the block.  .release and .acquire are their own fence.
"""

import numpy as np

ONE_BY_ONE = 64  # lanes in an atomic up to which each learns only what those before it released


class Flags:
    """The flags of a chunk.  earlier: flat indices that blocks of earlier chunks of the launch have released."""

    def __init__(self, clocks, earlier: set):
        self.clocks, self.earlier = clocks, earlier
        count = clocks.chunk.count
        self.fenced = np.zeros(count, np.int64)  # time of each lane's last fence of any scope
        self.wide = np.zeros(count, np.int64)  # of its last fence of the device
        self.cluster = np.zeros(count, np.int64)  # of its last fence of the cluster, or of more
        self.base, self.warp_base = np.zeros(count, np.int64), np.zeros(count, np.int64)  # what it knew then
        self.row = np.zeros(count, np.intp)
        clocks.pinned.append(self.row)
        self.any_fence = False
        self.released: dict[int, dict] = {}  # flat index -> 0 or 1 + the only block that may learn it -> row
        self.written: dict[tuple, tuple] = {}  # (flat index, lane) -> what it knew when it wrote there last
        self.seen: dict[int, dict] = {}  # lane -> (flat index, 0 or 1 + block) -> row to learn at its next fence

    def fence(self, mnemonic: str, lanes) -> None:
        """Lanes (None: all) execute a fence."""
        if ".proxy" in mnemonic or "mbarrier_init" in mnemonic:
            return
        clocks, some = self.clocks, slice(None) if lanes is None else lanes
        self.any_fence = True
        self.fenced[some] = clocks.now
        near = ".cta" in mnemonic or ".cluster" in mnemonic and "gpu" not in mnemonic
        if not near:
            self.wide[some] = clocks.now
        if ".cta" not in mnemonic:
            self.cluster[some] = clocks.now
        self.base[some], self.warp_base[some], self.row[some] = clocks.base[some], clocks.warp_base[some], clocks.row[some]
        if self.seen:
            for lane in [lane for lane in self.seen if lanes is None or np.any(lanes == lane)]:
                self._learn(lane, [(row, max(to, 0)) for (_, to), row in self.seen.pop(lane).items()], near)

    def _learn(self, lane: int, rows: list, near: bool) -> None:
        block = int(self.clocks.chunk.block_of[lane])
        for row, to in rows:
            if to == 0 and near:
                row = self._only_block(row, block)
            if to in (0, 1 + block):
                self.clocks.learn(np.array([lane]), row)

    def _only_block(self, row, block: int):
        width = self.clocks.chunk.width
        kept = np.zeros_like(row)
        kept[block * width:(block + 1) * width] = row[block * width:(block + 1) * width]
        return kept

    def access(self, index, lanes, kind: str, release: bool, acquire: bool) -> None:
        """Lanes load, store or do an atomic, strongly.  Lanes that meet in an atomic see each other in the order of their numbers."""
        if kind == "load":
            self.read(index, lanes, acquire)
        elif kind == "store":
            self.write(index, lanes, release)
        elif not (release or self.any_fence or self.released or self.earlier):
            return
        elif len(lanes) <= ONE_BY_ONE:
            index = np.broadcast_to(index, len(lanes))
            for at in range(len(lanes)):
                self.read(index[at:at + 1], lanes[at:at + 1], acquire)
                self.write(index[at:at + 1], lanes[at:at + 1], release)
        else:
            self.write(index, lanes, release)
            self.read(index, lanes, acquire)

    def write(self, index, lanes, own: bool) -> None:
        """Lanes write flags at flat indices; own: with release semantics."""
        if not own and not self.any_fence:
            return
        clocks = self.clocks
        index = np.broadcast_to(index, len(lanes))
        if not own:
            some = (self.fenced[lanes] > 0).nonzero()[0]
            some = [at for at in some.tolist() if self._news(int(index[at]), int(lanes[at]))]
            index, lanes = index[some], lanes[some]
        for at in np.unique(index):
            here = lanes[index == at]
            if own:
                row = clocks.snapshot(here)
                self._release(int(at), 0, row)
                continue
            wide = here[(self.wide[here] == self.fenced[here])]
            if len(wide):
                self._release(int(at), 0, self._handed_over(wide, self.wide))
            for block in np.unique(clocks.chunk.block_of[here]):
                mates = here[clocks.chunk.block_of[here] == block]
                self._release(int(at), 1 + int(block), self._only_block(self._handed_over(mates, self.fenced), int(block)))

    def _news(self, index: int, lane: int) -> bool:
        """Has the lane come to know more since it last wrote there?  Who spins on an atomic has not."""
        clocks = self.clocks
        state = int(self.fenced[lane]), int(clocks.base[lane]), int(clocks.warp_base[lane]), clocks.identity(lane)
        if self.written.get((index, lane)) == state:
            return False
        self.written[index, lane] = state
        return True

    def fenced_for_cluster(self, lanes):
        """What those of the lanes whose last fence was the cluster's, or wider, hand over at an arrival without release; None: nothing."""
        lanes = lanes[(self.cluster[lanes] > 0) & (self.cluster[lanes] == self.fenced[lanes])]
        return self._handed_over(lanes, self.cluster) if len(lanes) else None

    def _handed_over(self, lanes, fences):
        clocks = self.clocks
        then = clocks.combine(lanes, self.row[lanes], self.base[lanes], self.warp_base[lanes], fences[lanes])
        now = clocks.snapshot(lanes)
        count = clocks.chunk.count
        np.minimum(now[:count], fences, out=now[:count])
        return np.maximum(then, now)

    def _release(self, index: int, to: int, row) -> None:
        held = self.released.setdefault(index, {})
        if to in held and len(held[to]) < len(row):
            held[to] = np.pad(held[to], (0, len(row) - len(held[to])))
        held[to] = np.maximum(held[to], row) if to in held else row

    def read(self, index, lanes, own: bool) -> None:
        """Lanes read flags at flat indices; own: with acquire semantics."""
        if not self.released and not self.earlier:
            return
        index = np.broadcast_to(index, len(lanes))
        for at in np.unique(index):
            rows = {(int(at), to): row for to, row in self.released.get(int(at), {}).items()}
            if int(at) in self.earlier:
                row = np.zeros(self.clocks.rows.shape[1], np.int64)
                row[self.clocks.past] = 1
                rows[int(at), -1] = row
            for lane in lanes[index == at].tolist() if rows else ():
                if own:
                    self._learn(lane, [(row, max(to, 0)) for (_, to), row in rows.items()], near=False)
                else:
                    self.seen.setdefault(lane, {}).update(rows)
