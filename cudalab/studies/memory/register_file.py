"""What the register file allows: the same multiply-adds as outer products, by the shape of the tile and the order they stand in.

Bank conflicts are counted in the SASS wherever the study runs; the rate comes from a device.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from cudalab.devices import per_cycle
from cudalab.errors import MissingTool
from cudalab.report import scaled_text
from cudalab.spec import Step
from cudalab.study import Progress, Study

TILES = ((4, 8), (8, 8), (8, 12), (8, 16), (16, 8))
ORDERS = ("rows", "rows and back", "columns", "columns and back", "squares")  # by number, as in the source
EMULATED_TILES = ((4, 8),)
ROUNDS = 2048  # sums stay below 2^24, so that they are exact


def study(register_tile: Step) -> Study:
    return Study("memory/register_file", "multiply-adds as outer products, by tile shape and order",
                 lambda place, progress: _measure(register_tile, place, progress),
                 ("tile", "order", "registers", "conflict_share", "flops_per_s", "flop_per_cycle", "peak_share", "flops"),
                 _plot, _conclude)


def _measure(step: Step, place, progress: Progress) -> Iterator[dict]:
    from concurrent.futures import ThreadPoolExecutor

    from cudalab import measure
    from cudalab.counted import count_plan
    emulated = place.name == "emulator"
    sms = place.device.sms
    plans = [_plan(step, rows, columns, order, None if emulated else sms)
             for rows, columns in (EMULATED_TILES if emulated else TILES) for order in range(len(ORDERS))]
    progress(0, len(plans), "compiling")
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # long straight code: side by side
        compiled = list(pool.map(lambda plan: _compiled(plan, place.target), plans))
    for done, (plan, known) in enumerate(zip(plans, compiled)):
        problem = plan.problem
        row = dict(tile=f"{problem.M} x {problem.N}", order=ORDERS[plan.config.ORDER], **known)
        progress(done, len(plans), _name(row))
        if emulated:
            row |= dict(flops=count_plan(plan, place)["flops_f32"])
        else:
            timing = measure.time_plan(place, plan, cold=False, batches=6)
            rate = step.op.flops(problem) / timing.time_s
            rate_per_cycle = rate / (timing.sm_clock_mhz * 1e6) / sms
            row |= dict(flops_per_s=rate, flop_per_cycle=rate_per_cycle, peak_share=rate_per_cycle / per_cycle(place.device)[0]["fp32"],
                        sm_clock_mhz=timing.sm_clock_mhz)
        yield row


def _plan(step: Step, rows: int, columns: int, order: int, sms: int | None):
    """For as many multiprocessors (two blocks each where the tile leaves room), or of one warp."""
    blocks = 2 if rows * columns <= 64 else 1
    threads = step.tunables["THREADS"] * blocks * sms if sms else 32
    problem = step.op.problem(dict(M=rows, N=columns, T=threads, R=ROUNDS if sms else 1))
    return step.plan(problem, step.config(problem, dict(ORDER=order, BLOCKS=blocks)))


def _compiled(plan, target: str) -> dict:
    """Registers, and the share of the loop's multiply-adds whose operands share a bank (None without nvdisasm)."""
    from cudalab import register_banks
    from cudalab import sass
    from cudalab.build import build
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
        sentences.append(f"Of the multiply-adds, {least['conflict_share']:.0%} ({_name(least)}) to {most['conflict_share']:.0%} "
                         f"({_name(most)}) find two of their registers in one bank.")
    if rows[0].get("flops_per_s") is None:
        return sentences
    best, worst = (choose(rows, key=lambda row: row["flops_per_s"]) for choose in (max, min))
    sentences.append(f"The same multiply-adds run at {scaled_text(worst['flops_per_s'], 'FLOP/s')} ({_name(worst)}) to "
                     f"{scaled_text(best['flops_per_s'], 'FLOP/s')} ({_name(best)}, {best['peak_share']:.0%} of one a lane and cycle).")
    if counted:
        off = [row["flop_per_cycle"] * (1 + row["conflict_share"]) / (row["flop_per_cycle"] / row["peak_share"]) for row in counted]
        sentences.append(f"A cycle more for each conflict predicts the rate: measured over predicted lies between {min(off):.2f} and "
                         f"{max(off):.2f}.")
    return sentences


def _name(row: Mapping) -> str:
    return f"{row['tile']} along {row['order']}"


def _plot(axes, rows: Sequence[Mapping]) -> None:
    timed = rows[0].get("flops_per_s") is not None
    tiles = list(dict.fromkeys(row["tile"] for row in rows))
    width = 0.8 / len(ORDERS)
    for number, order in enumerate(ORDERS):
        mine = {row["tile"]: row for row in rows if row["order"] == order}
        values = [(mine[tile]["flops_per_s"] / 1e12 if timed else 100 * (mine[tile]["conflict_share"] or 0)) for tile in tiles]
        axes.bar([place + (number - 2) * width for place in range(len(tiles))], values, width * 0.92, label=order)
    axes.set_xticks(range(len(tiles)), tiles)
    axes.set_xlabel("sums of a thread")
    axes.set_ylabel("TFLOP/s" if timed else "multiply-adds with a bank conflict, %")
    axes.margins(y=0.25)
    axes.legend(loc="upper center", ncols=len(ORDERS), frameon=False, fontsize=8)
