"""Verbs that run kernels: check, bench, tune; without a GPU the first two run them on the emulator (see emulated.py)."""

import functools
from pathlib import Path

import click

from cudalab.commands import emulated
from cudalab.commands import options as opt
from cudalab.errors import LabError, MissingTool, NoDevice, WrongResult

LARGE, DRAWN = 500, 300  # combinations of tunables: of more than that, `tune` draws so many unless it is told


@click.command()
@click.argument("target", metavar="STEP|OP|FILE.cu|FILE.ptx")
@opt.shape
@opt.kind
@opt.sets
@opt.arch
@opt.backend
@opt.sanitize
@opt.seed
@opt.user_file
@opt.as_json
def check(target, shapes, dtypes, variants, sets, arch, backend, sanitize, seed, as_json, **own):
    """Compare a step's results with the NumPy reference, on each kind of input of its op, at its check shapes, in every type it takes.

    One line a step, and one for each check that failed; --json has them all.  Where there is no GPU it runs on the emulator, at the op's
    shapes for that.

    Example: python cli.py check step5 --shape "257x130x70 1"
    """
    from cudalab import gpu
    from cudalab.check import check_step
    settings = opt.assignments(sets)
    steps = opt.targets(target, settings, own, ptx=True)
    place = gpu.backend(opt.backend_for(steps, backend), target=arch or opt.DEFAULT_ARCH, sanitize=sanitize)
    if arch not in (None, place.target):
        raise LabError(f"{place.device.name} runs {place.target}: --backend emulator takes another --arch")
    work = opt.work(steps, shapes, "emulate" if place.name == "emulator" else "check", dtypes, variants, every=True)
    work = opt.that_run(work, place.target)
    opt.note_spills(*work[0], settings, place.target)
    if place.name == "emulator":
        return emulated.check(place, work, settings, seed, as_json)
    verdicts = []
    try:
        with opt.progress(work, "checking") as bar:
            for step, problem in bar:
                verdicts += [(step, verdict) for verdict in check_step(step, problem, place, overrides=settings, seed=seed)]
    finally:
        report_verdicts(verdicts, as_json)
    emulated.fail(verdicts, [], len(work))


def report_verdicts(verdicts, as_json: bool) -> None:
    """Print (step, verdict) pairs; nothing where there are none: an error follows."""
    from cudalab import report
    if not verdicts:
        return
    found = [dict(op=s.op.name, step=s.id, shape=dict(v.problem), dtype=v.problem.dtype, variant=v.problem.variant, inputs=v.kind,
                  passed=v.passed, error=report.finite(v.error), bound=v.bound, reason=v.reason) for s, v in verdicts]
    opt.print_json(found) if as_json else click.echo(report.checked(found))


@click.command()
@click.argument("target", metavar="STEP|OP|FILE.cu|FILE.ptx")
@opt.shape
@opt.kind
@click.option("--all-shapes", is_flag=True, help="Every benchmark shape of the op.  [default: the first; on the emulator its own]")
@opt.sets
@click.option("--peer", "peer_names", multiple=True, metavar="FILE.py:NAME",
              help="Compare with your own function, or with a peer by name, in place of the op's peers.  May be repeated.")
@click.option("--sustained", is_flag=True, help="Run for two seconds: what power and clocks allow.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Add the rows to this file ('results merge FILE' brings them into results/).")
@click.option("--against", is_flag=True, help="Say what changed since the last row of the same thing in results/.")
@click.option("--fail-below", type=float, metavar="RATIO",
              help="With --against: fail if a row's speed fell below this share of the last, such as 0.97.")
@opt.arch
@opt.backend
@opt.sanitize
@opt.device
@opt.seed
@opt.user_file
@opt.as_json
def bench(target, shapes, dtypes, variants, all_shapes, sets, peer_names, sustained, save, against, fail_below, arch, backend, sanitize,
          device, seed, as_json, **own):
    """Check a step, time it, and compare it with the best library in the same run.

    Where there is no GPU it runs on the emulator, at the op's shapes for that: it prints whether the result is right, what the step asks
    of a device, and where that stands on a device's roofline.

    \b
    Example: python cli.py bench step5 --shape 4096x4096x1024
             python cli.py bench my.cu --like step5
             python cli.py bench my.cu --op sgemm --entry mm --grid "cdiv(N, 32), cdiv(M, 32)" --block "32, 32" --args "A B C M N K"
    """
    from cudalab import gpu, peers
    settings = opt.assignments(sets)
    steps = opt.targets(target, settings, own, ptx=True)
    if shapes and all_shapes:
        raise click.UsageError("--shape and --all-shapes exclude each other")
    if fail_below is not None and not against:
        raise click.UsageError("--fail-below says what --against may find: give both")
    work = opt.work(steps, shapes, "bench", dtypes, variants, first=not all_shapes)
    for step, problem in work:
        step.plan(problem, step.config(problem, settings))  # a wrong shape or setting is said before anything is compiled or run
    chosen = {step.op.name: [peers.find_peer(name) for name in peer_names or step.op.peers] for step in steps}
    target = emulated.target_of(arch, device, steps[0])
    place = gpu.backend(opt.backend_for(steps, backend), target=target, sanitize=sanitize)
    if place.name == "emulator":
        asked = {"--save": save, "--against": against, "--sustained": sustained, "--peer": peer_names}
        wanted = [name for name, given in asked.items() if given]
        if all_shapes:
            raise LabError("the benchmark shapes are too large for the emulator: leave --all-shapes out for its own, or give --shape")
        if wanted:
            raise NoDevice(f"{' and '.join(wanted)} need{'s' * (len(wanted) == 1)} a measurement, and the emulator times nothing "
                           f"('doctor' says what is missing for a GPU)")
        if not shapes:
            work = opt.work(steps, (), "emulate", dtypes, variants)
        work = opt.that_run(work, target)
        opt.note_spills(*work[0], settings, target)
        return emulated.bench(work, settings, seed, sanitize, target, device, as_json)
    if device:
        raise click.UsageError(f"--device is for the emulator; this is {place.device.name}")
    if arch not in (None, place.target):
        raise LabError(f"{place.device.name} runs {place.target}: 'dump' and 'show' take another --arch")
    if save and own_file_shadows(steps):
        raise LabError(f"{steps[0].source.name} has the name of a step, and its rows would pass for that step's: rename it to save rows")
    if peer_names:  # the op's own peers may be missing, and are then named; one that was asked for may not
        for peer in next(iter(chosen.values())):
            if reason := peer.missing():
                raise MissingTool(f"peer {peer.name}: {reason}")
    work = opt.that_run(work, place.target)
    opt.note_spills(*work[0], settings, place.target)
    _bench(place, work, settings, chosen, "sustained" if sustained else "steady", save, against, fail_below, seed, as_json)


def own_file_shadows(steps) -> bool:
    from cudalab import registry
    return any(step not in registry.steps() and step.id in {known.id for known in step.op.steps} for step in steps)


def _bench(place, work, settings, chosen, protocol, save, against, fail_below, seed, as_json) -> None:
    from cudalab import measure, report, results
    rows, failed = [], []
    before = results.rows(place.device.name) if against else []
    if save:
        results.append(save, [])  # a file that cannot be written is said now, not after the measuring
    try:
        for step, problem in work:
            label = f"{step.path} at {report.problem_text(problem)}"
            kept = results.tuned(step, place.device.name, problem)
            if kept:
                opt.note(f"{label}: with the configuration that 'tune' kept: {' '.join(f'{n}={v}' for n, v in kept.items())}")
            config = step.config(problem, {**(kept or {}), **settings})
            try:
                measuring = functools.partial(measure.bench_step, place, step, problem, config=config, peers=chosen[step.op.name],
                                              protocol=protocol, seed=seed, say=opt.note)
                for row in opt.with_bar(measuring):
                    if save:
                        results.append(save, [row])  # each as soon as it is measured
                    rows.append(row)
            except LabError as error:
                if len(work) == 1:
                    raise
                failed.append(error)
                opt.note(f"{label}: {error}")
    finally:  # after Ctrl-C too: what was measured is shown, and is in the file already
        found = results.changes(rows, before) if against else []
        if as_json and rows:  # without any an error follows, which says all
            last = [dict(last_time_s=c.before and c.before["time_s"], last_date=c.before and c.before["date"], speed=c.speed)
                    for c in found]
            opt.print_json([{**row, **more} for row, more in zip(rows, last or [{}] * len(rows), strict=True)])
        elif rows:
            click.echo(report.measured(rows))
            if found:
                click.echo("\n" + _changes(found, report))
    if failed:
        raise LabError(f"{len(failed)} of {len(work)} measurements failed, the first: {failed[0]}")
    slow = results.slower(found, fail_below) if fail_below is not None else []
    if slow:
        raise LabError(f"{len(slow)} of {len(rows)} rows fell below {fail_below} of their last speed, the slowest: "
                       f"{slow[0].row['step']} at {report.case_text(slow[0].row)}, {slow[0].speed:.3f}")


def _changes(found, report) -> str:
    lines = [(f"{c.row['op']}/{c.row['step']}", report.case_text(c.row), c.row["peer"] or "-", report.time_text(c.row["time_s"]),
              report.time_text(c.before["time_s"]) if c.before else "-", report.ratio_text(c.speed),
              c.before["date"] if c.before else "never measured")
             for c in found]
    return report.table(lines, ("step", "shape", "peer", "time", "last time", "speed", "last measured"), left=(0, 1, 2, 6))


@click.command()
@click.argument("target", metavar="STEP")
@opt.shape
@opt.kind
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Hold a tunable at one value.  May be repeated.")
@click.option("--sample", type=click.IntRange(0), metavar="COUNT",
              help=f"Try so many configurations, drawn at random; 0: all.  [default: all up to {LARGE}, of more {DRAWN}]")
@opt.seed
@opt.as_json
def tune(target, shapes, dtypes, variants, sets, sample, seed, as_json):
    """Search a step's legal configurations at a shape, and keep the best where `bench` finds it.

    \b
    Example: python cli.py tune step5 --shape 4096
             python cli.py tune step12 --shape "4096 1000" --sample 200
    """
    from cudalab import gpu, registry, report, results
    from cudalab import tune as tuning
    if opt.is_file(target):
        raise LabError(f"tune searches what a step of the lab names; with a file of your own: 'bench {target} --set NAME=VALUE'")
    step, settings = registry.resolve_step(target), opt.assignments(sets)
    problems = [problem for _, problem in opt.work([step], shapes, "bench", dtypes, variants, first=True)]
    total = tuning.size(step, settings)
    count = (DRAWN if total > LARGE else 0) if sample is None else sample
    # before a device is looked for: wrong settings are said without one
    spaces = [tuning.space(step, problem, settings, count or total, seed) for problem in problems]
    place = gpu.backend("gpu")
    if sample is None and count:
        opt.note(f"{step.path} has {total} combinations, {count} of them are drawn (--seed {seed}); '--sample 0' tries all")
    results.append(results.tuned_file(place.device.name), [])  # a folder that cannot be written is said now, not after the search
    found = []
    try:
        for problem, (legal, refused) in zip(problems, spaces, strict=True):
            search = tuning.Search(step, problem, refused=refused)
            last = results.tuned(step, place.device.name, problem)
            if last and settings.items() <= last.items():
                last = step.plan(problem, step.config(problem, last))
                if all(plan.config != last.config for plan in legal):
                    legal.insert(1, last)  # what is kept is never slower than what was
            else:  # values that are held now come before what was kept with others
                last = None
            try:
                label = f"{step.path} at {report.problem_text(problem)}"
                with opt.progress(len(legal), label) as bar:
                    search.run(place, legal, seed=seed, progress=bar.update)
            finally:  # after Ctrl-C too: the best so far is kept
                if search.best and (search.finished or last is None or search.has_timed(last.config)):
                    file = results.save_tuned(step, place.device.name, problem, search.best.config, search.best.time_s)
                    opt.note(f"kept in {file}" + ("" if search.finished else " (the best so far)"))
                found.append(search.summary())
                for reason in search.wrong:
                    opt.note(f"wrong result: {reason}")
    finally:
        if as_json:
            opt.print_json(found)
        else:
            lines = [(report.case_text(f), f["timed"], f["refused"], " ".join(f"{n}={v}" for n, v in f["config"].items()),
                      report.time_text(f["time_s"]), report.ratio_text(f["speedup"])) for f in found if f["config"]]
            click.echo(report.table(lines, ("shape", "timed", "not legal", "best", "time", "over default"), left=(0, 3), wrap=3))
    wrong = sum(len(f["wrong"]) for f in found)
    if wrong:
        raise WrongResult(f"{wrong} configurations of {step.path} compute something wrong (named above); none of them was kept")
