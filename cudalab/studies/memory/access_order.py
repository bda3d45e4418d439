"""What it costs where the lanes of a warp lie: strides, shifts, and anywhere.

Sectors a request are counted by the emulator, on a small piece of the same pattern; times come from a device.
"""

from collections.abc import Iterator, Mapping, Sequence

from cudalab.report import scaled_text
from cudalab.spec import Step
from cudalab.study import Progress, Study

STRIDES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # elements of 4 bytes from lane to lane
SHIFTS = (1, 4, 8, 17)  # elements by which neighbours are moved off the start of a sector; 8 are one sector
SPREAD = 32  # elements of a row for each column that is read, where columns lie anywhere
ROWS, COLUMNS = 32, 2**18
SMALL_ROWS, SMALL_COLUMNS = 2, 1024


def study(columns: Step) -> Study:
    return Study("memory/access_order", "the same number of 4-byte loads, by where the lanes of a warp lie",
                 lambda place, progress: _measure(columns, place, progress),
                 ("pattern", "sectors_per_request", "useful_share", "time_s", "useful_bytes_per_s", "sector_bytes_per_s"), _plot, _conclude)


def patterns(columns: int) -> dict[str, tuple]:
    """Name -> (which element of a row each column is, elements of a row)."""
    import numpy as np
    lane = np.arange(columns)
    found = {f"stride {stride}": (lane * stride, columns * stride) for stride in STRIDES}
    found |= {f"shifted by {shift}": (lane + shift, columns + 32) for shift in SHIFTS}
    found["backwards"] = lane[::-1].copy(), columns
    found["anywhere"] = np.random.default_rng(0).permutation(columns) * SPREAD, columns * SPREAD
    return {name: (pattern.astype(np.int32), elements) for name, (pattern, elements) in found.items()}


def _measure(step: Step, place, progress: Progress) -> Iterator[dict]:
    from cudalab.emulator import Emulator
    emulator = place if place.name == "emulator" else Emulator(place.target, device=place.device)
    small, large = patterns(SMALL_COLUMNS), patterns(COLUMNS)
    for number, name in enumerate(small):
        progress(number, len(small), name)
        row = dict(pattern=name, **_counted(step, *small[name], emulator))
        if place is not emulator:
            row |= _timed(step, *large[name], row["sectors_per_request"], place)
        yield row


def _counted(step: Step, pattern, elements: int, emulator) -> dict:
    """Sectors of a request, without those of the pattern itself, which is read once, in order."""
    import numpy as np

    from cudalab.counted import count_plan
    plan = step.plan(step.op.problem(dict(T=SMALL_ROWS, C=SMALL_COLUMNS, E=elements)))
    x = np.random.default_rng(0).standard_normal((SMALL_ROWS, elements), dtype=np.float32)
    total = count_plan(plan, emulator, dict(x=x, pattern=pattern))
    warps = SMALL_COLUMNS // 32
    sectors = (total["global_load_sectors"] - 4 * warps) / (total["global_load_requests"] - warps)
    return dict(sectors_per_request=sectors, useful_share=4 / sectors)


def _timed(step: Step, pattern, elements: int, sectors: float, gpu) -> dict:
    from cudalab import measure
    plan = step.plan(step.op.problem(dict(T=ROWS, C=COLUMNS, E=elements)))
    timing = measure.time_plan(gpu, plan, inputs=dict(pattern=pattern), batches=6)
    useful = 4 * ROWS * COLUMNS
    return dict(time_s=timing.time_s, sm_clock_mhz=timing.sm_clock_mhz, useful_bytes_per_s=useful / timing.time_s,
                sector_bytes_per_s=useful / 4 * sectors / timing.time_s)


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    by_name = {row["pattern"]: row for row in rows}
    first, wide, anywhere = (by_name[name] for name in ("stride 1", f"stride {STRIDES[-1]}", "anywhere"))
    sectors = {name: f"{row['sectors_per_request']:.0f}" for name, row in by_name.items()}
    sentences = [f"A warp's 32 loads of 4 bytes ask for {sectors['stride 1']} sectors as neighbours, for {sectors['stride 8']} from a "
                 f"stride of 8 on, for {sectors['shifted by 1']} shifted off a sector's start, for {sectors['backwards']} backwards."]
    if first.get("time_s") is None:
        return sentences
    knee = max(rows, key=lambda row: row["sector_bytes_per_s"])
    growth = by_name["stride 16"]["time_s"] / by_name["stride 8"]["time_s"]
    why = ": what comes from DRAM is more than the sector that is asked for" if growth > 1.1 else ""
    return sentences + [
        f"Useful bytes: {scaled_text(first['useful_bytes_per_s'], 'B/s')} as neighbours, "
        f"{scaled_text(wide['useful_bytes_per_s'], 'B/s')} at stride {STRIDES[-1]} (x {wide['time_s'] / first['time_s']:.1f} the time), "
        f"{scaled_text(anywhere['useful_bytes_per_s'], 'B/s')} anywhere (x {anywhere['time_s'] / first['time_s']:.1f}).",
        f"Sectors move at up to {scaled_text(knee['sector_bytes_per_s'], 'B/s')} ({knee['pattern']}). From a stride of 8 to one of 16 "
        f"the sectors asked for stay the same, and the time is x {growth:.2f}{why}."]


def _plot(axes, rows: Sequence[Mapping]) -> None:
    timed = rows[0].get("time_s") is not None
    names = [row["pattern"] for row in rows]
    values = [row["useful_bytes_per_s"] / 1e12 if timed else row["sectors_per_request"] for row in rows]
    axes.barh(names, values, color="#9fb8cf", height=0.7)
    for place, (row, value) in enumerate(zip(rows, values)):
        axes.annotate(f"{row['sectors_per_request']:.3g} sectors", (value, place), xytext=(4, 0), textcoords="offset points", va="center",
                      fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("useful bytes, TB/s; beside the bars: sectors that a request asks for" if timed else "sectors a request")
