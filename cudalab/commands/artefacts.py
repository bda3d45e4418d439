"""Verbs over what the compiler made: dump, diff."""

import re
from itertools import zip_longest
from pathlib import Path

import click

from cudalab.commands import emulated
from cudalab.commands import options as opt
from cudalab.errors import LabError, MissingTool

RESOURCES = dict(registers="registers a thread", static_smem="static shared B", dynamic_smem="dynamic shared B",
                 spill_stores="spilled B stored", spill_loads="spilled B loaded", stack="stack B")


@click.command()
@click.argument("target", metavar="STEP|OP|FILE.cu", required=False)
@click.option("--all", "everything", is_flag=True, help="Every step of every op.")
@opt.shape
@opt.kind
@opt.sets
@click.option("--arch", "archs", multiple=True, metavar="TARGET",
              help=f"Compile for this target; may be repeated; 'all' means every target the lab knows.  [default: {opt.DEFAULT_ARCH}]")
@click.option("--no-sass", is_flag=True, help="Leave the SASS to whoever asks for it: nvdisasm takes most of the time.")
@click.option("--ptx", is_flag=True, help="Print the PTX.")
@click.option("--sass", is_flag=True, help="Print the SASS, with the source lines.")
@opt.user_file
@opt.as_json
def dump(target, everything, shapes, dtypes, variants, sets, archs, no_sass, ptx, sass, as_json, **own):
    """Compile a step and say where its source, PTX, cubin, SASS and resources lie.

    Example: python cli.py dump step5 --arch sm_89 --sass
    """
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from cudalab import build, leaving, registry, report
    if everything == (target is not None):
        raise click.UsageError("name a step, an op or a file, or say --all")
    if ptx + sass + as_json > 1:
        raise click.UsageError("--ptx, --sass and --json exclude each other: each is all that is printed")
    shown = "ptx" if ptx else "sass" if sass else None
    settings = opt.assignments(sets)
    steps = registry.steps() if everything else opt.targets(target, settings, own)
    archs = [a for arch in archs or (opt.DEFAULT_ARCH,) for a in (build.TARGETS if arch == "all" else (arch,))]
    plans = [plan for step in steps for plan in opt.plans(step, shapes, settings, dtypes, variants)]
    work = [(plan.step, plan, arch) for arch in archs for plan in plans if plan.step.runs_on(build.sm_of(arch), plan.problem)]
    if not work:
        raise LabError(f"{steps[0].path} needs {steps[0].capabilities(plans[0].problem)}, which {' '.join(archs)} is not")
    if shown and len(work) > 1:
        raise LabError(f"--{shown} prints one kernel's code, and this names {len(work)}: name one step, one --shape and one --arch")
    if shown:
        (_, plan, arch), = work
        built = build.build(plan, arch)
        return click.echo(built.ptx if shown == "ptx" else built.sass)
    over = threading.Event()
    with ThreadPoolExecutor(initializer=leaving.leave_when, initargs=(over,)) as pool:  # the compiler and nvdisasm run beside each other
        waiting = [pool.submit(_dumped, *one, not no_sass) for one in work]
        try:
            with opt.progress(waiting, "compiling") as bar:
                found = [_awaited(one) for one in bar]
        except BaseException:  # Ctrl-C too: what has not begun does not begin, and nobody waits for what has
            over.set()
            pool.shutdown(cancel_futures=True)
            raise
    if as_json:
        return opt.print_json(found)
    lines = [(k["entry"], k["registers"], k["static_smem"], k["spill_stores"] + k["spill_loads"], _from_here(f["folder"]))
             for f in found for k in f["kernels"]]
    click.echo(report.table(lines, ("kernel", "registers", "shared B", "spilled B", "folder: op/step/target"), left=(0, 4)))


def _awaited(future):
    """Its result, for which the main thread waits a little at a time: what NVRTC puts in the place of Python's handler does not wake it."""
    from concurrent.futures import wait
    while not future.done():
        wait([future], timeout=0.1)
    return future.result()


def _from_here(folder: str) -> str:
    """A path as short as it can be typed here."""
    path = Path(folder)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else folder


def _dumped(step, plan, arch, with_sass: bool) -> dict:
    from cudalab import build
    built = build.build(plan, arch)
    build.verify(built, plan)
    try:
        if with_sass and built.sass and not (built.folder / "kernel.sass").exists():  # it is written there on first use
            opt.note(f"{built.folder} cannot be written, so the SASS is not kept there: '--sass' prints it, and "
                     f"'cli.py --dumps DIR COMMAND' takes another place")
    except MissingTool as error:
        opt.note(f"no SASS: {error}")
    return dict(op=step.op.name, step=step.path, shape=dict(plan.problem), target=arch, folder=str(built.folder),
                files=sorted(p.name for p in Path(built.folder).iterdir()), cached=built.cached, seconds=built.seconds,
                kernels=[dict(entry=k.entry, registers=k.registers, static_smem=k.static_smem, spill_stores=k.spill_stores,
                              spill_loads=k.spill_loads, stack=k.stack, max_threads=k.max_threads) for k in built.kernels.values()])


@click.command()
@click.argument("first", metavar="STEP")
@click.argument("second", metavar="STEP")
@opt.shape
@opt.kind
@opt.sets
@opt.arch
@click.option("--ptx", "ptx", is_flag=True, help="The PTX of both, side by side.")
@click.option("--sass", "sass", is_flag=True, help="The SASS of both, side by side.")
@click.option("--counters/--no-counters", default=True, show_default=True, help="Run both on the emulator and compare what they ask for.")
@click.option("--count-at", multiple=True, metavar="SHAPE", help="Shape for the counters.  [default: the op's first for the emulator]")
@opt.user_file
@opt.as_json
def diff(first, second, shapes, dtypes, variants, sets, arch, ptx, sass, counters, count_at, as_json, **own):
    """Say what changed from one step to another: source, resources, instruction mix, counters.

    A setting (--set) goes to those of the two that have the tunable.  Either may be an own .cu file.

    Example: python cli.py diff step4 step5
    """
    import difflib

    from cudalab import build, report
    settings = opt.assignments(sets)
    pair = [opt.one_step(text, settings, own if opt.is_file(text) else {}) for text in (first, second)]
    for name in settings:
        if not any(name in step.tunables for step in pair):
            raise LabError(f"neither {pair[0].path} nor {pair[1].path} has a tunable {name}")
    if pair[0].op is not pair[1].op:
        raise LabError(f"{pair[0].path} and {pair[1].path} compute different things: compare two steps of one op")
    reports, builds = [], []
    for step in pair:
        mine = {name: value for name, value in settings.items() if name in step.tunables}
        plan = opt.only(opt.plans(step, shapes, mine, dtypes, variants), "diff")
        reports.append(report.compiled(plan, arch or opt.DEFAULT_ARCH))
        builds.append(build.build(plan, arch or opt.DEFAULT_ARCH))
    texts = [step.source.read_text(errors="replace").splitlines() for step in pair]
    source = list(difflib.unified_diff(*texts, *(step.path for step in pair), lineterm=""))
    launches = list(zip_longest(*([a for a in r["actions"] if a["kind"] == "launch"] for r in reports)))
    counts = emulated.differences(pair, count_at, settings, arch, dtypes, variants) if counters else None
    code = {name: side_by_side(*map(lines, builds)) for name, lines, wanted in (("ptx", _ptx, ptx), ("sass", _sass, sass)) if wanted}
    if as_json:
        return opt.print_json(dict(steps=[step.path for step in pair], source=source,
                                   launches=[dict(before=a, after=b) for a, b in launches],
                                   counters=counts and {k: v for k, v in counts.items() if k != "rows"}, **code))
    names = [step.id for step in pair]
    colours = {"+": "green", "-": "red", "@": "cyan"}  # click leaves them out where stdout is not a terminal
    click.echo("\n".join(click.style(line, fg=colours.get(line[:1])) for line in source) or "the sources are the same")
    click.echo("\n" + report.table(_tunables(reports), ("tunable", *names)))
    for a, b in launches:
        click.echo("\n" + report.table(_resources(a, b), ("launch", *names)))
        mix = _mix(a, b)
        changed = [line for line in mix if line[1] != line[2]]
        click.echo("\n" + report.table(changed, ("instructions", *names, "change")) if changed else "\nthe instructions are the same")
        if changed and len(changed) < len(mix):
            click.echo(report.fold(f"as many in both: {', '.join(f'{name} {count}' for name, count, other, _ in mix if count == other)}"))
    if counts:
        click.echo(f"\ncounted on the emulator at {report.shape_text(counts['shape'])}, at the level of PTX:\n")
        click.echo(report.table(counts["rows"], ("", *names, "change")))
    for name, lines in code.items():
        click.echo(f"\n{name.upper()}, {names[0]} on the left, {names[1]} on the right:\n")
        _print_columns(lines)


def _resources(a, b) -> list:
    def value(launch, name):
        return "-" if launch is None else launch[name] if name in launch else launch["occupancy"][name]
    rows = [(label, *("x".join(map(str, value(x, label))) if x else "-" for x in (a, b))) for label in ("grid", "block")]
    rows += [(label, value(a, name), value(b, name)) for name, label in dict(entry="kernel", **RESOURCES).items()]
    rows += [("blocks an SM", value(a, "blocks"), value(b, "blocks")), ("warps an SM", value(a, "warps"), value(b, "warps"))]
    return rows + [("limited by", *(", ".join(x["occupancy"]["limits"]) if x else "-" for x in (a, b)))]


def _tunables(reports) -> list:
    configs = [r["config"] for r in reports]
    return [(name, *(config.get(name, "-") for config in configs)) for name in {**configs[0], **configs[1]}]


def _mix(a, b) -> list:
    """Per class of instruction: how many stand in each, and the difference; the most frequent first."""
    left, right = ((launch or {}).get("mix") or {} for launch in (a, b))
    names = sorted({*left, *right}, key=lambda name: (-max(left.get(name, 0), right.get(name, 0)), name))
    return [(name, left.get(name, 0), right.get(name, 0), f"{right.get(name, 0) - left.get(name, 0):+d}") for name in names]


def _ptx(built) -> list[str]:
    """The PTX without what only the debugger reads."""
    code = built.ptx.partition("\n\t.section")[0].partition("\n.section")[0]
    return [line.expandtabs(4) for line in code.splitlines() if line.strip() and not line.lstrip().startswith((".loc", ".file", "//"))]


def _sass(built) -> list[str]:
    """The instructions of every kernel but the padding, with the line of the .cu that each came from in front."""
    from cudalab import sass
    found = []
    for symbol, instructions in sass.functions(built.sass).items():
        found.append(f"{symbol}:")
        found += [f"{i.line or '':>4}  {'@' + i.predicate if i.predicate else '':<5} {i.opcode} {i.operands}".rstrip() for i in instructions
                  if i.opcode != "NOP"]
    return found


def side_by_side(a: list[str], b: list[str]) -> list[tuple[str, str, str]]:
    """Lines of two listings beside each other: (left, mark, right); mark: blank the same, . the same but for numbers, | changed,
    < only left, > only right.  Numbers of registers, labels and lines differ for no reason, so they do not count when lines are paired.
    """
    import difflib
    matcher = difflib.SequenceMatcher(None, *([re.sub(r"\d+", "#", line).strip() for line in text] for text in (a, b)), autojunk=False)
    lines = []
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        for x, y in zip_longest(a[a0:a1], b[b0:b1]):
            mark = ">" if x is None else "<" if y is None else " " if x == y else "|" if kind != "equal" else "."
            lines.append((x or "", mark, y or ""))
    return lines


def _print_columns(lines) -> None:
    from cudalab.report import terminal_width
    width = ((terminal_width() or 160) - 3) // 2
    for left, mark, right in lines:
        click.echo(f"{left[:width]:<{width}} {mark} {right[:width]}".rstrip())
