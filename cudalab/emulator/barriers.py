"""Barriers of a block.  PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".

A barrier counts warps: one has arrived once all its living lanes have.  It opens when the warps asked for (each counting for 32
threads), or without a number all living warps of the block, have arrived; so a diverged warp cannot open it early.
"""

import numpy as np

from cudalab.emulator.chunk import WARP, put
from cudalab.emulator.scheduler import Scheduler, Waiter
from cudalab.emulator.table import instruction, waiter

BARRIERS = 16


@instruction("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync", writes=0, waits="bar", modifiers="aligned")
def sync(code, ins):
    _wait(code, ins, "sync", ins.operands)


@instruction("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive", writes=0, waits="bar", modifiers="aligned")
def arrive(code, ins):
    _wait(code, ins, "arrive", ins.operands)


@instruction("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", waits="bar", modifiers="aligned popc and or")
def reduce(code, ins):
    operation = ins.one_of("popc", "and", "or")
    *numbers, predicate = ins.operands[1:]
    slot = code.image.slot(ins.operands[0])
    _wait(code, ins, operation, numbers, f", {slot}, {code.value(predicate, 'pred')}")


def _wait(code, ins, operation, numbers, more=""):
    barrier, *threads = [code.value(n, "u32") for n in numbers]
    code.result = (f"Wait('bar', ({operation!r}, {barrier}, {threads[0] if threads else 'None'}{more}), "
                   f"{code.mask}, {code.site + 1}, {code.site})")


@waiter("bar")
class Barriers(Waiter):
    """The sixteen barriers of every block of the chunk."""

    def __init__(self, chunk):
        super().__init__(chunk)
        self.arrived = np.zeros((BARRIERS, chunk.count), bool)
        self.busy = np.zeros(BARRIERS, bool)  # has anybody arrived?
        self.held: dict[int, list] = {}  # barrier -> [(lanes, where to go on, site, slot and values of a reduction)]
        self.expected = np.zeros((BARRIERS, chunk.blocks), np.int64)  # threads asked for; 0: all of the block

    def arrive(self, scheduler: Scheduler, lanes, values, following, site):
        operation, barrier, threads, *reduction = values
        if len(lanes) == self.chunk.living and operation == "sync" and threads is None and not np.ndim(barrier) and barrier < BARRIERS \
                and not self.busy[barrier]:  # everybody at once, the usual case
            for observer in self.chunk.observers:  # a block that has ended is not among them
                observer.barrier(int(barrier), np.unique(self.chunk.block_of[lanes]), [(lanes, following, site, None)])
            scheduler.resume(following, lanes)
            return
        barriers = np.broadcast_to(barrier, len(lanes))
        for number in np.unique(barriers):
            if number >= BARRIERS:
                raise self.chunk.fault(int(lanes[0]), site, f"barrier {number}; a block has {BARRIERS}")
            some = slice(None) if not np.ndim(barrier) else barriers == number
            self._arrive(scheduler, int(number), lanes[some], operation, threads, reduction, following, site, some)

    def _arrive(self, scheduler, number, lanes, operation, threads, reduction, following, site, some):
        chunk = self.chunk
        asked = np.broadcast_to(np.int64(0) if threads is None else threads, len(lanes) if not np.ndim(threads) else np.shape(threads))
        asked = asked[some] if np.ndim(threads) else asked
        blocks = chunk.block_of[lanes]
        if threads is not None and (np.asarray(asked) % WARP).any():
            raise chunk.fault(int(lanes[0]), site, f"a barrier for {int(asked[0])} threads: not a multiple of {WARP}")
        waiting = self.arrived[number].reshape(chunk.blocks, -1).any(axis=1)[blocks]
        if (waiting & (self.expected[number, blocks] != asked)).any():
            at = int(np.argmax(waiting & (self.expected[number, blocks] != asked)))
            raise chunk.fault(int(lanes[at]), site, f"barrier {number} is asked to wait for {int(asked[at]) or 'all'} threads, by others "
                                                    f"for {int(self.expected[number, blocks[at]]) or 'all'}")
        self.expected[number, blocks] = asked
        if self.arrived[number, lanes].any():
            lane = int(lanes[np.argmax(self.arrived[number, lanes])])
            raise chunk.fault(lane, site, f"a thread arrives at barrier {number} twice before it has opened")
        self.arrived[number, lanes] = True
        for observer in chunk.observers:
            observer.arrive(number, lanes, site, operation != "arrive")
        self.busy[number] = True
        extra = None
        if reduction:
            slot, values = reduction
            extra = operation, slot, values[some] if np.ndim(values) else np.broadcast_to(values, len(lanes))
        if operation == "arrive":
            scheduler.resume(following, lanes)
        else:
            self.held.setdefault(number, []).append((lanes, following, site, extra))
        self._open(scheduler, number)

    def _open(self, scheduler, number):
        chunk = self.chunk
        arrived = self.arrived[number].reshape(chunk.blocks, -1, WARP)
        alive = chunk.alive.reshape(arrived.shape)
        came = arrived.any(axis=2) & (arrived | ~alive).all(axis=2)  # warps, by block
        enough = np.where(self.expected[number] > 0, came.sum(axis=1) * WARP >= self.expected[number],
                          (came | ~alive.any(axis=2)).all(axis=1) & arrived.any(axis=(1, 2)))
        if not enough.any():
            return
        opening = np.repeat(enough, chunk.width)
        self.arrived[number, opening] = False
        self.expected[number, enough] = 0
        self.busy[number] = self.arrived[number].any()
        kept, going = [], []
        for lanes, following, site, extra in self.held.get(number, ()):
            go = opening[lanes]
            if go.any():
                going.append((lanes[go], following, site, extra and (*extra[:2], extra[2][go])))
            if not go.all():
                kept.append((lanes[~go], following, site, extra and (*extra[:2], extra[2][~go])))
        self.held[number] = kept
        self._reduce([entry for entry in going if entry[3]])
        for observer in chunk.observers:
            observer.barrier(number, enough.nonzero()[0], going)
        for lanes, following, _, _ in going:
            scheduler.resume(following, lanes)

    def _reduce(self, going):
        if not going:
            return
        chunk = self.chunk
        lanes = np.concatenate([entry[0] for entry in going])
        values = np.concatenate([entry[3][2] for entry in going])
        number = np.bincount(chunk.block_of[lanes], values, chunk.blocks).astype(np.uint32)
        total = np.bincount(chunk.block_of[lanes], minlength=chunk.blocks)
        for some, _, _, (operation, slot, _) in going:
            result = dict(popc=number, **{"and": number == total, "or": number > 0})[operation][chunk.block_of[some]]
            put(chunk, slot, some, result)

    def exited(self, scheduler, lanes):
        for number in range(BARRIERS):
            if self.busy[number]:
                self._open(scheduler, number)

    def waiting(self):
        return [(lanes, site, f"barrier {number}") for number, held in self.held.items() for lanes, _, site, _ in held]
