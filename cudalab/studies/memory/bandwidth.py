"""How many bytes a second each level gives, by the size of what is read over and over.

All threads sweep an array; while their part of it fits L1 it comes from there, then from L2, then from DRAM.  From sm_90 on also with the
copy engine, in pieces, past L1.  On the emulator: requests, sectors and bytes of DRAM of the same sweeps at small sizes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cudalab.report import bytes_text, scaled_text
from cudalab.spec import Step
from cudalab.studies.memory import knees
from cudalab.studies.memory.latency import UNIFIED, size_axis
from cudalab.study import Progress, Study

ROW = 256  # bytes
VECTOR = 16  # bytes of one load


@dataclass(frozen=True, eq=False)
class Curve:
    """first, last: bytes of the smallest and largest set; a set past L2 is read for DRAM's sake.  tunings: (largest set in bytes, blocks of
    a multiprocessor, tunables), each for the sets up to its size: what was fastest there.  whole: only sets of which every thread reads
    the same vectors in each pass."""

    name: str
    first: int
    last: int
    tunings: tuple[tuple[float, int, dict[str, int]], ...]
    whole: bool = False

    def tuning(self, size: int) -> tuple[int, dict[str, int]]:
        return next((per_sm, config) for largest, per_sm, config in self.tunings if size <= largest)

    def unit(self, multiprocessors: int) -> int:
        """What its sets are multiples of, in bytes."""
        per_sm, config = self.tuning(self.first)
        return VECTOR * config["THREADS"] * per_sm * multiprocessors if self.whole else ROW


ANY = float("inf")
THROUGH_L1 = Curve("through L1", 1, 2**28, ((ANY, 1, dict(THREADS=1024, UNROLL=4, CACHE=0)),), whole=True)
FROM_L2 = Curve("from L2 on", 2**20, 2**28, ((ANY, 8, dict(THREADS=256, UNROLL=2, CACHE=1)),))
READ_ONCE = Curve("read once", 2**26, 2**30, ((ANY, 2, dict(THREADS=512, UNROLL=4, CACHE=2)),))
IN_BULK = Curve("in bulk", 2**21, 2**30, ((18e6, 4, dict(THREADS=128, ROWS=32, STAGES=3)),
                                          (64e6, 1, dict(THREADS=512, ROWS=128, STAGES=6)),
                                          (ANY, 2, dict(THREADS=512, ROWS=128, STAGES=3))))
CURVES = THROUGH_L1, FROM_L2, READ_ONCE, IN_BULK
COARSE, FINE = 2, 4
LEAST_READ = 2**32  # bytes that one launch reads at least: so long that its start and end do not show
L2_RANGE = 4e6, 40e6  # bytes: what counts as a set in L2 where the figure is stated
EMULATED_ROWS = (4, 64, 300)


def study(interleaved: Step, bulk: Step) -> Study:
    steps = {curve: bulk if curve is IN_BULK else interleaved for curve in CURVES}
    return Study("memory/bandwidth", "read bandwidth over the size of what is read",
                 lambda place, progress: _measure(steps, place, progress),
                 ("curve", "working_set_bytes", "per_multiprocessor_bytes", "kernel", "time_s", "bandwidth_bytes_per_s", "bytes_per_cycle",
                  "loads", "sectors_per_load", "dram_bytes"), _plot, _conclude)


def _measure(steps: Mapping[Curve, Step], place, progress: Progress) -> Iterator[dict]:
    from cudalab import measure
    if place.name == "emulator":
        yield from _count(steps, place, progress)
        return
    sms = place.device.sms
    common = dict(l2_bytes=place.device.l2_bytes, l1_bytes=UNIFIED.get(place.device.sm), multiprocessors=sms,
                  peak_bytes_per_s=place.device.dram_bytes_per_s)
    curves = [curve for curve in CURVES if steps[curve].min_sm <= place.device.sm]
    for number, curve in enumerate(curves):
        timed, unit = {}, curve.unit(sms)

        def time_per_byte(size, curve=curve, step=steps[curve], timed=timed):
            passes = max(2, -(-LEAST_READ // size))
            per_sm, config = curve.tuning(size)
            problem = step.op.problem(dict(R=size // ROW, P=passes))
            plan = step.plan(problem, step.config(problem, dict(config, BLOCKS=per_sm * sms)))
            timing = measure.time_plan(place, plan, cold=False, batches=5)
            timed[size] = timing, step.name + "".join(f" {name}={value}" for name, value in config.items()) + f" x {per_sm}"
            return timing.time_s / (size * passes)
        for size, cost in knees.discover(time_per_byte, knees.spaced(max(curve.first, unit), curve.last, COARSE, unit), FINE, unit):
            progress(number, len(curves), f"{curve.name}: {bytes_text(size)}")
            timing, kernel = timed[size]
            yield dict(curve=curve.name, working_set_bytes=size, per_multiprocessor_bytes=size // sms, kernel=kernel, time_s=timing.time_s,
                       bandwidth_bytes_per_s=1 / cost, bytes_per_cycle=1 / cost / (timing.sm_clock_mhz * 1e6) / sms,
                       sm_clock_mhz=timing.sm_clock_mhz, **common)


def _count(steps: Mapping[Curve, Step], place, progress: Progress) -> Iterator[dict]:
    """What loads ask for.  The copy engine's pieces are no requests of a warp: that curve has nothing to count."""
    from cudalab.counted import count_plan
    curves = [curve for curve in CURVES if curve is not IN_BULK]
    for number, curve in enumerate(curves):
        progress(number, len(curves), curve.name)
        for rows in EMULATED_ROWS:
            step = steps[curve]
            problem = step.op.problem(dict(R=rows, P=2))
            config = dict(curve.tuning(rows * ROW)[1], THREADS=128, BLOCKS=2)
            total = count_plan(step.plan(problem, step.config(problem, config)), place)
            # the atomics that add up the columns, 4 bytes a lane in order, are no loads of x
            loads = total["global_load_requests"] - total["atomics"] // 32
            yield dict(curve=curve.name, working_set_bytes=rows * ROW, loads=loads, dram_bytes=total["dram_bytes"],
                       sectors_per_load=(total["global_load_sectors"] - total["atomics"] // 8) / loads)


def _curve(rows: Sequence[Mapping], name: str) -> list[Mapping]:
    return sorted((row for row in rows if row["curve"] == name), key=lambda row: row["working_set_bytes"])


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    if rows[0].get("time_s") is None:
        return ["A load of 16 bytes a lane asks for 16 sectors, all of them used: nothing is moved for nothing. A rate needs a GPU."]
    row = rows[0]
    through, past = _curve(rows, THROUGH_L1.name), _curve(rows, IN_BULK.name) or _curve(rows, FROM_L2.name)
    inside = max(through, key=lambda r: r["bytes_per_cycle"])
    sentences = [f"L1: {inside['bytes_per_cycle']:.0f} bytes a cycle and multiprocessor, {_rate(inside)} together, at "
                 f"{bytes_text(inside['per_multiprocessor_bytes'])} each.",
                 _knee(through, "per_multiprocessor_bytes", row["l1_bytes"], "L1",
                       "that L1 and shared memory have together by the programming guide")]
    for curve in (FROM_L2.name, IN_BULK.name):
        l2 = [r for r in _curve(rows, curve) if L2_RANGE[0] <= r["working_set_bytes"] <= L2_RANGE[1]]
        if l2:
            best, worst = (choose(l2, key=lambda r: r["bandwidth_bytes_per_s"]) for choose in (max, min))
            name = "L2" if curve == FROM_L2.name else f"L2 {curve}"
            sentences.append(f"{name}, sets of 4 to 40 MB: {_rate(worst)} ({bytes_text(worst['working_set_bytes'])}) to {_rate(best)} "
                             f"({bytes_text(best['working_set_bytes'])}), {best['bytes_per_cycle']:.0f} bytes a cycle and "
                             f"multiprocessor at best.")
    sentences.append(_knee(past, "working_set_bytes", row["l2_bytes"], "L2", "that the driver reports"))
    dram = max((r for r in rows if r["working_set_bytes"] >= 4 * row["l2_bytes"]), key=lambda r: r["bandwidth_bytes_per_s"], default=None)
    if dram:
        share = dram["bandwidth_bytes_per_s"] / row["peak_bytes_per_s"]
        more = f" More than memory can give: part of it still comes from the {bytes_text(row['l2_bytes'])} of L2." if share > 1 else ""
        sentences.append(f"DRAM: {_rate(dram)} at {bytes_text(dram['working_set_bytes'])}, {dram['curve']}, {share:.1%} of memory clock "
                         f"times bus width.{more}")
    return sentences


def _rate(row: Mapping) -> str:
    return scaled_text(row["bandwidth_bytes_per_s"], "B/s")


def _knee(curve: Sequence[Mapping], size: str, known: int | None, level: str, what: str) -> str:
    """The first knee of a curve of time a byte beside what is known of the level."""
    found = knees.plateaus([row[size] for row in curve], [1 / row["bandwidth_bytes_per_s"] for row in curve])
    if not found:
        return f"{level}: no part of the curve is flat, so it shows no knee."
    if not found[0].beyond:
        return f"{level}: the curve is flat to its end, {bytes_text(curve[-1][size])}; larger sets would show a knee."
    share = f", {found[0].last / known:.0%} of the {bytes_text(known)} {what}" if known else ""
    return f"The knee of {level} lies between {bytes_text(found[0].last)} and {bytes_text(found[0].beyond)}{share}."


def _plot(axes, rows: Sequence[Mapping]) -> None:
    timed = rows[0].get("time_s") is not None
    for curve, style in zip(CURVES, ("o-", "s-", "^-", "D-")):
        mine = _curve(rows, curve.name)
        if not mine:
            continue
        values = [row["bandwidth_bytes_per_s"] / 1e12 if timed else row["loads"] for row in mine]
        axes.plot([row["working_set_bytes"] for row in mine], values, style, markersize=4, linewidth=1.2, label=curve.name)
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
