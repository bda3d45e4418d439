"""Verbs on the emulator: check and bench where there is no GPU, profile, the counters of diff."""

import functools
import re

import click

from cudalab.commands import options as opt
from cudalab.errors import LabError, WrongResult


def target_of(arch: str | None, device: str | None, step=None) -> str:
    """What to compile for: the target named, that of the device named, that of the step if it is PTX already, or the default."""
    from cudalab import build, devices
    if arch is None and device is None and step is not None and step.source.suffix == ".ptx":
        found = re.search(r"^\s*\.target\s+(sm_\w+)", step.source.read_text(errors="replace"), re.MULTILINE)
        arch = found and found[1]
    return arch or (build.target_for(devices.find_device(device).sm) if device else opt.DEFAULT_ARCH)


def counted(step, problem, target: str, **more):
    """`counted.count` with a bar on stderr."""
    from cudalab import counted as counting

    def make(progress):
        yield counting.count(step, problem, target, progress=progress, **more)
    return next(opt.with_bar(make))


def check(place, work, settings, seed: int, as_json: bool) -> None:
    """The verdicts of every step and shape, faults of the kernel among them; exits by correctness."""
    from cudalab import counted as counting
    from cudalab.check import draw, generator
    from cudalab.commands.run import report_verdicts

    def judge(step, problem, progress):
        plan = step.plan(problem, step.config(problem, settings))
        for number, kind in enumerate(step.op.kinds):
            place.progress = lambda done, total, entry: progress(done, total, f"{step.path}, {kind.removesuffix('s')} inputs")  # noqa: B023
            yield counting.verdict_of(plan, draw(step.op, problem, kind, generator(seed + number)), place, kind)

    if words := counting.patience(work):
        opt.note(words)
    verdicts, refused = [], []
    try:
        for step, problem in work:
            try:
                for verdict in opt.with_bar(functools.partial(judge, step, problem)):
                    verdicts.append((step, verdict))
            except LabError as error:
                _refuse(error, step, refused, len(work))
    finally:
        report_verdicts(verdicts, as_json)
    fail(verdicts, refused, len(work))


def bench(work, settings, seed: int, sanitize: bool, target: str, device: str | None, as_json: bool) -> None:
    """Correctness, counters and the roofline of every step and shape; exits by correctness."""
    from cudalab import counted as counting
    shown = counting.device_for(device, target)
    if words := counting.patience(work):
        opt.note(words)
    found, refused = [], []
    try:
        for step, problem in work:
            try:
                found.append(counted(step, problem, target, overrides=settings, seed=seed, sanitize=sanitize))
            except LabError as error:
                _refuse(error, step, refused, len(work))
    finally:  # after Ctrl-C too
        if as_json and found:  # without any an error follows, which says all
            opt.print_json([counting.row(one, shown) for one in found])
        elif len({one.plan.step for one in found}) == 1:
            click.echo("\n\n".join([counting.text(found[0], shown), *map(counting.brief, found[1:])]))
        elif found:
            click.echo(counting.rows_text(found, shown))
    fail([(one.plan.step, verdict) for one in found for verdict in one.verdicts], refused, len(work))


def _refuse(error: LabError, step, refused: list, works: int) -> None:
    """What keeps one step of many from running does not keep the others; `fail` says it."""
    if works == 1:
        raise error
    refused.append(str(error) if str(error).startswith(step.path) else f"{step.path}: {error}")


def fail(verdicts, refused, works: int) -> None:
    """Raise for what was wrong, or did not run (refused: why, a line each time); what the error's one line leaves out is a note."""
    wrong = [(step, verdict) for step, verdict in verdicts if not verdict]
    reasons = list(dict.fromkeys(refused))
    for reason in reasons if wrong or len(reasons) > 1 else ():
        opt.note(reason)
    if wrong:
        step, verdict = wrong[0]
        raise WrongResult(f"{len(wrong)} of {len(verdicts)} checks failed, the first: {step.path} at {verdict.problem}: {verdict.reason}")
    if refused:
        some = len(refused) < works or len(reasons) > 1
        raise LabError((f"{len(refused)} of {works} did not run, the first: " if some else "") + reasons[0])


def differences(pair, texts, settings, arch: str | None, dtypes=(), variants=()) -> dict | None:
    """Counters of two steps beside each other, at the shape named or the op's first for the emulator; None where one cannot run."""
    from cudalab import counted as counting
    _, problem = opt.only(opt.work(pair[:1], texts, "emulate", dtypes, variants, first=True), "diff --count-at")
    try:
        found = [counted(step, problem, target_of(arch, None), overrides={n: v for n, v in settings.items() if n in step.tunables},
                         sanitize=False, kinds=step.op.kinds[:1]) for step in pair]
    except LabError as error:
        opt.note(f"no counters: {error}")
        return None
    for one in found:
        if not one:
            opt.note(f"{one.label}: {one.verdicts[0].reason}")
    totals = [one.counters.total() for one in found]
    return dict(shape=dict(problem), level="PTX", counters=totals, rows=counting.difference(*found))


@click.command()
@click.argument("target", metavar="STEP|FILE.cu|FILE.ptx")
@opt.shape
@opt.kind
@opt.sets
@opt.arch
@opt.device
@opt.seed
@opt.user_file
@opt.as_json
def profile(target, shapes, dtypes, variants, sets, arch, device, seed, as_json, **own):
    """Run a step on the emulator and print its source with counters beside each line.

    By columns: instructions of warps and their share, threads that each of them had, sectors of global memory a request, wavefronts of
    shared memory a request, bank conflicts (wavefronts beyond the ideal), branches that diverged.  All at the level of PTX.

    \b
    Example: python cli.py profile step5 --shape 256
             python cli.py profile my.ptx --like step5 --entry my_kernel
    """
    from cudalab import counted as counting
    settings = opt.assignments(sets)
    step = opt.one_step(target, settings, own, ptx=True)
    _, problem = opt.only(opt.work([step], shapes, "emulate", dtypes, variants, first=True), "profile")
    arch = target_of(arch, device, step)
    opt.note_spills(step, problem, settings, arch)
    shown = counting.device_for(device, arch)
    one = counted(step, problem, arch, overrides=settings, seed=seed, sanitize=False, kinds=step.op.kinds[:1])
    if as_json:
        lines = [dict(file=file, line=line, **counts) for (file, line), counts in one.counters.lines(step.source.suffix == ".ptx").items()]
        opt.print_json(dict(counting.row(one, shown), lines=lines))
    else:
        click.echo(f"{counting.profile_text(one)}\n\n{counting.text(one, shown)}")
    fail([(step, verdict) for verdict in one.verdicts], [], 1)
