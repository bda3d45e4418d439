"""What register spills cost: one kernel, compiled for fewer and fewer registers, launched the same way.

Registers and spilled bytes come from the build, wherever the study runs; the time comes from a device.
"""

from collections.abc import Iterator, Mapping, Sequence

from cudalab.spec import Step
from cudalab.study import Progress, Study

PROMISED = (4, 6, 7, 8, 9, 10, 12, 16)  # blocks a multiprocessor that the launch bounds promise
VALUES, ROUNDS = 64, 1024
LAUNCHED = 4  # blocks a multiprocessor that are launched, whatever is promised


def study(live_values: Step) -> Study:
    return Study("memory/spilling", "one kernel with 64 live values, compiled for fewer and fewer registers",
                 lambda place, progress: _measure(live_values, place, progress),
                 ("promised_blocks", "registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "time_s", "relative_time",
                  "flops"), _plot, _conclude)


def _measure(step: Step, place, progress: Progress) -> Iterator[dict]:
    from cudalab import measure
    from cudalab.build import build
    from cudalab.counted import count_plan
    unspilled = None
    for number, blocks in enumerate(PROMISED):
        progress(number, len(PROMISED), f"{blocks} blocks promised")
        small = _plan(step, dict(V=VALUES, T=32, W=2), blocks)
        (kernel,) = build(small, place.target).kernels.values()
        row = dict(promised_blocks=blocks, registers=kernel.registers, stack_bytes=kernel.stack, spill_store_bytes=kernel.spill_stores,
                   spill_load_bytes=kernel.spill_loads)
        if place.name == "emulator":
            row |= dict(flops=count_plan(small, place)["flops_f32"])  # spills are the compiler's last step: PTX knows nothing of them
        else:
            plan = _plan(step, dict(V=VALUES, T=LAUNCHED * step.tunables["THREADS"] * place.device.sms, W=ROUNDS), blocks)
            timing = measure.time_plan(place, plan, cold=False, batches=6)
            unspilled = unspilled or timing.time_s
            row |= dict(time_s=timing.time_s, relative_time=timing.time_s / unspilled, sm_clock_mhz=timing.sm_clock_mhz)
        yield row


def _plan(step: Step, sizes: Mapping[str, int], blocks: int):
    problem = step.op.problem(sizes)
    return step.plan(problem, step.config(problem, dict(BLOCKS=blocks)))


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    spilled = [row for row in rows if row["spill_store_bytes"]]
    free = [row for row in rows if not row["spill_store_bytes"]]
    if not spilled:
        return [f"Nothing spills down to {rows[-1]['registers']} registers."]
    first, last = spilled[0], rows[-1]
    start = f"No spills down to {free[-1]['registers']} registers; " if free else ""
    sentences = [f"{start}{first['spill_store_bytes']} bytes a thread spilled at {first['registers']}, {last['spill_store_bytes']} at "
                 f"{last['registers']}."]
    if first.get("time_s") is not None:
        sentences.append(f"Time, everything else the same: x {first['relative_time']:.2f} at {first['registers']} registers, x "
                         f"{last['relative_time']:.2f} at {last['registers']}.")
    return sentences


def _plot(axes, rows: Sequence[Mapping]) -> None:
    rows = list({row["registers"]: row for row in rows}.values())  # promises that come to the same registers are one bar
    registers = [str(row["registers"]) for row in rows]
    axes.bar(registers, [row["spill_store_bytes"] for row in rows], color="#9fb8cf", label="bytes spilled a thread")
    axes.set_xlabel("registers a thread")
    axes.set_ylabel("bytes spilled a thread")
    if rows[0].get("time_s") is not None:
        right = axes.twinx()
        right.plot(registers, [row["relative_time"] for row in rows], "o-", color="#b5532a", markersize=4)
        right.set_ylim(bottom=0)
        right.set_ylabel("time, that without spills = 1 (line)")
        right.spines["top"].set_visible(False)
