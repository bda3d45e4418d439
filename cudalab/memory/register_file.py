"""What the register file allows: the same multiply-adds as outer products, by the shape of the tile and the order they stand in.

Bank conflicts are counted in the SASS wherever the study runs; the rate comes from a device.
"""

from collections.abc import Iterator, Mapping, Sequence

from cudalab import measure, register_banks, sass
from cudalab.build import build
from cudalab.counted import count_plan
from cudalab.errors import MissingTool
from cudalab.report import scaled_text
from cudalab.roofline import fp32_lanes
from cudalab.spec import Step
from cudalab.study import Progress, Study

TILES = ((4, 8), (8, 8), (8, 12), (8, 16), (16, 8))
ORDERS = ("rows", "rows and back", "columns", "columns and back", "squares")  # by number, as in the source
EMULATED_TILES = ((4, 8), (8, 8))
ROUNDS = 4096


def study(register_tile: Step) -> Study:
    return Study("memory/register_file", "multiply-adds as outer products, by tile shape and order",
                 lambda place, progress: _measure(register_tile, place, progress),
                 ("tile", "order", "registers", "conflict_share", "fp32_flop_per_s", "flop_per_cycle", "peak_share", "flops"), _plot, _conclude)


def _measure(step: Step, place, progress: Progress) -> Iterator[dict]:
    emulated = place.name == "emulator"
    cases = [(tile, number) for tile in (EMULATED_TILES if emulated else TILES) for number in range(len(ORDERS))]
    for done, ((rows, columns), order) in enumerate(cases):
        progress(done, len(cases), f"{rows} x {columns}, {ORDERS[order]}")
        threads, sms = step.tunables["THREADS"], place.device.sms
        blocks = 2 if rows * columns <= 64 else 1
        sizes = dict(M=rows, N=columns, T=32, R=1) if emulated else dict(M=rows, N=columns, T=threads * blocks * sms, R=ROUNDS)
        problem = step.op.problem(sizes)
        plan = step.plan(problem, step.config(problem, dict(ORDER=order, BLOCKS=blocks)))
        row = dict(tile=f"{rows} x {columns}", order=ORDERS[order], **_compiled(plan, place.target))
        if emulated:
            row |= dict(flops=count_plan(plan, place)["flops_f32"])
        else:
            timing = measure.time_plan(place, plan, cold=False, batches=6)
            rate = step.op.flops(problem) / timing.time_s
            per_cycle = rate / (timing.sm_clock_mhz * 1e6) / sms
            row |= dict(fp32_flop_per_s=rate, flop_per_cycle=per_cycle, peak_share=per_cycle / (2 * fp32_lanes(place.device.sm)),
                        sm_clock_mhz=timing.sm_clock_mhz)
        yield row


def _compiled(plan, target: str) -> dict:
    """Registers, and the share of the loop's multiply-adds whose operands share a bank (None without nvdisasm)."""
    built = build(plan, target)
    (kernel,) = built.kernels.values()
    try:
        banks = register_banks.count(sass.main_loop(sass.functions(built.sass)[kernel.symbol]))
    except MissingTool:
        return dict(registers=kernel.registers, conflict_share=None)
    return dict(registers=kernel.registers, conflict_share=banks.conflicts / banks.multiply_adds)


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    counted = [row for row in rows if row["conflict_share"] is not None]
    sentences = []
    if counted:
        least, most = (choose(counted, key=lambda row: row["conflict_share"]) for choose in (min, max))
        sentences.append(f"Of the multiply-adds, {least['conflict_share']:.0%} ({_name(least)}) to {most['conflict_share']:.0%} ({_name(most)}) find "
                         f"two of their registers in one bank.")
    if rows[0].get("fp32_flop_per_s") is None:
        return sentences
    best, worst = (choose(rows, key=lambda row: row["fp32_flop_per_s"]) for choose in (max, min))
    sentences.append(f"The same multiply-adds run at {scaled_text(worst['fp32_flop_per_s'], 'FLOP/s')} ({_name(worst)}) to "
                     f"{scaled_text(best['fp32_flop_per_s'], 'FLOP/s')} ({_name(best)}, {best['peak_share']:.0%} of one a lane and cycle).")
    if counted:
        off = [row["flop_per_cycle"] * (1 + row["conflict_share"]) / (row["flop_per_cycle"] / row["peak_share"]) for row in counted]
        sentences.append(f"A cycle more for each conflict predicts the rate: measured over predicted lies between {min(off):.2f} and {max(off):.2f}.")
    return sentences


def _name(row: Mapping) -> str:
    return f"{row['tile']} along {row['order']}"


def _plot(axes, rows: Sequence[Mapping]) -> None:
    timed = rows[0].get("fp32_flop_per_s") is not None
    tiles = list(dict.fromkeys(row["tile"] for row in rows))
    width = 0.8 / len(ORDERS)
    for number, order in enumerate(ORDERS):
        mine = {row["tile"]: row for row in rows if row["order"] == order}
        values = [(mine[tile]["fp32_flop_per_s"] / 1e12 if timed else 100 * (mine[tile]["conflict_share"] or 0)) for tile in tiles]
        axes.bar([place + (number - 2) * width for place in range(len(tiles))], values, width * 0.92, label=order)
    axes.set_xticks(range(len(tiles)), tiles)
    axes.set_xlabel("sums of a thread")
    axes.set_ylabel("TFLOP/s" if timed else "multiply-adds with a bank conflict, %")
    axes.margins(y=0.25)
    axes.legend(loc="upper center", ncols=len(ORDERS), frameon=False, fontsize=8)
