"""What bank conflicts cost: every lane's place in shared memory, by width of access and by stride, up to the worst that each allows.

Wavefronts are counted by the emulator; cycles come from the kernel's own clock on a device.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from cudalab.spec import Step
from cudalab.study import Progress, Study

WIDTHS = (4, 8, 16)  # bytes a lane
READS = 8  # loads of a round, as in the source
THREADS, ROUNDS = 1024, 256
SMALL_THREADS, SMALL_ROUNDS = 64, 2
BANKS = 32
AGREE = 0.1  # cycles a load that far from the wavefronts counted are the same


def study(repeated: Step) -> Study:
    return Study("memory/bank_conflicts", "a load of shared memory by width and by stride between lanes",
                 lambda place, progress: _measure(repeated, place, progress),
                 ("width_bytes", "places", "wavefronts", "excess_wavefronts", "ways", "load_cycles", "bytes_per_cycle"), _plot, _conclude)


def patterns(width: int, threads: int) -> dict:
    """Name -> word of each thread's place.  Strides, in accesses, double until all lanes that are served together share one bank."""
    import numpy as np
    lane, words = np.arange(threads) % 32, width // 4
    found = {"all the same": np.zeros(threads, np.int64), "stride 1": lane * words}
    found |= {f"stride {stride}": lane * stride * words for stride in (2, 4, 8, 16, 32) if stride * words <= BANKS}
    if width == 4:
        found["stride 33"] = lane * 33  # a row of 32 with a word of padding
    else:
        found["pairs the same"] = lane // 2 * words
    return found


def _measure(step: Step, place, progress: Progress) -> Iterator[dict]:
    from cudalab.counted import count_plan
    from cudalab.emulator import Emulator
    from cudalab.studies.memory import checked
    emulator = place if place.name == "emulator" else Emulator(place.target, device=place.device)
    cases = [(width, name) for width in WIDTHS for name in patterns(width, 1)]
    for number, (width, name) in enumerate(cases):
        progress(number, len(cases), f"{width} bytes, {name}")
        total = count_plan(_plan(step, width, SMALL_THREADS, SMALL_ROUNDS), emulator, _inputs(width, name, SMALL_THREADS))
        requests = SMALL_THREADS // 32 * SMALL_ROUNDS * READS
        wavefronts = total["shared_load_wavefronts"] / requests
        ideal = total["shared_load_ideal"] / requests
        row = dict(width_bytes=width, places=name, wavefronts=wavefronts, excess_wavefronts=wavefronts - ideal, ways=wavefronts / ideal)
        if place is not emulator:
            outputs = checked.run(place, _plan(step, width, THREADS, ROUNDS), _inputs(width, name, THREADS))
            cycles = checked.cycles_per(outputs, THREADS // 32 * ROUNDS * READS)
            row |= dict(load_cycles=cycles, bytes_per_cycle=32 * width / cycles)
        yield row


def _plan(step: Step, width: int, threads: int, rounds: int):
    return step.plan(step.op.problem(dict(T=threads, R=rounds, V=width // 4)))


def _inputs(width: int, name: str, threads: int) -> dict:
    import numpy as np
    table = np.random.default_rng(0).integers(-15, 16, 2048).astype(np.float32)
    return dict(table=table, place=patterns(width, threads)[name].astype(np.int32))


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    sentences = []
    for width in WIDTHS:
        mine = [row for row in rows if row["width_bytes"] == width]
        worst = max(mine, key=lambda row: row["wavefronts"])
        best = min(mine, key=lambda row: row["wavefronts"])
        sentence = (f"{width} bytes a lane: {best['wavefronts']:.0f} to {worst['wavefronts']:.0f} wavefronts a load, conflicts of up to "
                    f"{worst['ways']:.0f} ways ({worst['places']})")
        if "load_cycles" in worst:
            sentence += f"; {min(row['load_cycles'] for row in mine):.2f} to {worst['load_cycles']:.2f} cycles"
        sentences.append(sentence + ".")
    if "load_cycles" in rows[0]:
        ratio = [row["load_cycles"] / row["wavefronts"] for row in rows]
        near = sum(abs(one - 1) <= AGREE for one in ratio)
        off = max(zip(ratio, rows), key=lambda pair: abs(math.log(pair[0])))
        sentences.append(f"Cycles and counted wavefronts agree within {AGREE:.0%} in {near} of {len(rows)} cases; cycles over wavefronts "
                         f"are {min(ratio):.2f} to {max(ratio):.2f}, {off[0]:.2f} where they differ most "
                         f"({off[1]['width_bytes']} bytes, {off[1]['places']}).")
        most = max((row for row in rows if row["places"].startswith("stride")), key=lambda row: row["bytes_per_cycle"])
        sentences.append(f"The most that shared memory gave, every lane its own words: {most['bytes_per_cycle']:.0f} bytes a cycle and "
                         f"multiprocessor ({most['width_bytes']} bytes, {most['places']}); {BANKS} banks of 4 bytes are {4 * BANKS}.")
    return sentences


def _plot(axes, rows: Sequence[Mapping]) -> None:
    timed = "load_cycles" in rows[0]
    names = [f"{row['width_bytes']} B, {row['places']}" for row in rows]
    axes.barh(names, [row["wavefronts"] for row in rows], color="#9fb8cf", height=0.7, label="wavefronts counted")
    if timed:
        axes.plot([row["load_cycles"] for row in rows], names, "o", color="#b5532a", markersize=4, label="cycles measured")
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axes.set_xlim(0.8, 45)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("wavefronts or cycles of one load of a warp")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
