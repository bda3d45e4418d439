"""The verb that follows one call from Python to the kernel on the GPU."""

from pathlib import Path

import click

from cudalab.commands import options as opt
from cudalab.errors import LabError, NoDevice

DEFAULT = 1024  # of a matmul: short enough that what the host pays shows


@click.command()
@click.argument("target", metavar="matmul|STEP|FILE.cu")
@opt.shape
@opt.kind
@opt.sets
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.json",
              help="Write a Chrome trace, which ui.perfetto.dev opens.")
@click.option("--cupti/--no-cupti", default=True, show_default=True, help="Ask CUPTI, where cupti-python is installed.")
@click.option("--calls", type=click.IntRange(1, 200), default=20, show_default=True, help="Calls that are queued, and that a graph holds.")
@opt.backend
@opt.seed
@opt.user_file
@opt.as_json
def trace(target, shapes, dtypes, variants, sets, out, cupti, calls, backend, seed, as_json, **own):
    """Follow one cupy.matmul, or one step, from the call through the libraries and the driver to the kernel.

    Each call and kernel with its own time, grid, block, registers and shared memory, joined by CUPTI's correlation ids; what the host pays
    before the GPU starts, what runs beside it, and what the same costs as a graph.  Without CUPTI: events and host clocks.  Without a
    GPU: the plan.

    \b
    Example: python cli.py trace matmul --shape 1024 --out matmul.json
             python cli.py trace step12
    """
    from cudalab import gpu, registry, report
    from cudalab.trace import follow, timeline
    from cudalab.trace.follow import MATMUL
    settings = opt.assignments(sets)
    matmul = target == MATMUL
    if matmul and settings:
        raise LabError("--set gives a tunable of a step a value, and cupy.matmul has none")
    step = registry.ops()["sgemm"].steps[-1] if matmul else opt.one_step(target, settings, own)
    plan = opt.only(opt.plans(step, shapes or ((str(DEFAULT),) if matmul else ()), settings, dtypes, variants), "trace")
    problem = plan.problem
    place = gpu.backend(backend)
    if place.name == "emulator":
        return _plan(plan, matmul, out, place.target, as_json)
    if out:
        timeline.require_writable(out)  # said now, not after the tracing

    def make(progress):
        yield follow.run(place, MATMUL if matmul else step, problem, config=settings, cupti=cupti, calls=calls, seed=seed,
                            progress=progress)
    found = next(opt.with_bar(make))
    if out:
        opt.note(f"written: {timeline.write(out, timeline.chrome(found.events, follow.about(found, place)))}")
    if as_json:
        return opt.print_json(dict(follow.about(found, place), events=timeline.as_json(found.events), rows=timeline.lines(found.call),
                                   conclusions=follow.sentences(found.figures)))
    click.echo(f"{found.subject} at {report.problem_text(problem)} on {place.device.name}; {found.said}\n")
    click.echo(call_table(timeline.lines(found.call), report) + "\n")
    click.echo(cost_table(found.costs, report) + "\n")
    if found.ways:
        click.echo("\n".join(follow.path_lines(found.ways)) + "\n")
    click.echo("\n".join(report.fold(sentence) for sentence in follow.sentences(found.figures)))


def call_table(rows, report) -> str:
    """The events of one call, calls of the host by depth, then what they started."""
    lines = [("· " * row["depth"] + row["name"], row["kind"], f"{1e6 * row['start_s']:.1f}", f"{1e6 * row['time_s']:.2f}",
              f"{1e6 * row['own_s']:.2f}", row["correlation"] or "", row.get("grid", ""), row.get("block", ""),
              "" if row["registers"] is None else row["registers"], _shared(row)) for row in rows]
    heads = ("call, kernel", "of", "start µs", "time µs", "own µs", "correlation", "grid", "block", "registers", "shared B")
    filled = [i for i in range(len(heads)) if any(line[i] != "" for line in lines)]
    return report.table([[line[i] for i in filled] for line in lines], [heads[i] for i in filled], left=(0, 1))


def _shared(row):
    return "" if row["static_smem_bytes"] is None else row["static_smem_bytes"] + row["dynamic_smem_bytes"]


def cost_table(costs, report) -> str:
    """What a call costs without any tracing, by way of launching."""
    lines = [(name, count, *(report.time_text(seconds / count) for seconds in (cost.host_s, cost.stream_s)), report.time_text(cost.alone_s))
             for name, (cost, count) in costs.items()]
    return report.table(lines, ("launched by", "of them", "host, each", "stream, each", "on an idle device, all"), left=(0,))


def _plan(plan, matmul: bool, out, target: str, as_json: bool) -> None:
    """Without a GPU: what would be launched."""
    from cudalab import report
    if out:
        raise NoDevice("--out needs times, and there is no GPU here to take them on ('doctor' says what is missing): leave it out for the "
                       "plan")
    compiled = report.compiled(plan, target)
    if as_json:
        return opt.print_json(dict(matmul=matmul, plan=compiled))
    if matmul:
        click.echo("There is no GPU here, so cuBLAS cannot be asked which kernel it would choose for cupy.matmul; this lab's own kernel "
                   "for the same product would be launched like this:\n")
    else:
        click.echo("There is no GPU here: this is what would be launched, and nothing in it is a time.\n")
    click.echo(report.static(compiled))
