"""What limits a kernel, how far it is from that limit, what to try first: read off counters by plain rules, nothing measured here.

`of_counters` takes a device's hardware counters, as `ncu` names them; `of_work` what the emulator counted.  Both are pure functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudalab.roofline.roofs import Demand

BOUND = 0.8  # of what a unit can do: from here on it is the limit
IDLE = 0.75  # of a kernel's time that a multiprocessor has work: below, the grid is the limit
WASTE = 1.3  # times the compulsory bytes
CONFLICTS = 0.1  # of the wavefronts of shared memory
COALESCED = 0.6  # of the bytes of the sectors that loads ask for
FEW_WARPS = 0.35  # of the warps a multiprocessor holds
ALMOST_ALL = 0.9  # of the instructions issued, that one pipe gets: then it is the limit, not the others beside it

UNITS = dict(dram="DRAM", l2="L2", l1="L1 and shared memory", fma="the FP32 pipe", fp64="the FP64 pipe", tensor="the tensor cores",
             alu="the integer pipe", xu="the special-function pipe", lsu="the load-store pipe", issue="the issue of instructions")
_PIPE = "it is at the roof of its arithmetic: do less of it, or on a faster unit (tensor cores, a smaller type)"
_FIRST = dict(
    dram="fewer bytes: a smaller type, fusion with the kernel before or behind",
    l2="larger tiles, or tiles shared by a cluster, so that L2 is asked less often",
    l1="more arithmetic on each byte of L1 and shared memory: a larger register tile, wider reads", fma=_PIPE, fp64=_PIPE, tensor=_PIPE,
    alu="fewer index calculations: strength-reduce, unroll, hoist", xu="fewer or cheaper exponentials, roots and divisions",
    lsu="wider loads and stores, so that fewer instructions move the same bytes",
    issue="fewer instructions: wider loads, unrolling, work moved to the copy engines and tensor cores")
STALLS = dict(
    long_scoreboard=("waiting for data of global memory", "more loads in flight: unroll, asynchronous copies, a deeper pipeline"),
    short_scoreboard=("waiting for shared memory or special functions", "read shared memory earlier: a second set of registers"),
    mio_throttle=("a full queue to shared memory", "fewer, wider accesses to shared memory"),
    lg_throttle=("a full queue to global memory", "fewer, wider accesses to global memory"),
    math_pipe_throttle=("a busy arithmetic pipe", "mix in other work, or balance the pipes"),
    barrier=("waiting at a block's barrier", "fewer barriers, smaller blocks, or barriers that only some warps wait at"),
    membar=("waiting for a memory fence", "fewer or narrower fences"),
    wait=("fixed delays between dependent instructions", "more independent instructions a thread"),
    dispatch_stall=("a conflict at dispatch, often of register banks", "another order of operands, read off the SASS"),
    gmma=("waiting for the tensor cores' instructions", "more of them in flight, a second warpgroup"),
    branch_resolving=("branches", "fewer branches: predicates, unrolling"),
    no_instruction=("waiting for instructions to be fetched", "a smaller loop body"),
    imc_miss=("waiting for constants", "constants in registers or shared memory"),
    drain=("stores that drain at the end", "fewer bytes to store, or stores spread over the kernel"),
    sleeping=("sleeping", "shorter sleeps"), tex_throttle=("a full texture queue", "fewer texture loads"),
    misc=("reasons without a name", "look at the SASS"))
NOT_WAITING = "selected", "not_selected"  # reasons of ncu's for a warp that issues, and for one that could have


@dataclass(frozen=True)
class Verdict:
    """limit: a unit of UNITS, "latency", "idle", "spills", or a roof's name.  share: how near to it, 1 is it; None where no time is known.

    words: what was read.  first: what to try first.
    """

    limit: str
    share: float | None
    words: str
    first: str


def of_counters(counters: Mapping[str, float | None]) -> Verdict:
    """The verdict on one kernel.

    counters: shares of 0 to 1 for each unit of UNITS, active (of the time, a multiprocessor has work), warps (of those it could hold),
    coalesced (bytes asked for of the sectors loaded); dram_bytes and compulsory_bytes; shared_wavefronts, shared_conflicts, local_bytes,
    l1_bytes; stall_<reason>: warps that wait so, an issue.  None, or a name that is not there: not known.
    """
    def known(name, default=0.0):
        value = counters.get(name)
        return default if value is None else value

    busiest = max(UNITS, key=known)
    share, more = known(busiest), ""
    pipe = max(("fma", "fp64", "alu", "xu"), key=known)
    if busiest == "issue" and known(pipe) > max(BOUND, ALMOST_ALL * share):
        busiest, more, share = pipe, f" with {known(pipe) / share:.0%} of all instructions", known(pipe)
    near = f"{UNITS[busiest]} {share:.0%} busy{more}"
    if known("local_bytes") > 0.1 * known("l1_bytes", 1.0) > 0:
        spilled = known("local_bytes") / known("l1_bytes")
        return Verdict("spills", share, f"{spilled:.0%} of the bytes through L1 are spilled registers; {near}",
                       "a smaller tile or looser launch bounds, so that registers hold everything")
    if share < BOUND and known("active", 1.0) < IDLE:
        return Verdict("idle", known("active"), f"a multiprocessor has work {known('active'):.0%} of the time; {near}",
                       "finer work for every multiprocessor: smaller tiles, a split K, persistent blocks")
    if share >= BOUND:
        return _bound(busiest, share, near, known)
    return _latency(share, near, counters, known)


def _bound(unit: str, share: float, near: str, known) -> Verdict:
    first = _FIRST[unit]
    if unit in ("dram", "l2", "l1", "lsu") and known("coalesced", 1.0) < COALESCED:
        near += f", {known('coalesced'):.0%} of what loads fetch is used"
        first = "neighbouring threads at neighbouring addresses: sectors are fetched and not used"
    elif unit == "dram" and known("dram_bytes") > WASTE * known("compulsory_bytes", float("inf")):
        times = known("dram_bytes") / known("compulsory_bytes")
        near += f", {times:.1f} times the bytes that must move"
        first = "fetch what is used again only once: larger tiles, blocks that share data side by side"
    elif unit == "l1" and known("shared_conflicts") > CONFLICTS * known("shared_wavefronts", float("inf")):
        near += f", {known('shared_conflicts') / known('shared_wavefronts'):.0%} of its wavefronts are bank conflicts"
        first = "no bank conflicts: padded or swizzled rows"
    return Verdict(unit, share, near, first)


def _latency(share: float, near: str, counters: Mapping, known) -> Verdict:
    stalls = {name.removeprefix("stall_"): value for name, value in counters.items() if name.startswith("stall_") and value}
    stalls = {reason: value for reason, value in stalls.items() if reason not in NOT_WAITING}
    if not stalls:
        return Verdict("latency", share, f"no unit is busy: {near}", "more independent work a thread, more warps")
    reason = max(stalls, key=stalls.get)
    what, first = STALLS.get(reason, (reason.replace("_", " "), "look at the SASS"))
    words = f"no unit is busy ({near}); {stalls[reason] / sum(stalls.values()):.0%} of the waiting is {what}"
    if reason == "long_scoreboard" and known("coalesced", 1.0) < COALESCED:
        return Verdict("latency", share, f"{words}, and {known('coalesced'):.0%} of what loads fetch is used",
                       "neighbouring threads at neighbouring addresses, so that a request is fewer sectors")
    if reason == "short_scoreboard" and known("shared_conflicts") > CONFLICTS * known("shared_wavefronts", float("inf")):
        return Verdict("latency", share, f"{words}, with bank conflicts", "no bank conflicts: padded or swizzled rows")
    if known("warps", 1.0) < FEW_WARPS and reason in ("long_scoreboard", "short_scoreboard", "wait", "barrier"):
        words += f"; {known('warps'):.0%} of the warps that fit are there"
    return Verdict("latency", share, words, first)


def of_work(demands: Sequence[Demand], needed: str, time_s: float | None = None, excess: int = 0) -> Verdict:
    """The verdict by counted work (roofs.demands, the busiest first): which limit would hold the kernel if nothing ever waited.

    needed: the limit that the op has whatever the kernel does.  time_s: what the same work took on the device that the demands are of.
    excess: wavefronts of shared memory that are bank conflicts.
    """
    busiest = demands[0]
    words = f"{_limit(busiest.name)} is busy the longest"
    own = next((d for d in demands if d.name == needed), busiest)
    if own is not busiest:
        words += f", which leaves {_limit(needed)} at {own.time_s / busiest.time_s:.0%} of its roof at most"
    share = None if time_s is None else busiest.time_s / time_s
    if share is not None:
        words += f"; {share:.0%} of the time"
        if share < BOUND / 2:
            return Verdict("latency", share, words, "what waits: hardware counters say it (--counters)")
    first = _FIRST.get(dict(shared="l1", fp32="fma").get(busiest.name, busiest.name), _PIPE)
    if busiest.name == "shared" and excess > CONFLICTS * busiest.work:
        words += f"; {excess / busiest.work:.0%} of its wavefronts are bank conflicts"
        first = "no bank conflicts: padded or swizzled rows"
    return Verdict(busiest.name, share, words, first)


def _limit(name: str) -> str:
    return dict(dram="DRAM", shared="shared memory", issue="the issue of instructions").get(name, f"{name} arithmetic")
