"""Blocks of a cluster together, and what sm_90 adds to a thread's means.  PTX ISA, "Parallel Synchronization and Communication
Instructions: barrier.cluster, elect.sync, griddepcontrol, membar / fence"; "Data Movement and Conversion Instructions: mapa, getctarank";
"Miscellaneous Instructions: nanosleep, setmaxnreg".

An address of shared memory carries above bit 24 the number of its block in the cluster; mapa replaces that number.
"""

import numpy as np

from cudalab.emulator.errors import PtxError
from cudalab.emulator.memory import RANK_SHIFT
from cudalab.emulator.program import Immediate, Pair, Sink
from cudalab.emulator.scheduler import Scheduler, Waiter
from cudalab.emulator.table import instruction, runtime, waiter
from cudalab.emulator.taking_part import participants
from cudalab.emulator.warp import warps

RANK_MASK = 0xFF << RANK_SHIFT
REGISTERS = range(24, 257, 8)  # what setmaxnreg takes


@instruction("mapa", types="u32 u64", modifiers="shared::cluster")
def mapa(code, ins):
    target, address, rank = ins.operands
    kind = ins.type.dtype.type
    if ins.type.name == "u32" and not ins.has("shared::cluster"):
        raise PtxError(f"a generic address of 32 bits: {ins}")
    kept = code.constant(kind(~RANK_MASK & (1 << ins.type.bits) - 1))
    code.assign(target, f"{code.value(address, ins.type)} & {kept} | {code.value(rank, 'u32')}.astype(u{ins.type.bytes}) << "
                        f"{code.constant(kind(RANK_SHIFT))}", ins.type)


@instruction("getctarank", types="u32 u64", modifiers="shared::cluster")
def getctarank(code, ins):
    target, address = ins.operands
    kind = ins.type.dtype.type
    value = f"({code.value(address, ins.type)} >> {code.constant(kind(RANK_SHIFT))} & {code.constant(kind(0xFF))})"
    code.assign(target, f"{value}.astype(u4)", "u32")


# -- barrier.cluster


@instruction("barrier.cluster.arrive", modifiers="release relaxed aligned", writes=0)
def arrive(code, ins):
    code.line(f"cluster_arrive(chunk, lanes, count, {code.mask}, {not ins.has('relaxed')}, {code.site})")


@runtime
def cluster_arrive(chunk, lanes, count, mask, releases, site):
    chunk.waiters["cluster"].count(participants(chunk, lanes, count, mask)[0], releases, site)


@instruction("barrier.cluster.wait", modifiers="acquire aligned", writes=0, waits="cluster")
def wait(code, ins):
    code.result = f"Wait('cluster', (), {code.mask}, {code.site + 1}, {code.site})"


@waiter("cluster")
class ClusterBarriers(Waiter):
    """The barrier of every cluster: it opens when all its living threads have arrived; who has arrived waits for that opening."""

    def __init__(self, chunk):
        super().__init__(chunk)
        self.scheduler: Scheduler | None = None
        self.arrived: np.ndarray | None = None  # lanes that have arrived at the coming opening
        self.opened: np.ndarray | None = None  # lanes for which it has opened, that have not waited for it yet
        self.held: list[tuple[np.ndarray, int, int]] = []  # lanes, where to go on, site

    def count(self, lanes, releases: bool, site: int) -> None:
        """Lanes arrive."""
        chunk = self.chunk
        if self.arrived is None:
            self.arrived, self.opened = np.zeros(chunk.count, bool), np.zeros(chunk.count, bool)
        twice = self.arrived[lanes] | self.opened[lanes]
        if twice.any():
            raise chunk.fault(int(lanes[np.argmax(twice)]), site, "a thread arrives at the cluster's barrier twice without waiting for it")
        self.arrived[lanes] = True
        self._tell("release" if releases else "relaxed", lanes, site)
        self._open()

    def arrive(self, scheduler: Scheduler, lanes, values, following, site) -> None:
        """Lanes that wait."""
        self.scheduler = scheduler
        none = np.ones(len(lanes), bool) if self.arrived is None else ~(self.arrived[lanes] | self.opened[lanes])
        if none.any():
            raise self.chunk.fault(int(lanes[np.argmax(none)]), site, "a thread waits for the cluster's barrier without having arrived")
        self.held.append((lanes, following, site))
        self._let_go()

    def exited(self, scheduler: Scheduler, lanes) -> None:
        if self.arrived is not None and self.arrived.any():
            self._open()

    def waiting(self):
        return [(lanes, site, "the other threads of the cluster at its barrier") for lanes, _, site in self.held]

    def _open(self) -> None:
        chunk = self.chunk
        rows = (chunk.blocks // chunk.cluster_size, -1)
        arrived = self.arrived.reshape(rows)
        full = (arrived | ~chunk.alive.reshape(rows)).all(axis=1) & arrived.any(axis=1)
        if full.any():
            for observer in chunk.observers:
                for cluster in full.nonzero()[0].tolist():
                    observer.opened(("cluster", cluster))
            self.opened.reshape(rows)[full] |= arrived[full]
            arrived[full] = False
            self._let_go()

    def _let_go(self) -> None:
        held, self.held = self.held, []
        for lanes, following, site in held:
            going = self.opened[lanes]
            if not going.all():
                self.held.append((lanes[~going], following, site))
            if going.any():
                self.opened[lanes[going]] = False
                self._tell("acquire", lanes[going], site)
                self.scheduler.resume(following, lanes[going])

    def _tell(self, event: str, lanes, site) -> None:
        for observer in self.chunk.observers:
            clusters = self.chunk.block_of[lanes] // self.chunk.cluster_size
            for cluster in np.unique(clusters):
                getattr(observer, event)(("cluster", int(cluster)), lanes[clusters == cluster], site)


# -- elect.sync


@instruction("elect.sync", collective=32, members=1)
def elect(code, ins):
    """One lane of those that the member mask names: here the lowest."""
    target, members = ins.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    result = code.temp(f"elect({warps(code)}, {code.value(members, 'u32')})")
    code.assign(first, f"{result}[0]", "b32")
    code.assign(second, f"{result}[1]", "pred", alias=True)


@runtime
def elect(group, members):
    """(the number of the lane elected, is it this one?)"""
    named = (group.spread(members) >> np.arange(32, dtype=np.uint32) & np.uint32(1)).astype(bool) & group.present
    leader = named.argmax(axis=1).astype(np.uint32)
    return group.each(leader), group.collect((np.arange(32) == leader[:, None]) & named)


# -- what changes no value


@instruction("fence.proxy", modifiers="alias async async.global async.shared::* global shared::cta shared::cluster tensormap::generic "
                                      "async::generic acquire release sync_restrict::shared::cta sync_restrict::shared::cluster "
                                      "cta cluster gpu sys", writes=0)
@instruction("fence.mbarrier_init", modifiers="release cluster", writes=0)
@instruction("fence.acquire", "fence.release", modifiers="sync_restrict::shared::cta sync_restrict::shared::cluster cta cluster gpu sys",
             writes=0)
def fence(code, ins):
    """All proxies see all memory at once here; a sanitizer is told which fences there were."""
    if code.watched:
        code.line(f"chunk.fence({ins.mnemonic!r}, lanes, {code.site})")


@instruction("setmaxnreg.inc", "setmaxnreg.dec", types="u32", modifiers="sync aligned", writes=0, collective=128)
def setmaxnreg(code, ins):
    """Registers are without number here, but the instruction's own rules hold: whole warpgroups, 24 to 256 in steps of 8."""
    number = ins.operands[0]
    if not isinstance(number, Immediate) or number.value not in REGISTERS:
        raise PtxError(f"a number of registers that is not one of 24, 32, … 256: {ins}")
    code.line(f"whole_warpgroups(chunk, lanes, count, {code.mask}, {code.site})")


@instruction("griddepcontrol", modifiers="launch_dependents wait", writes=0)
def griddepcontrol(code, ins):
    """Launches run one after the other: what comes before has ended, what comes after has not begun.  A dependent launch that does not
    wait for what it reads goes unnoticed here."""


@instruction("nanosleep", types="u32", writes=0)
def nanosleep(code, ins):
    """There is no time here; others run anyway."""
