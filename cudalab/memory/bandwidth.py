"""How many bytes a second each level gives, by the size of what is read over and over.

All threads sweep an array; while their part of it fits L1 it comes from there, then from L2, then from DRAM.  On the emulator: requests,
sectors and bytes of DRAM of the same sweeps at small sizes.
"""

from collections.abc import Iterator, Mapping, Sequence

from cudalab import measure
from cudalab.counted import count_plan
from cudalab.memory import knees
from cudalab.memory.latency import UNIFIED, size_axis
from cudalab.report import bytes_text, scaled_text
from cudalab.spec import Step
from cudalab.study import Progress, Study

ROW = 256  # bytes
# curve -> (tunables, blocks of a multiprocessor, smallest and largest set in bytes); a set past L2 is read for DRAM's sake
CURVES = {
    "through L1": (dict(THREADS=1024, UNROLL=4, CACHE=0), 2, 2**20, 2**27),
    "from L2 on": (dict(THREADS=512, UNROLL=4, CACHE=1), 4, 2**20, 2**28),
    "read once": (dict(THREADS=512, UNROLL=4, CACHE=2), 2, 2**26, 2**30),
}
COARSE, FINE = 2, 4
LEAST_READ = 2**32  # bytes that one launch reads at least: so long that its start and end do not show
L2_RANGE = 4e6, 40e6  # bytes: what counts as a set in L2 where the figure is stated
EMULATED_ROWS = (4, 64, 300)


def study(interleaved: Step) -> Study:
    return Study("memory/bandwidth", "read bandwidth over the size of what is read",
                 lambda place, progress: _measure(interleaved, place, progress),
                 ("curve", "working_set_bytes", "per_multiprocessor_bytes", "time_s", "bandwidth_bytes_per_s", "bytes_per_cycle", "loads",
                  "sectors_per_load", "dram_bytes"), _plot, _conclude)


def _measure(step: Step, place, progress: Progress) -> Iterator[dict]:
    if place.name == "emulator":
        yield from _count(step, place, progress)
        return
    sms = place.device.sms
    common = dict(l2_bytes=place.device.l2_bytes, l1_bytes=UNIFIED.get(place.device.sm), multiprocessors=sms,
                  peak_bytes_per_s=place.device.dram_bytes_per_s)
    for number, (curve, (config, per_sm, first, last)) in enumerate(CURVES.items()):
        timed = {}

        def time_per_byte(size, config=config, per_sm=per_sm, timed=timed):
            passes = max(2, -(-LEAST_READ // size))
            problem = step.op.problem(dict(R=size // ROW, P=passes))
            plan = step.plan(problem, step.config(problem, dict(config, BLOCKS=per_sm * sms)))
            timing = timed[size] = measure.time_plan(place, plan, cold=False, batches=5)
            return timing.time_s / (size * passes)
        for size, cost in knees.discover(time_per_byte, knees.spaced(first, last, COARSE, ROW), FINE, ROW):
            progress(number, len(CURVES), f"{curve}: {bytes_text(size)}")
            timing = timed[size]
            yield dict(curve=curve, working_set_bytes=size, per_multiprocessor_bytes=size // sms, time_s=timing.time_s,
                       bandwidth_bytes_per_s=1 / cost, bytes_per_cycle=1 / cost / (timing.sm_clock_mhz * 1e6) / sms,
                       sm_clock_mhz=timing.sm_clock_mhz, **common)


def _count(step: Step, place, progress: Progress) -> Iterator[dict]:
    for number, (curve, (config, _, _, _)) in enumerate(CURVES.items()):
        progress(number, len(CURVES), curve)
        for rows in EMULATED_ROWS:
            problem = step.op.problem(dict(R=rows, P=2))
            total = count_plan(step.plan(problem, step.config(problem, dict(config, THREADS=128, BLOCKS=2))), place)
            # the atomics that add up the columns, 4 bytes a lane in order, are no loads of x
            loads = total["global_load_requests"] - total["atomics"] // 32
            yield dict(curve=curve, working_set_bytes=rows * ROW, loads=loads, dram_bytes=total["dram_bytes"],
                       sectors_per_load=(total["global_load_sectors"] - total["atomics"] // 8) / loads)


def _curve(rows: Sequence[Mapping], name: str) -> list[Mapping]:
    return sorted((row for row in rows if row["curve"] == name), key=lambda row: row["working_set_bytes"])


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    if rows[0].get("time_s") is None:
        return ["A load of 16 bytes a lane asks for 16 sectors, all of them used: nothing is moved for nothing. A rate needs a GPU."]
    row, sentences = rows[0], []
    through, past = _curve(rows, "through L1"), _curve(rows, "from L2 on")
    inside = max(through, key=lambda r: r["bytes_per_cycle"])
    sentences.append(f"L1: {inside['bytes_per_cycle']:.0f} bytes a cycle and multiprocessor, {_rate(inside)} together, at "
                     f"{bytes_text(inside['per_multiprocessor_bytes'])} each.")
    sentences += _knee(through, "per_multiprocessor_bytes", row["l1_bytes"], "L1",
                       "that L1 and shared memory have together by the programming guide")
    l2 = [r for r in rows if L2_RANGE[0] <= r["working_set_bytes"] <= L2_RANGE[1] and r["curve"] == "from L2 on"]
    if l2:
        best, worst = (choose(l2, key=lambda r: r["bandwidth_bytes_per_s"]) for choose in (max, min))
        sentences.append(f"L2, sets of 4 to 40 MB: {_rate(worst)} to {_rate(best)}, {best['bytes_per_cycle']:.0f} bytes a cycle and "
                         f"multiprocessor at best.")
    sentences += _knee(past, "working_set_bytes", row["l2_bytes"], "L2", "that the driver reports")
    dram = max((r for r in rows if r["working_set_bytes"] >= 4 * row["l2_bytes"]), key=lambda r: r["bandwidth_bytes_per_s"], default=None)
    if dram:
        sentences.append(f"DRAM: {_rate(dram)} at {bytes_text(dram['working_set_bytes'])}, "
                         f"{dram['bandwidth_bytes_per_s'] / row['peak_bytes_per_s']:.1%} of memory clock times bus width.")
    return sentences


def _rate(row: Mapping) -> str:
    return scaled_text(row["bandwidth_bytes_per_s"], "B/s")


def _knee(curve: Sequence[Mapping], size: str, known: int | None, name: str, what: str) -> list[str]:
    """The first knee of a curve of time a byte beside what is known of the level."""
    found = knees.plateaus([row[size] for row in curve], [1 / row["bandwidth_bytes_per_s"] for row in curve])
    if not found or not found[0].beyond or not known:
        return [f"The curve of {name} shows no knee: the sets did not reach past it."]
    return [f"Its knee lies between {bytes_text(found[0].last)} and {bytes_text(found[0].beyond)}, {found[0].last / known:.0%} of the "
            f"{bytes_text(known)} {what}."]


def _plot(axes, rows: Sequence[Mapping]) -> None:
    timed = rows[0].get("time_s") is not None
    for curve, style in zip(CURVES, ("o-", "s-", "^-")):
        mine = _curve(rows, curve)
        values = [row["bandwidth_bytes_per_s"] / 1e12 if timed else row["loads"] for row in mine]
        axes.plot([row["working_set_bytes"] for row in mine], values, style, markersize=4, linewidth=1.2, label=curve)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    size_axis(axes, [row["working_set_bytes"] for row in rows])
    if timed:
        low, high = (choose(row["bandwidth_bytes_per_s"] / 1e12 for row in rows) for choose in (min, max))
        ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 30, 50, 100) if low / 1.6 <= tick <= high * 1.6]
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel("working set of all multiprocessors together")
    axes.set_ylabel("read bandwidth, TB/s" if timed else "loads counted")
    axes.grid(True, which="major", linewidth=0.4, alpha=0.5)
    axes.legend(loc="best", frameon=False)
