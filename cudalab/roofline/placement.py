"""Kernels under a device's roofs: steps of the lab, and the kernels of a language model, as points of one table and one picture.

A point is a mapping: kernel, shape, dtype, variant; phase and count (of a model's kernels); flops, bytes, intensity (FLOP a byte); compute
(the roof of its arithmetic), bound (the roof that holds it), floor_s (the least time); time_s, source (of the time), rate_per_s, share (of
the roof); and of the verdict limit, share_of_limit, words, first, counters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from cudalab.devices import Device
from cudalab.emulator.counters import derived
from cudalab.errors import LabError, OutOfMemory
from cudalab.problem import Problem
from cudalab.report import fold, problem_text, scaled_text, table, time_text
from cudalab.roofline import ncu, roofs, verdict
from cudalab.roofline.model import PHASES, Model, kernels, resident_bytes
from cudalab.roofline.roofs import COMPUTE, Roof
from cudalab.spec import Step

UNKNOWN = dict.fromkeys(("time_s", "source", "rate_per_s", "share", "limit", "share_of_limit", "words", "first", "counters"))


def place(step: Step, problem: Problem, known: Mapping[str, Roof]) -> dict:
    """A step by its op's own count of work; no time is in it yet."""
    op = step.op
    compute, flops, traffic = roofs.compute_roof(problem, known), op.flops(problem), roofs.traffic(op, problem)
    return dict(kernel=step.path, shape=problem_text(problem), dtype=problem.dtype, variant=problem.variant, phase=None, count=1,
                **_floor(flops, *traffic, compute, known))


def require_room(step: Step, problem: Problem, device: Device) -> None:
    """Raise OutOfMemory for a problem whose tensors the device cannot hold."""
    needed = sum(t.nbytes for t in step.op.tensors(problem).values())
    if needed > device.memory_bytes:
        raise OutOfMemory(f"{step.path} at {problem} needs {needed / 1e9:.4g} GB, and {device.name} has {device.memory_bytes / 1e9:.4g} "
                          f"GB: a smaller --shape, or another --device")


def _floor(flops: int, read: int, written: int, compute: str, known: Mapping[str, Roof]) -> dict:
    times = {compute: flops / known[compute].value, "dram": roofs.dram_time(read, written, known)}
    bound = max(times, key=times.get)
    return dict(flops=flops, bytes=read + written, intensity=flops / (read + written), compute=compute, bound=bound, floor_s=times[bound],
                **UNKNOWN)


def timed(point: dict, time_s: float, source: str) -> dict:
    """The point with its time, and what share of its roof that is."""
    return point | dict(time_s=time_s, source=source, rate_per_s=point["flops"] / time_s, share=point["floor_s"] / time_s)


def from_results(point: dict, step: Step, problem: Problem, rows: Iterable[Mapping]) -> dict:
    """The point with the newest steady time that `rows` hold for it, if they hold one."""
    found = [row for row in rows if (row["op"], row["step"], row["shape"], row["dtype"], row["variant"], row["protocol"]) ==
             (step.op.name, step.id, dict(problem), problem.dtype, problem.variant, "steady")]
    return timed(point, found[-1]["time_s"], f"results, {found[-1]['date'][:10]}") if found else point


def measured(point: dict, gpu, step: Step, problem: Problem, config: Mapping[str, int]) -> dict:
    """The point with the steady time of the step on this device, checked as every measurement is."""
    from cudalab.measure import time_plan
    return timed(point, time_plan(gpu, step.plan(problem, step.config(problem, config))).time_s, "measured now")


def judged(point: dict, found: verdict.Verdict, counters: Mapping | None = None) -> dict:
    return point | dict(limit=found.limit, share_of_limit=found.share, words=found.words, first=found.first, counters=counters)


def by_work(point: dict, step: Step, problem: Problem, target: str, device: Device, progress: Callable | None = None) -> dict:
    """The point with the verdict by what the emulator counts, at the op's shape for it.  Raises LabError as the emulator does."""
    from cudalab import counted
    shapes = step.problems("emulate", (problem.dtype,), (problem.variant,))
    if not shapes:
        raise LabError(f"{step.path} takes none of its op's shapes for the emulator as {problem.dtype}: --no-counters goes without")
    one = counted.count(step, shapes[0], target, kinds=step.op.kinds[:1], sanitize=False, progress=progress)
    if not one:
        raise LabError(f"{one.label} is wrong on the emulator: {one.verdicts[0].reason}")
    total = one.counters.total()
    demands = roofs.demands(total, device, problem.dtype)
    found = verdict.of_work(demands, point["bound"], excess=derived(total)["shared_excess"])
    but = "".join(f"; but {words}" for words in counted.joined(one))
    found = replace(found, words=f"counted at {problem_text(shapes[0])}: {found.words}{but}")
    return judged(point, found, total)


def by_counters(point: dict, step: Step, problem: Problem, config: Mapping[str, int]) -> dict:
    """The point with the verdict by hardware counters, on its longest launch; its time is ncu's own where nothing else is known.

    Raises MissingTool, LabError as `ncu.profile` does.
    """
    launches = ncu.profile(step.plan(problem, step.config(problem, config)))
    longest = max(launches, key=lambda launch: launch["time_s"] or 0.0)
    if point["time_s"] is None and all(launch["time_s"] for launch in launches):
        point = timed(point, sum(launch["time_s"] for launch in launches), "ncu")
    whole = dict(longest, compulsory_bytes=point["bytes"])
    if len(launches) > 1:  # what the plan moves is that of all its launches
        moved = [launch["dram_bytes"] for launch in launches]
        whole["dram_bytes"] = None if None in moved else sum(moved)
    return judged(point, verdict.of_counters(whole), dict(launches=launches))


def of_model(model: Model, batch: int, sequence: int, dtype: str, phases: Sequence[str], device: Device,
             known: Mapping[str, Roof]) -> list[dict]:
    """The kernels of a model's steps.  Raises OutOfMemory for a model that the device cannot hold."""
    needed = resident_bytes(model, batch, sequence, dtype)
    if needed > device.memory_bytes:
        raise OutOfMemory(f"{model.name} with {batch} x {sequence} tokens needs {needed / 1e9:.4g} GB as {dtype}, and {device.name} has "
                          f"{device.memory_bytes / 1e9:.4g} GB: a smaller batch or sequence, a smaller --dtype, or another --device")
    points = []
    for phase in phases:
        for kernel in kernels(model, batch, sequence, dtype, phase):
            compute = COMPUTE.get(dtype, dtype) if kernel.matrix else "fp32"
            compute = compute if compute in known else "fp32"
            point = dict(kernel=f"{phase}/{kernel.name}", shape=kernel.shape, dtype=dtype, variant=None, phase=phase, count=kernel.count,
                         **_floor(kernel.flops, kernel.read, kernel.written, compute, known))
            points.append(point)
    return points


def model_sentences(points: Sequence[Mapping], batch: int, sequence: int) -> list[str]:
    """What the steps of a model take at least."""
    lines = []
    for phase in PHASES:
        mine = [p for p in points if p["phase"] == phase]
        if not mine:
            continue
        total = sum(p["count"] * p["floor_s"] for p in mine)
        memory = sum(p["count"] * p["floor_s"] for p in mine if p["bound"] == "dram") / total
        tokens = batch * sequence if phase == "prefill" else batch
        lines.append(f"{phase}: at least {time_text(total)} a step, at most {tokens / total:,.0f} tokens a second; "
                     f"{memory:.0%} of the time under the roof of DRAM")
    return lines


# -- text

def roofs_text(device: Device, known: Mapping[str, Roof]) -> str:
    """The roofs, measured beside the architecture's."""
    own = roofs.architecture(device)
    lines = []
    for name, roof in known.items():
        unit, figure = "FLOP/s" if roof.unit == "FLOP" else "B/s", own.get(name)
        lines.append((name, scaled_text(roof.value, unit), f"{roof.per_cycle:.4g}", scaled_text(figure.value, unit) if figure else "-",
                      f"{figure.per_cycle:.4g}" if figure else "-", roof.source if roof.measured else "architecture"))
    return table(lines, ("roof", "a second", "a cycle and SM", "architecture", "a cycle and SM", "from"), left=(0, 5), wrap=5)


def points_text(points: Sequence[Mapping]) -> str:
    """A line a kernel, without the columns that nothing is in, and the verdicts behind them."""
    lines = [(p["kernel"], p["shape"], f"{p['count']}" if p["phase"] else "", _number(p["intensity"]), p["bound"],
              time_text(p["floor_s"]), time_text(p["time_s"]) if p["time_s"] else "", f"{p['share']:.0%}" if p["share"] else "", _limit(p))
             for p in points]
    heads = ("kernel", "shape", "times", "FLOP/B", "roof", "at least", "time", "of the roof", "limit")
    kept = [i for i in range(len(heads)) if any(line[i] for line in lines)]
    left = [n for n, i in enumerate(kept) if i in (0, 1, 4, 8)]
    text = [table([[line[i] for i in kept] for line in lines], [heads[i] for i in kept], left=left)]
    for p in points:
        if p["words"]:
            text.append(fold(f"{p['kernel']}: {p['words']}.  First: {p['first']}.", "  "))
            text += [fold(line, " " * 10) for launch in p["counters"].get("launches", ()) for line in counters_lines(launch)]
    return text[0] + ("\n\n" + "\n".join(text[1:]) if text[1:] else "")


def counters_lines(launch: Mapping) -> list[str]:
    """What ncu counted of one launch: bytes by level, how busy each unit was, what warps waited for.  What is not known is left out."""
    names = dict(dram_read_bytes="DRAM read", dram_write_bytes="DRAM written", l2_bytes="L2", l1_bytes="L1", local_bytes="spilled")
    levels = [f"{what} {scaled_text(launch[name], 'B')}" for name, what in names.items() if launch.get(name)]
    units = sorted(((launch[unit], unit) for unit in verdict.UNITS if (launch.get(unit) or 0) >= 0.005), reverse=True)
    stalls = sorted(((launch[f"stall_{reason}"], reason) for reason in verdict.STALLS if (launch.get(f"stall_{reason}") or 0) >= 0.005),
                    reverse=True)
    found = (("bytes", levels), ("busy", [f"{unit} {share:.0%}" for share, unit in units]),
             ("waiting", [f"{reason} {warps:.2f}" for warps, reason in stalls] + ["warps an instruction"] * bool(stalls)))
    return [f"  {name:<8}{', '.join(words)}" for name, words in found if words]


def _limit(point: Mapping) -> str:
    share = "" if point["share_of_limit"] is None else f" {point['share_of_limit']:.0%}"
    return f"{point['limit'] or ''}{share}"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1e4 else f"{value:,.0f}"


def as_rows(points: Sequence[Mapping], known: Mapping[str, Roof]) -> dict:
    """Roofs and points as JSON takes them."""
    return dict(roofs=[asdict(roof) for roof in known.values()], points=list(points))
