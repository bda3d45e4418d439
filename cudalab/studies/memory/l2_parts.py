"""Near and far: L2's latency by multiprocessor and by line.

A hash of the address says in which part of L2 a line lies.  Each multiprocessor reads each line alone; whether the latencies fall into two
groups, and whether the multiprocessors do, follows from the measurement.  On the emulator: that every block reads every line.
"""

from collections.abc import Iterator, Mapping, Sequence

from cudalab.spec import Step
from cudalab.study import Progress, Study

LINES, BIN = 4096, 8  # lines read by each; cycles a bar of the histogram
SPLIT = 0.05  # groups whose means lie less than that share apart are one


def study(every_line: Step) -> Study:
    """A histogram of the latency of L2 over all pairs of multiprocessor and line, for the two sides of the chip apart."""
    return Study("memory/l2_parts", "latency of L2 by multiprocessor and line",
                 lambda place, progress: _measure(every_line, place, progress),
                 ("latency_cycles", "pairs", "side_a_pairs", "side_b_pairs", "loads", "sectors_per_load"), _plot, _conclude)


def _measure(step: Step, place, progress: Progress) -> Iterator[dict]:
    from cudalab.counted import count_plan
    from cudalab.studies.memory import checked
    progress(0, 1, "lines by multiprocessor")
    if place.name == "emulator":
        for blocks, lines in ((1, 16), (4, 16), (4, 64)):
            total = count_plan(step.plan(step.op.problem(dict(L=lines, S=blocks))), place)
            yield dict(pairs=blocks * lines, loads=total["global_load_requests"],
                       sectors_per_load=total["global_load_sectors"] / total["global_load_requests"])
        return
    plan = step.plan(step.op.problem(dict(L=LINES, S=place.device.sms)))
    outputs = checked.run(place, plan)
    latency = outputs["cycles"] / plan.config.HOPS
    yield from histogram(latency, outputs["sm"])


def histogram(latency, sm) -> Iterator[dict]:
    """Rows of bars.  latency: cycles, a row for each block, a column for each line; sm: the multiprocessor of each block.

    Every row has what holds for all: the multiprocessors seen, those on side A, means of near and far (equal where there are no two
    groups), the share of near pairs, and how often two multiprocessors of one side, and of different sides, agree about a line.
    """
    import numpy as np
    edge = threshold(latency)
    near, far = latency[latency <= edge].mean(), latency[latency > edge].mean() if (latency > edge).any() else latency.mean()
    split = far / near - 1 > SPLIT
    is_near = latency <= edge
    agreement = (is_near[:, None, :] == is_near[None, :, :]).mean(axis=2)
    side_a = agreement[0] >= 0.5 if split else np.ones(len(latency), bool)
    same = side_a[:, None] == side_a[None, :]
    off = ~np.eye(len(latency), dtype=bool)
    near, far = (near, far) if split else (latency.mean(), latency.mean())
    common = dict(multiprocessors=len(np.unique(sm)), side_a_multiprocessors=int(side_a.sum()), near_cycles=float(near),
                  far_cycles=float(far), near_share=float(is_near.mean()) if split else 1.0,
                  same_side_share=_mean(agreement[same & off]), other_side_share=_mean(agreement[~same]))
    bars = np.floor(latency / BIN).astype(int)
    for bar in range(bars.min(), bars.max() + 1):
        inside = bars == bar
        yield dict(latency_cycles=float(bar * BIN), pairs=int(inside.sum()), side_a_pairs=int(inside[side_a].sum()),
                   side_b_pairs=int(inside[~side_a].sum()), **common)


def _mean(values) -> float | None:
    return float(values.mean()) if values.size else None


def threshold(values) -> float:
    """The value that cuts the values into the two groups with the least variance inside (N. Otsu, 1979)."""
    import numpy as np
    ordered = np.sort(values, axis=None)
    edges = np.unique(ordered)[:-1]
    if not edges.size:
        return float(ordered[0])
    edges = edges[:: max(1, len(edges) // 512)]
    count = np.searchsorted(ordered, edges, side="right")
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    low, high = sums[count] / count, (sums[-1] - sums[count]) / (len(ordered) - count)
    return float(edges[np.argmax(count * (len(ordered) - count) * (high - low) ** 2)])


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    row = rows[0]
    if row.get("latency_cycles") is None:
        return ["Every block reads every line, and finds itself where the pointer says. Cycles need a GPU."]
    bars = [r for r in rows if r["pairs"]]
    first, last = bars[0]["latency_cycles"], bars[-1]["latency_cycles"] + BIN
    total = sum(r["pairs"] for r in rows)
    sentences = [f"{total:,} pairs of {row['multiprocessors']} multiprocessors and lines: {first:.0f} to {last:.0f} cycles."]
    if row["near_cycles"] == row["far_cycles"]:
        return sentences + [f"They form one group around {row['near_cycles']:.0f} cycles: no near and far part."]
    sentences.append(f"They form two groups: {row['near_share']:.0%} near with {row['near_cycles']:.0f} cycles, the others far with "
                     f"{row['far_cycles']:.0f}.")
    if row["other_side_share"] is None:
        return sentences + ["All multiprocessors agree which lines are near: L2 is one part to them."]
    return sentences + [
        f"The multiprocessors form two sides, of {row['side_a_multiprocessors']} and "
        f"{row['multiprocessors'] - row['side_a_multiprocessors']}: two of one side agree about a line in {row['same_side_share']:.0%} of "
        f"all cases, two of different sides in {row['other_side_share']:.0%}."]


def _plot(axes, rows: Sequence[Mapping]) -> None:
    if rows[0].get("latency_cycles") is None:
        axes.bar([str(row["pairs"]) for row in rows], [row["loads"] for row in rows], color="#9fb8cf")
        axes.set_xlabel("pairs of block and line")
        axes.set_ylabel("loads counted")
        return
    at = [row["latency_cycles"] + BIN / 2 for row in rows]
    side_a, side_b = ([row[name] for row in rows] for name in ("side_a_pairs", "side_b_pairs"))
    axes.bar(at, side_a, width=BIN * 0.9, color="#2f6ca3", label="multiprocessors of one side")
    axes.bar(at, side_b, width=BIN * 0.9, bottom=side_a, color="#d9a15b", label="of the other side")
    axes.set_xlabel("latency of a load from L2, cycles")
    axes.set_ylabel("pairs of multiprocessor and line")
    axes.margins(y=0.2)
    axes.legend(loc="upper right", frameon=False)
