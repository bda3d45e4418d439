"""The verb that says what limits a kernel, and the one that only runs it, for a profiler to look at."""

from pathlib import Path

import click
from click.core import ParameterSource

from cudalab.commands import options as opt
from cudalab.errors import NoDevice, OutOfMemory

MODEL_DTYPE = "bf16"


@click.command()
@click.argument("targets", metavar="[STEP|OP]...", nargs=-1)
@opt.shape
@opt.kind
@opt.sets
@click.option("--counters/--no-counters", default=None,
              help="Count: on a GPU by its hardware, through ncu; without one on the emulator.  [default: for what is named]")
@click.option("--measure", is_flag=True,
              help="Measure the roofs anew.  [default: those kept in results/; on a GPU that has none there, measured]")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Measure the roofs and add them to this file ('results merge FILE' brings them into results/).")
@click.option("--model", "config", type=click.Path(dir_okay=False, path_type=Path), metavar="config.json",
              help="Place the kernels of this language model instead of the lab's steps, or beside those that are named.")
@click.option("--batch", type=click.IntRange(1, 10**6), default=1, show_default=True, help="With --model: sequences.")
@click.option("--sequence", type=click.IntRange(1, 10**8), default=2048, show_default=True, help="With --model: tokens of each.")
@click.option("--phase", type=click.Choice(("prefill", "decode", "both")), default="both", show_default=True,
              help="With --model: which step.")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.svg|png", help="Draw it.")
@click.option("--sustained", is_flag=True, help="Under the roofs of two seconds on end: what power and clocks allow.")
@opt.backend
@click.option("--device", metavar="NAME", help='Without a GPU: whose roofs count, such as "RTX 4060".  [default: H200]')
@opt.as_json
def roofline(targets, shapes, dtypes, variants, sets, counters, measure, save, config, batch, sequence, phase, picture, sustained, backend,
             device, as_json):
    """Say what a device can do at most, where each kernel stands under that, what limits it and what to try first.

    The work is the op's own count.  The time is the newest in results/, else the device's.  For a verdict the work that was executed is
    counted, too: by the device's hardware, or without a GPU by the emulator.

    \b
    Example: python cli.py roofline sgemm --plot roofline.svg
             python cli.py roofline step5 --device "RTX 4060"
             python cli.py roofline --model config.json --batch 8 --sequence 4096
    """
    from cudalab import plot, results
    from cudalab.roofline import chart, placement
    if shapes and len(targets) != 1:
        raise click.UsageError("--shape has the dimensions of one op: name one step or op")
    source = click.get_current_context().get_parameter_source
    given = [f"--{name}" for name in ("batch", "sequence", "phase") if source(name) is ParameterSource.COMMANDLINE]
    if given and not config:
        raise click.UsageError(f"{', '.join(given)}: only with --model")
    if picture:
        plot.require_file(picture)
    place, chosen, arch = _place(backend, device, measure or save)
    if save:
        results.append(save, [])  # a file that cannot be written is said now
    protocol = "sustained" if sustained else "steady"
    known = _roofs(place, chosen, measure, save, protocol)
    settings = opt.assignments(sets)
    points, sentences = [], []
    if targets or not config:
        points += _steps(targets, shapes, dtypes, variants, settings, counters, place, chosen, arch, known)
    if config:
        found = _model(config, batch, sequence, phase, dtypes, chosen, known)
        points, sentences = points + found, placement.model_sentences(found, batch, sequence)
    if as_json:
        opt.print_json(dict(device=chosen.name, **placement.as_rows(points, known), sentences=sentences))
    else:
        click.echo("\n\n".join(filter(None, (f"{chosen.name}", placement.roofs_text(chosen, known), placement.points_text(points),
                                              "\n".join(sentences)))))
    if picture:
        opt.note(f"drawn in {chart.draw(points, known, chosen, picture)}")


def _place(backend, device, measured):
    """The backend, the device whose roofs count, and what is compiled for."""
    from cudalab import counted, gpu
    from cudalab.commands import emulated
    arch = emulated.target_of(None, device)
    place = gpu.backend("emulator" if device and backend is None else backend, target=arch, device=counted.device_for(device, arch))
    if place.name == "emulator" and measured:
        raise NoDevice("--measure and --save need a GPU, and the emulator times nothing ('doctor' says what is missing for one)")
    if place.name != "emulator" and device:
        raise click.UsageError(f"--device is for the emulator; this is {place.device.name}")
    return place, place.device, place.target


def _roofs(place, device, measure: bool, save, protocol: str) -> dict:
    """The roofs that count: kept ones, or on a GPU those measured now."""
    from cudalab import registry, results
    from cudalab import study as studying
    from cudalab.roofline import roofs
    kept = roofs.measured(device, protocol)
    if place.name == "emulator" or kept and not measure and not save:
        return roofs.architecture(device) | kept
    rows = list(opt.with_bar(lambda progress: studying.run(registry.studies()[roofs.STUDY], place, progress)))
    if save:
        results.append(save, rows)
    return roofs.architecture(device) | roofs.measured(device, protocol, rows)


def _steps(targets, shapes, dtypes, variants, settings, counters, place, device, arch, known) -> list[dict]:
    """The points of the steps named, of all of them without a name."""
    from cudalab import registry, results
    from cudalab.installed import program
    from cudalab.roofline import placement
    named = [opt.targets(text, settings, {}) for text in targets]
    steps = [step for found in named for step in found] or registry.steps()
    work = [(step, problem) for step in steps for step, problem in opt.work([step], shapes, "bench", dtypes, variants, first=True)]
    work = opt.that_run(work, arch, [step for found in named if len(found) == 1 for step in found])
    rows, wanted = results.rows(device.name), bool(targets) if counters is None else counters
    if wanted and place.name != "emulator" and counters is None and program("ncu") is None:
        opt.note("ncu is not there, so hardware counters are left out: 'doctor' says what installs it")
        wanted = False

    def each(progress):
        for number, (step, problem) in enumerate(work):
            try:
                placement.require_room(step, problem, device)
            except OutOfMemory as error:
                if targets:
                    raise
                opt.note(f"left out: {error}")
                continue
            own = {name: value for name, value in settings.items() if name in step.tunables}
            config = {**(results.tuned(step, device.name, problem) or {}), **own}
            point = placement.from_results(placement.place(step, problem, known), step, problem, [] if own else rows)
            if targets and place.name != "emulator" and point["time_s"] is None:
                progress(number, len(work), "timing")
                point = placement.measured(point, place, step, problem, config)
            if wanted and place.name == "emulator":
                point = placement.by_work(point, step, problem, arch, device, progress)
            elif wanted:
                progress(number, len(work), "ncu")
                point = placement.by_counters(point, step, problem, config)
            yield point
    return list(opt.with_bar(each))


def _model(config, batch, sequence, phase, dtypes, device, known) -> list[dict]:
    from cudalab.dtypes import dtype_of
    from cudalab.roofline import model, placement
    if len(dtypes) > 1:
        raise click.UsageError("a model has one --dtype")
    dtype = dtypes[0] if dtypes else MODEL_DTYPE
    dtype_of(dtype)
    phases = model.PHASES if phase == "both" else (phase,)
    return placement.of_model(model.load(config), batch, sequence, dtype, phases, device, known)


@click.command()
@click.argument("target", metavar="STEP")
@opt.shape
@opt.kind
@opt.sets
@click.option("--times", type=click.IntRange(1, 1000), default=1, show_default=True, help="How often.")
@opt.seed
@opt.as_json
def run(target, shapes, dtypes, variants, sets, times, seed, as_json):
    """Launch a step on the GPU, on random inputs, and nothing else: for a profiler to look at.

    Example: python cli.py run step5, as in 'ncu --kernel-name sgemm python cli.py run step5'
    """
    from cudalab import check, gpu
    settings = opt.assignments(sets)
    step = opt.one_step(target, settings, {})
    plan = opt.only(opt.plans(step, shapes, settings, dtypes, variants), "run")
    place = gpu.backend("gpu")
    import cupy
    with place.stream:
        drawn = check.draw(step.op, plan.problem, step.op.kinds[0], check.generator(seed, cupy))
        buffers = drawn | place.allocate([t for name, t in plan.tensors.items() if name not in drawn], str(plan.problem))
    enqueue = place.prepare(plan, buffers)
    with place.stream:
        for _ in range(times):
            enqueue()
    place.synchronize(step.path)
    if as_json:
        return opt.print_json(dict(step=step.path, shape=dict(plan.problem), config=dict(plan.config), times=times,
                                   device=place.device.name))
    click.echo(f"{step.path} at {plan.problem}: ran {times} time{'s' * (times != 1)} on {place.device.name}")
