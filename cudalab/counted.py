"""A step on the emulator: is it right, and what does it ask of a device?  By counted work; never a time."""

import dataclasses
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cudalab import check
from cudalab.build import build, sm_of
from cudalab.check import Verdict, compare, draw, generator
from cudalab.devices import Device, find_device
from cudalab.dtypes import is_float
from cudalab.emulator import Emulator
from cudalab.emulator.counters import Counters, derived
from cudalab.emulator.errors import KernelFault
from cudalab.errors import MissingTool, WrongResult
from cudalab.problem import Problem
from cudalab.report import finite, fold, problem_text, scaled_text, table, terminal_width
from cudalab.roofline import roofs
from cudalab.spec import Plan, Step

# the device of a target that nobody named one for: (lowest sm, name), the newest first
TYPICAL = ((120, "GeForce RTX 5090"), (90, "H200"), (89, "RTX 4060"), (80, "A100-SXM4-80GB"))
WIDTH = 120  # columns of a profile, where the terminal is not wider; into a file or a pipe lines are as long as they are
LEGEND = "instructions of warps, their share, threads each; sectors and wavefronts a request; bank conflicts; diverged branches"
COLUMNS = (("line", 4), ("warps", 7), ("%", 3), ("thr", 4), ("s/rq", 5), ("w/rq", 5), ("cnfl", 6), ("div", 6))


FLOPS, BYTES = 1e8, 2e7  # a second, that the emulator does on one core, by order of magnitude
LONG_S = 20


@dataclass(frozen=True)
class Counted:
    """One step at one shape.  verdicts: one for each kind of input; counters: of the first, whether it was right or not."""

    plan: Plan
    target: str
    verdicts: tuple[Verdict, ...]
    counters: Counters

    def __bool__(self) -> bool:
        return all(self.verdicts)

    @property
    def label(self) -> str:
        return f"{self.plan.step.path} at {problem_text(self.plan.problem)}"


def count(step: Step, problem: Problem, target: str, *, overrides: Mapping[str, int] = types.MappingProxyType({}), seed: int = 0,
          sanitize: bool = True, kinds: tuple[str, ...] = (), progress: Callable | None = None) -> Counted:
    """Run the step on inputs of each kind, by default all that the op has, counting on the first.

    progress: called with blocks done, blocks, and a label.
    """
    plan = step.plan(problem, step.config(problem, overrides))
    counters, verdicts = Counters(), []
    for number, kind in enumerate(kinds or step.op.kinds):
        place = Emulator(target, observers=() if number else (counters,), sanitize=sanitize)
        if progress:
            label = f"{step.path} at {problem_text(problem)}, {kind.removesuffix('s')} inputs"
            place.progress = lambda done, total, entry, label=label: progress(done, total, label)
        inputs = draw(step.op, problem, kind, generator(seed + step.op.kinds.index(kind)))
        verdicts.append(verdict_of(plan, inputs, place, kind))
    return Counted(plan, target, tuple(verdicts), counters)


def count_plan(plan: Plan, place: Emulator, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> dict[str, int]:
    """Run a plan for an emulator's target, check it, and give its counters (emulator.counters.Counters.total).

    inputs: NumPy arrays by name, drawn where there are none; integer outputs must be right bit for bit.  Raises WrongResult, KernelFault.
    """
    counters, op = Counters(), plan.step.op
    given = draw(op, plan.problem, op.kinds[0], generator(seed)) if inputs is None else inputs
    outputs = Emulator(place.target, observers=(counters,), device=place.device).run(plan, given)
    exact = not any(is_float(plan.tensors[name].dtype) for name in op.outputs)
    verdict = compare(op, plan.problem, given, outputs, exact=exact)
    if not verdict:
        raise WrongResult(f"{plan.step.path} at {plan.problem}, on the emulator: {verdict.reason}")
    return counters.total()


def verdict_of(plan: Plan, inputs: Mapping, place: Emulator, kind: str) -> Verdict:
    """Run a plan and judge what comes out; a fault of the kernel is a verdict too."""
    verdict = check.verdict_of(plan, inputs, place, kind, KernelFault)
    return dataclasses.replace(verdict, reason=verdict.reason + _cure(verdict.reason, plan)) if verdict.reason else verdict


def _cure(reason: str, plan: Plan) -> str:
    """What an own file's launch lacks, where that is the reason of a fault."""
    text = plan.step.source.read_text(errors="replace")
    own = plan.step not in plan.step.op.steps and not any(launch.smem for launch in plan.launches)
    dynamic = re.search(r"\bextern\s+__shared__|\.extern\s+\.shared", text)
    return "; dynamic shared memory was not asked for: give --smem BYTES" if own and dynamic and "shared address" in reason else ""


def patience(work: Sequence[tuple[Step, Problem]]) -> str:
    """How long (step, problem) pairs take on the emulator, in words, where that is long; else empty."""
    runs = [(step.op.flops(problem) / FLOPS + step.op.bytes(problem) / BYTES, problem) for step, problem in work for _ in step.op.kinds]
    seconds = sum(time for time, _ in runs)
    if seconds < LONG_S:
        return ""
    size, unit = next((size, unit) for size, unit in ((3600, "hour"), (60, "minute"), (1, "second")) if seconds >= 1.5 * size)
    about = f"{seconds / size:.0f} {unit}s"
    largest = max(runs, key=lambda run: run[0])[1]
    return (f"this is much for the emulator: {len(runs)} runs, the largest at {problem_text(largest)}, take of the order of {about}; "
            f"without --shape it takes small ones")


def device_for(name: str | None, target: str) -> Device:
    """The device whose roofline counts: the one named, or one that runs the target."""
    number = sm_of(target)
    return find_device(name or next(typical for lowest, typical in TYPICAL if number >= lowest or lowest == 80))


def row(one: Counted, device: Device) -> dict:
    """All that is known, as JSON takes it; no time is in it."""
    total = one.counters.total()
    plan = one.plan
    return dict(op=plan.step.op.name, step=plan.step.id, shape=dict(plan.problem), dtype=plan.problem.dtype,
                variant=plan.problem.variant, config=dict(plan.config), backend="emulator",
                target=one.target, ran=True, passed=bool(one),
                checks=[dict(inputs=v.kind, passed=v.passed, error=finite(v.error), bound=v.bound, reason=v.reason) for v in one.verdicts],
                level="PTX", counters=total, derived=derived(total), mix=one.counters.mix(),
                roofline=dict(device=device.name, limits=[dict(limit=d.name, work=d.work, unit=d.unit, roof_per_s=d.roof, share=d.share)
                                                          for d in roofs.demands(total, device, plan.problem.dtype)]))


def joined(one: Counted) -> list[str]:
    """Where ptxas made other widths of access than the PTX has, so that a device counts fewer requests; empty without nvdisasm."""
    from cudalab import sass
    plan, found = one.plan, []
    if plan.step.source.suffix == ".ptx":
        return []
    try:
        mix = [instruction for listing in sass.functions(build(plan, one.target).sass).values() for instruction in listing]
    except MissingTool:
        return []
    accesses = dict(LDG=("global", "load"), STG=("global", "store"), LDS=("shared", "load"), STS=("shared", "store"))
    for opcode, (space, way) in accesses.items():
        here = one.counters.widths(space, way)
        there = {sass_width(i.opcode) for i in mix if i.opcode.split(".")[0] == opcode}
        if here and there and max(there) > max(here):
            found.append(f"ptxas joins {space} {way}s of {max(here)} bytes into {opcode} of {max(there)}: a device counts fewer requests")
    return found


def sass_width(opcode: str) -> int:
    """Bytes a lane of LDG.E.128, LDS.64, LDS, LDS.U8."""
    for part in opcode.split(".")[1:]:
        if part in ("64", "128", "256"):
            return int(part) // 8
        if part in ("U8", "S8", "U16", "S16"):
            return int(part[1:]) // 8
    return 4


# -- text

def text(one: Counted, device: Device) -> str:
    """One step at one shape, for a person."""
    total = one.counters.total()
    more = derived(total)
    lines = [fold(f"{one.label}, on the emulator: PTX for {one.target}; nothing here is a time"), ""]
    lines += [fold(f"{'result' if number == 0 else '':<11}{_verdict(v)}", " " * 11) for number, v in enumerate(one.verdicts)]
    lines += ["", "counted, at the level of PTX:"]
    for name, words in _counted(total, more):
        lines.append(fold(f"  {name:<15}{words}", " " * 17))
    mix = ", ".join(f"{name} {_short(entry['warps'])}" for name, entry in one.counters.mix().items())
    lines.append(fold(f"  {'mix, warps':<15}{mix}", " " * 17))
    but = joined(one)
    lines += [fold(f"  {'but':<15}{words}", " " * 17) for words in but]
    return "\n".join([*lines, "", roof_text(total, device, bool(but), one.plan.problem.dtype)])


def brief(one: Counted) -> str:
    """The verdicts in one line."""
    return f"{one.label}: {'; '.join(_verdict(v) for v in one.verdicts)}"


def _verdict(v: Verdict) -> str:
    inputs = v.kind.removesuffix("s") + " inputs"
    if not v:
        return f"WRONG on {inputs}: {v.reason}"
    return f"right on {inputs}" + (", bit for bit" if not v.bound else f": error {v.error:.2e} of the scale, at most {v.bound:.2e}")


def _counted(total: Mapping, more: Mapping):
    yield "instructions", f"{total['warp_instructions']:,} of warps, {_ratio(more['threads_per_warp'])} threads each"
    for space, way in ((space, way) for space in ("global", "shared") for way in ("load", "store")):
        requests = total[f"{space}_{way}_requests"]
        if not requests:
            continue
        if space == "global":
            sectors, nbytes = total[f"global_{way}_sectors"], total[f"global_{way}_bytes"]
            words = f"{sectors:,} sectors: {sectors / requests:.1f} a request, {nbytes / sectors / 32:.0%} of their bytes asked for"
        else:
            waves, ideal = total[f"shared_{way}_wavefronts"], total[f"shared_{way}_ideal"]
            words = f"{waves:,} wavefronts: {waves / requests:.1f} a request, {waves - ideal:,} of them bank conflicts"
        yield f"{space} {way}s", f"{requests:,} requests, {words}"
    if total["async_global_bytes"] or total["async_shared_bytes"]:
        yield "TMA, wgmma", f"{total['async_global_bytes']:,} bytes of global memory, {total['async_shared_bytes']:,} of shared memory"
    if total["local_bytes"]:
        yield "local memory", f"{total['local_bytes']:,} bytes"
    yield "branches", f"{total['branches']:,} by warps, {total['divergent_branches']:,} diverged"
    yield "barriers", f"{total['barriers']:,} by warps; opened {total['barrier_openings']:,} times"
    if total["atomics"]:
        yield "atomics", f"{total['atomics']:,}, of them {total['atomic_collisions']:,} at an address that another lane of the warp has too"
    flops = ", ".join(f"{total[f'flops_{kind}']:,} {name}" for kind, name in
                      dict(f32="FP32", f16="FP16", f64="FP64", tensor="tensor core").items() if total[f"flops_{kind}"])
    yield "FLOP", flops or "none"
    yield "bytes", (f"{_work(more['shared_bytes'], 'byte')} of shared memory, {_work(more['global_bytes'], 'byte')} of global memory in "
                    f"{_work(more['sector_bytes'], 'byte')} of sectors, {_work(total['dram_bytes'], 'byte')} of DRAM at least")


def roof_text(total: Mapping, device: Device, but: bool = False, dtype: str = "f32") -> str:
    """Where the counted work stands on a device's roofline.  but: ptxas makes something else of the accesses.  dtype: of the elements."""
    found = roofs.demands(total, device, dtype)
    lines = [(d.name, _work(d.work, d.unit), _work(d.roof, d.unit, "/s"), f"{d.share:.0%}") for d in found]
    text = [f"roofline   {device.name}, by counted work", "",
            table(lines, ("limit", "counted", "the device at most", "of the busiest"), left=(0,))]
    limits = {d.name: d for d in found}
    arithmetic = max((d for d in found if d.unit == "FLOP"), key=lambda d: d.share)
    if arithmetic.work and total["dram_bytes"]:
        name, peak, intensity = arithmetic.name.upper(), arithmetic.roof, arithmetic.work / total["dram_bytes"]
        ridge, reach = peak / limits["dram"].roof, arithmetic.share
        text += ["", fold(f"intensity  {intensity:.1f} {name} FLOP a byte of DRAM at most; the ridge is at {ridge:.1f}: the roofline there "
                          f"is {scaled_text(min(1.0, intensity / ridge) * peak, 'FLOP/s')}", " " * 11)]
        if found[0].name not in (arithmetic.name, "dram"):
            text.append(fold(f"{'':<11}executed as the PTX stands, {found[0].name} would hold it at {scaled_text(reach * peak, 'FLOP/s')}, "
                             f"{reach:.0%} of the {name} roof" + ("; see 'but' above" if but else ""), " " * 11))
    counted = sum(total[f"flops_{kind}"] for kind in ("f16", "f32", "f64", "tensor"))
    if other := counted - sum(d.work for d in found if d.unit == "FLOP"):
        text += [f"           {scaled_text(other, 'FLOP')} are of a type without a roof here."]
    return "\n".join(text)


def rows_text(found: list[Counted], device: Device) -> str:
    """Several steps or shapes: one line each."""
    lines = []
    for one in found:
        total = one.counters.total()
        more, reasons = derived(total), [v.reason for v in one.verdicts if not v]
        busiest = roofs.demands(total, device, one.plan.problem.dtype)[0].name
        lines.append((one.plan.step.path, problem_text(one.plan.problem), "right" if one else "WRONG", _short(total["warp_instructions"]),
                      _ratio(more["sectors_per_request"]), _short(more["shared_excess"]), _short(total["divergent_branches"]),
                      _ratio(more["intensity_sectors"]), busiest, (reasons or [""])[0]))
    head = ("step", "shape", "result", "warp instr.", "sectors/req.", "conflicts", "diverged", "FLOP/B", "busiest", "reason")
    if all(one for one in found):
        lines, head = [line[:-1] for line in lines], head[:-1]
    return (table(lines, head, left=(0, 1, 2, 8, 9), wrap=9 if len(head) == 10 else None) +
            f"\n\nOn the emulator, counted at the level of PTX; the busiest limit of {device.name} by that count.  Nothing here is a time.")


def profile_text(one: Counted) -> str:
    """The source with counters beside each line."""
    source, by_ptx = one.plan.step.source, one.plan.step.source.suffix == ".ptx"
    found = one.counters.lines(by_ptx)
    width = max(WIDTH, terminal_width() or 0)
    cut = width if terminal_width() else None
    own = {line: counts for (file, line), counts in found.items() if by_ptx or Path(file).name in (source.name, "kernel.cu")}
    total = one.counters.total()
    head = _columns(*(name for name, _ in COLUMNS))
    lines = [LEGEND, "", head.rstrip(), "-" * width]
    for number, code in enumerate(source.read_text(errors="replace").expandtabs(4).splitlines(), 1):
        lines.append((_beside(number, own.get(number), total) + code[:cut and cut - len(head)]).rstrip())
    for key, counts in found.items():
        if not by_ptx and (Path(key[0]).name not in (source.name, "kernel.cu") or not key[1]):
            lines.append(_beside(key[1], counts, total) + (Path(key[0]).name or "no line known"))
    return "\n".join(lines)


def _beside(number: int, counts: Mapping | None, total: Mapping) -> str:
    if counts is None:
        return _columns(number, *[""] * (len(COLUMNS) - 1))
    more = derived(counts)
    requests = counts["shared_load_requests"] + counts["shared_store_requests"]
    waves = counts["shared_load_wavefronts"] + counts["shared_store_wavefronts"]
    share = f"{100 * counts['warp_instructions'] / total['warp_instructions']:.0f}"
    excess, diverged = more["shared_excess"], counts["divergent_branches"]
    return _columns(number, _short(counts["warp_instructions"]), share, _ratio(more["threads_per_warp"]),
                    _ratio(more["sectors_per_request"], ""), f"{waves / requests:.1f}" if requests else "",
                    _short(excess) if excess else "", _short(diverged) if diverged else "")


def _columns(*cells) -> str:
    return " ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)) + "  "


def difference(a: Counted, b: Counted) -> list[tuple]:
    """Counters of two steps beside each other: (name, one, other, factor), those that are not zero in both."""
    pairs = []
    (one, other) = ((total | derived(total)) for total in (x.counters.total() for x in (a, b)))
    for name in one:
        x, y = one[name] or 0, other[name] or 0
        if x or y:
            pairs.append((name.replace("_", " "), _number(x), _number(y), f"x {y / x:.3g}" if x else "new"))
    return pairs


def _number(value) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _ratio(value, none: str = "-") -> str:
    return none if value is None else f"{value:.1f}"


def _short(value: float) -> str:
    """1234567 -> 1.23M"""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _work(value: float, unit: str, per: str = "") -> str:
    """Work in a unit of `roofs.Demand`, or a rate of it (per: "/s"): 14.16 MFLOP, 4.8 TB/s, 169k wavefronts."""
    short = dict(FLOP="FLOP", byte="B").get(unit)
    return scaled_text(value, short + per) if short else f"{_short(value)} {unit}s{per}"
