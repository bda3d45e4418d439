"""How long a load from the constant bank takes, by how much of it is walked through; on the emulator, how many loads that is."""

from collections.abc import Iterator, Mapping, Sequence

from cudalab.report import bytes_text
from cudalab.spec import Step
from cudalab.studies.memory import knees
from cudalab.studies.memory.latency import size_axis
from cudalab.study import Progress, Study

LINE, BANK = 64, 65536  # bytes from one line of the chain to the next; bytes of the bank
HOPS = 2**13
COARSE, FINE = 3, 4


def study(chain: Step) -> Study:
    return Study("memory/constant_cache", "latency of a load from the constant bank over the size of what is walked through",
                 lambda place, progress: _measure(chain, place, progress),
                 ("working_set_bytes", "latency_cycles", "hops", "warp_instructions"),
                 _plot, _conclude)


def _measure(step: Step, place, progress: Progress) -> Iterator[dict]:
    from cudalab.counted import count_plan
    from cudalab.studies.memory import checked
    if place.name == "emulator":
        for lines in (1, 8, 100):
            progress(0, 1, f"{lines} lines")
            total = count_plan(step.plan(step.op.problem(dict(L=lines, H=64))), place)
            yield dict(working_set_bytes=lines * LINE, hops=64, warp_instructions=total["warp_instructions"])
        return

    def cycles(size):
        plan = step.plan(step.op.problem(dict(L=size // LINE, H=HOPS)))
        return checked.cycles_per(checked.run(place, plan), HOPS)
    for size, latency in knees.discover(cycles, knees.spaced(2 * LINE, BANK, COARSE, LINE), FINE, LINE):
        progress(size.bit_length(), BANK.bit_length(), bytes_text(size))
        yield dict(working_set_bytes=size, latency_cycles=latency, hops=HOPS)


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    if rows[0].get("latency_cycles") is None:
        return ["Every chain leads to the right line. Cycles need a GPU."]
    found = knees.plateaus([row["working_set_bytes"] for row in rows], [row["latency_cycles"] for row in rows])
    sentences = []
    for level in found:
        end = f": a cache of between that and {bytes_text(level.beyond)}" if level.beyond else ", the end of the bank"
        sentences.append(f"{level.cost:.1f} cycles from {bytes_text(level.first)} to {bytes_text(level.last)}{end}.")
    return sentences + ["A hop is a load and the addition that makes the next one's address."]


def _plot(axes, rows: Sequence[Mapping]) -> None:
    value = "latency_cycles" if rows[0].get("latency_cycles") is not None else "warp_instructions"
    axes.plot(*zip(*sorted((row["working_set_bytes"], row[value]) for row in rows)), "o-", markersize=4, linewidth=1.2)
    axes.set_xscale("log", base=2)
    size_axis(axes, [row["working_set_bytes"] for row in rows])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("working set in constant memory")
    axes.set_ylabel("latency of a load, cycles" if value == "latency_cycles" else "instructions counted")
    axes.grid(True, which="major", linewidth=0.4, alpha=0.5)
