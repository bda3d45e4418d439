"""The roofs of a device, measured: kernels that do one thing only, counted by the cycles and the clock that they read themselves.

Where a multiprocessor works for itself, a roof kernel has an output beside its op's, `stamps`: a row a block with its multiprocessor,
cycles at start and end, nanoseconds at start and end.  Blocks of a multiprocessor share its counter, so its operations a cycle are theirs
over the cycles from the first start to the last end; nothing outside of the kernel counts.  What all multiprocessors share, DRAM and L2, is
timed from outside, as any kernel is, since the last of them sets the time; its clock is that of the protocol, read behind each batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cudalab.devices import Device
from cudalab.errors import LabError
from cudalab.problem import Problem
from cudalab.report import scaled_text
from cudalab.roofline import roofs
from cudalab.spec import Plan, Step
from cudalab.study import Progress

COLUMNS = ("roof", "through", "protocol", "per_cycle", "architecture_per_cycle", "architecture_share", "rate", "sm_clock_mhz", "power_w",
           "temperature_c", "throttle", "counted", "expected")
LEAST_SHARE = 0.9  # of the architecture's figure; a roof below it is named


@dataclass(frozen=True)
class Target:
    """One roof to measure.  through: the instruction that reaches it.  work: operations (unit FLOP) or bytes of one run of the plan.
    counters: of the emulator, which together count that work.  warm: the data stay in L2 between calls.  outside: timed by events.
    config: tunables that differ from the step's defaults."""

    roof: str
    through: str
    step: Step
    problem: Problem
    work: int
    unit: str
    counters: tuple[str, ...]
    warm: bool = False
    outside: bool = False
    config: Mapping[str, int] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.step.plan(self.problem, self.step.config(self.problem, self.config))


def measure(targets: Callable[[Device, bool], Sequence[Target]], protocols: Sequence[str] = ("steady", "sustained")) -> Callable:
    """A study's function: a row for each target (targets: of a device, small ones or not) and protocol; on the emulator one, counted."""
    def rows(place, progress: Progress) -> Iterator[dict]:
        emulated = place.name == "emulator"
        found = [target for target in targets(place.device, emulated) if target.step.runs_on(place.device.sm, target.problem)]
        architecture = roofs.architecture(place.device)
        kinds = ("counted",) if emulated else protocols
        for number, target in enumerate(found):
            known = architecture.get(target.roof)
            for index, protocol in enumerate(kinds):
                progress(number * len(kinds) + index, len(found) * len(kinds), "roofs")
                row = dict(roof=target.roof, through=target.through, unit=target.unit, architecture_per_cycle=known and known.per_cycle)
                yield row | (_counted(target, place) if emulated else _timed(target, place, protocol, known))
    return rows


def _counted(target: Target, place) -> dict:
    from cudalab.counted import count_plan
    total = count_plan(target.plan, place)
    return dict(protocol="counted", counted=sum(total[name] for name in target.counters), expected=target.work)


def _timed(target: Target, gpu, protocol: str, known) -> dict:
    from cudalab.measure import time_plan
    timing = time_plan(gpu, target.plan, cold=not target.warm, protocol=protocol)
    sms = gpu.device.sms
    if target.outside:
        rate, clock_hz = target.work / timing.time_s, timing.sm_clock_mhz * 1e6
        per_cycle = rate / (sms * clock_hz)
    else:
        per_cycle, clock_hz = rate_inside(timing.outputs["stamps"], target.work)
        rate = per_cycle * sms * clock_hz
    share = known and (rate / known.value if target.outside else per_cycle / known.per_cycle)
    return dict(protocol=protocol, per_cycle=per_cycle, architecture_share=share, rate_per_s=rate, time_s=timing.time_s,
                rate=scaled_text(rate, "FLOP/s" if target.unit == "FLOP" else "B/s"), sm_clock_mhz=clock_hz / 1e6, power_w=timing.power_w,
                temperature_c=timing.temperature_c, throttle=", ".join(timing.throttle or ()) or None)


def rate_inside(stamps, work: int) -> tuple[float, float]:
    """Operations a cycle of one multiprocessor, and the clock in Hz, from the stamps of all blocks, which share `work` evenly; medians.

    stamps: an array with a row a block.
    Raises LabError for stamps that a device cannot have left, such as a clock that stood still.
    """
    import statistics

    import numpy as np
    stamps = np.asarray(stamps).astype(np.int64)
    cycles, nanoseconds = stamps[:, 2] - stamps[:, 1], stamps[:, 4] - stamps[:, 3]
    if (cycles <= 0).any() or (nanoseconds <= 0).any():
        raise LabError("a roof kernel was too short for the device's timer, or its stamps were not written: measure on an idle device")
    rates = []
    for sm in np.unique(stamps[:, 0]):
        mine = stamps[stamps[:, 0] == sm]
        rates.append(work * len(mine) / len(stamps) / (mine[:, 2].max() - mine[:, 1].min()))
    return statistics.median(map(float, rates)), float(np.median(cycles / nanoseconds)) * 1e9


def conclude(rows: Sequence[Mapping]) -> list[str]:
    """Sentences: each roof beside the architecture's figure, those that fall short, what running on costs."""
    timed = [row for row in rows if row["protocol"] == "steady"]
    if not timed:
        wrong = [row for row in rows if row["counted"] < row["expected"]]
        return [f"{len(rows)} roof kernels did the work that they claim, counted on the emulator" if not wrong else
                f"{', '.join(row['roof'] for row in wrong)}: less work counted than claimed"]
    sentences = []
    for row in timed:
        later = next((r for r in rows if r["protocol"] == "sustained" and (r["roof"], r["through"]) == (row["roof"], row["through"])), None)
        own = f" of {row['architecture_per_cycle']:.4g}" if row["architecture_per_cycle"] else ""
        share = f" ({row['architecture_share']:.1%})" if row["architecture_share"] else ""
        unit = "bytes" if row["unit"] == "byte" else "operations"
        words = f"{row['roof']} by {row['through']}: {row['per_cycle']:.4g}{own} {unit} a cycle and SM{share}"
        words += f" at {row['sm_clock_mhz']:.0f} MHz, {row['rate']}"
        if later:
            words += f"; for two seconds on end {later['rate']} at {later['sm_clock_mhz']:.0f} MHz"
            words += f" and {later['power_w']:.0f} W" if later["power_w"] else ""
        sentences.append(words + ".")
    low = [f"{row['roof']} by {row['through']}" for row in timed if row["architecture_share"] and row["architecture_share"] < LEAST_SHARE]
    return sentences + ([f"Below {LEAST_SHARE:.0%} of the architecture's figure: {', '.join(low)}."] if low else [])


def plot(axes, rows: Sequence[Mapping]) -> None:
    """A bar a roof and protocol: its rate as a share of the architecture's at the highest clock (on the emulator: of the work claimed)."""
    counted = all(row["protocol"] == "counted" for row in rows)
    names = list(dict.fromkeys((row["roof"], row["through"]) for row in rows))
    highest = max((row["sm_clock_mhz"] or 0 for row in rows), default=0)
    protocols = list(dict.fromkeys(row["protocol"] for row in rows))
    for place, name in enumerate(names):
        mine = [row for row in rows if (row["roof"], row["through"]) == name]
        for row in mine:
            index = protocols.index(row["protocol"])
            share = row["counted"] / row["expected"] if counted else row["architecture_share"] or 0.0  # of L2 none is published
            if not counted and not row["roof"].startswith("dram"):
                share *= row["sm_clock_mhz"] / highest
            at = place + (index - (len(protocols) - 1) / 2) * 0.4
            axes.barh(at, 100 * share, height=0.36, color=("#2f6ca3", "#9fb8cf")[index], label=row["protocol"] if place == 0 else None)
        words = [f"{row['counted']:,} {row['unit']}s" if counted else f"{row['rate']} at {row['sm_clock_mhz']:.0f} MHz" for row in mine]
        axes.text(108, place, ", ".join(words), va="center", fontsize=7)  # in a column of their own, where no bar reaches
    axes.set_yticks(range(len(names)), [f"{roof} {through}" for roof, through in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 195)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("% of the work claimed" if counted else "% of the architecture's figure at the highest clock seen", loc="left")
    if len(protocols) > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
