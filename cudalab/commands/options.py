"""What several verbs share: their options, and how an option's text becomes a target, a problem, a configuration."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from cudalab.errors import BadConfig, BadShape, LabError, UnknownName

SAID = 8  # steps that a note names
DEFAULT_ARCH = "sm_90a"  # what is compiled for where no device says otherwise

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
arch = click.option("--arch", metavar="TARGET",
                    help=f"Compile for this target, such as sm_80, sm_89, sm_90a, sm_120a.  [default: {DEFAULT_ARCH}]")
shape = click.option("--shape", "shapes", multiple=True, metavar="SHAPES",
                     help='Sizes in the order of the op\'s dimensions: 4096, or "4096x4096x1024 1000".  May be repeated.')
dtype = click.option("--dtype", "dtypes", multiple=True, metavar="NAME",
                     help="Type of the elements, such as bf16.  May be repeated.  [default: the op's first; for check: all]")
variant = click.option("--variant", "variants", multiple=True, metavar="NAME",
                       help="Variant of the op, such as nt; 'none' for the plain one.  May be repeated.  [default: as for --dtype]")
sets = click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Give a tunable a value.  May be repeated.")
backend = click.option("--backend", metavar="NAME", help="Where to run: gpu, emulator, or auto: the GPU if there is one.  [default: auto]")
sanitize = click.option("--sanitize/--no-sanitize", default=True, show_default=True,
                        help="On the emulator: look for races, reads of what was never set, and their like.")
device = click.option("--device", metavar="NAME",
                      help='On the emulator: whose roofline the counted work is held against, such as "RTX 4060".  '
                           "[default: one that runs the --arch]")
seed = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random inputs.")


def user_file(verb):
    """The options that say what a user's own .cu computes and how it is launched; the verb gets them as keywords for `targets`."""
    for option in reversed((
        click.option("--like", metavar="STEP", help="Own .cu or .ptx: take op, entry, grid, block and arguments from this step."),
        click.option("--op", metavar="OP", help="Own .cu or .ptx: the op it computes, such as sgemm."),
        click.option("--entry", help='Own .cu or .ptx: the kernel, or a template instance: "gemm<128, 8>".'),
        click.option("--grid", metavar="EXPR", help='Own .cu or .ptx: blocks, such as "cdiv(N, 128), cdiv(M, 128)".'),
        click.option("--block", metavar="EXPR", help='Own .cu or .ptx: threads of a block, such as 256 or "32, 8".'),
        click.option("--args", metavar="NAMES", help='Own .cu or .ptx: the arguments, such as "A B C M N K"; numbers go by value.'),
        click.option("--smem", metavar="EXPR", help="Own .cu or .ptx: bytes of dynamic shared memory.  [default: 0]"),
    )):
        verb = option(verb)
    return verb


def assignments(texts: tuple[str, ...]) -> dict[str, int]:
    """BM=64 BN=128 -> a dictionary.  Raises BadConfig for anything else."""
    values = {}
    for text in texts:
        for word in text.split():
            match = re.fullmatch(r"([A-Za-z_]\w*)=(-?\d+)", word)
            if not match:
                raise BadConfig(f"'{word}' is not a setting; write NAME=INTEGER, such as BM=64")
            values[match[1]] = int(match[2])
    return values


def targets(text: str, settings: Mapping[str, int], own: Mapping[str, str | None], ptx: bool = False) -> list:
    """The steps that a person names: one step, every step of an op, or an own .cu file as a step (own: the options of `user_file`).

    ptx: a file of PTX will do, too.
    """
    from cudalab import registry, userfile
    from cudalab.spec import Op
    if text.endswith(".ptx") and not ptx:
        raise LabError(f"{text} is PTX already: 'check', 'bench' and 'profile' run it on the emulator")
    if is_file(text):
        return [userfile.step(Path(text), settings=settings, **own)]
    given = [f"--{name}" for name, value in own.items() if value is not None]
    if given:
        raise UnknownName(f"{', '.join(given)}: only for an own .cu or .ptx file, and '{text}' is not one")
    found = registry.resolve(text)
    return list(found.steps) if isinstance(found, Op) else [found]


def is_file(text: str) -> bool:
    """Whether this names an own kernel: by its suffix, for a file may have a step's name."""
    return text.endswith((".cu", ".cuh", ".ptx"))


def backend_for(steps, name: str | None) -> str | None:
    """The backend asked for, or what the steps need: PTX files run on the emulator only."""
    if not any(step.source.suffix == ".ptx" for step in steps):
        return name
    if name not in (None, "auto", "emulator"):
        raise LabError(f"a PTX file runs on the emulator only, not on '{name}': leave --backend out")
    return "emulator"


def one_step(text: str, settings: Mapping[str, int], own: Mapping[str, str | None], ptx: bool = False):
    """Like `targets`, for a place where only one step makes sense."""
    from cudalab import registry
    found = targets(text, settings, own, ptx)
    return found[0] if len(found) == 1 else registry.resolve_step(text)


def kind(verb):
    """The options --dtype and --variant."""
    return dtype(variant(verb))


def plans(step, texts: tuple[str, ...], settings: Mapping[str, int], dtypes: tuple[str, ...] = (), variants: tuple[str, ...] = ()) -> list:
    """The step's plans at the shapes of --shape, by default at the first benchmark shape of its op that it takes."""
    found = work([step], texts, "bench", dtypes, variants, first=True)
    return [step.plan(problem, step.config(problem, settings)) for _, problem in found]


def work(steps, texts: tuple[str, ...], purpose: str, dtypes: tuple[str, ...] = (), variants: tuple[str, ...] = (), *,
         first: bool = False, every: bool = False) -> list:
    """(step, problem) for each step at the shapes of --shape, by default those that its op has for a purpose and the step takes.

    first: only the first of these.  every: of all kinds the step takes, where none is named, in place of the usual one.
    """
    from cudalab import spec
    chosen = tuple(None if name == "none" else name for name in variants)
    found, unusable, refusals = [], None, {}
    for step in steps:
        for what, names, known in (("dtype", dtypes, step.op.dtypes), ("variant", chosen, step.op.variants)):
            for name in names:
                if name not in known:
                    raise UnknownName(f"{step.op.name} has no {what} '{name}'; it has {' '.join(str(one or 'none') for one in known)}")
        usual = step.kinds(dtypes, chosen)[:1]
        kinds = step.kinds(dtypes, chosen) if every else [(d, v) for d, v in step.kinds(dtypes, chosen)
                                                          if (dtypes or d == usual[0][0]) and (chosen or v == usual[0][1])]
        sizes = [values for text in texts for values in spec.shapes(text, step.op.dims)]
        if texts and not sizes:
            raise BadShape(f"--shape '{' '.join(texts)}' names no shape; write {'x'.join(step.op.dims)} or one number for all")
        offered = [step.op.problem(values, *one) for one in kinds for values in sizes or step.shapes(purpose)]
        reasons = {problem: "" if texts and not every else step.refuses(problem) for problem in offered}

        def meant(problem):
            """A shape that was named, in a kind that was, or that no kind takes: there the error is the answer."""
            return texts and not any(dict(problem) == dict(other) and not reasons[other] and (not dtypes or problem.dtype == other.dtype)
                                     and (not chosen or problem.variant == other.variant) for other in offered)
        refused = [(problem, reason) for problem, reason in reasons.items() if reason and not meant(problem)]
        for one in kinds:
            taken = [problem for problem in offered if problem.kind == one and (not reasons[problem] or meant(problem))]
            found += [(step, problem) for problem in (taken[:1] if first and not texts else taken)]
        if refused:
            refusals.setdefault((len(refused), *refused[0]), []).append(step.path)
        unusable = unusable or not kinds and f"{step.path} does not take {' '.join((*dtypes, *variants))}: take another step of the ladder"
    if not found:
        for (_, problem, reason), paths in refusals.items():
            raise BadShape(f"{paths[0]} takes none of the op's shapes for this; the first, {problem}: {reason}")
        raise BadShape(unusable)
    for (count, problem, reason), paths in () if first else refusals.items():
        who = f"{paths[0]} does" if len(paths) == 1 else f"{_listed(paths)} do"
        which = "kinds" if texts else "op's shapes"
        note(f"{who} not take {count} of the {which}; the first, {problem}: {reason}")
    return found


def _listed(words: list[str]) -> str:
    """The words, of many the first."""
    return ", ".join(words[:SAID]) + (f" and {len(words) - SAID} more" if len(words) > SAID else "")


def that_run(work, target: str, named=()) -> list:
    """The (step, problem) that a target has the instructions for; the others are left out with one note.

    Raises LabError where none is left, or nothing is left of a step that was asked for by name.
    """
    from cudalab import build
    number = build.sm_of(target)
    found = [(step, problem) for step, problem in work if step.runs_on(number, problem)]
    kept = {step for step, _ in found}
    for step, problem in work:
        if step not in kept and (step in named or not found):
            raise LabError(f"{step.path} needs {step.capabilities(problem)}, which {target} does not have: "
                           f"take another {'step' if found or len({one for one, _ in work}) == 1 else 'op'}, --arch or --device")
    left = {}
    for step, problem in work:
        if not step.runs_on(number, problem):
            left.setdefault(step, []).append(" ".join(filter(None, problem.kind)))
    if left:
        words = [step.path + (f" in {', '.join(dict.fromkeys(kinds))}" if step in kept else "") for step, kinds in left.items()]
        note(f"left out, as {target} does not have their instructions: {_listed(words)}")
    return found


def only(found: list, verb: str):
    """The one thing that a verb works on.  Raises LabError where the options name several."""
    if len(found) != 1:
        raise LabError(f"{verb} works on one thing: give one shape and one kind, not {len(found)}")
    return found[0]


def note_spills(step, problem, settings, target: str) -> None:
    """Say where a file of a person's own spills registers; the lab's own steps must not, or are there to teach it."""
    from cudalab import build, registry
    if step in registry.steps() or step.source.suffix == ".ptx":
        return
    try:
        built = build.build(step.plan(problem, step.config(problem, settings)), target)
    except LabError:
        return  # said where it is run
    for kernel in built.kernels.values():
        if kernel.spill_stores or kernel.spill_loads:
            note(f"Warning: {step.path}: {kernel.entry} spills {kernel.spill_stores} bytes stored and {kernel.spill_loads} loaded a thread "
                 f"at {kernel.registers} registers: it runs, but slower than with a smaller tile or looser __launch_bounds__")


def print_json(value) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Narration: to stderr, so that stdout holds data only."""
    click.echo(text, err=True)


def progress(work, label: str):
    """A progress bar over `work`, a number of steps or a list of them, on stderr; silent where stderr is not a terminal."""
    what = dict(length=work) if isinstance(work, int) else dict(iterable=work)
    return click.progressbar(**what, label=label, file=sys.stderr, show_pos=True, hidden=not sys.stderr.isatty())


def with_bar(make):
    """What make(progress=tick) yields, with a bar on stderr that tick(done, total, what) moves: one bar for each `what`."""
    bars = []

    def tick(done, total, what):
        if not bars or bars[-1].label != what:
            close()
            bars.append(progress(total, what))
            bars[-1].__enter__()
        bars[-1].update(done - bars[-1].pos)

    def close():
        if bars:
            bars.pop().__exit__(None, None, None)

    try:
        for item in make(progress=tick):
            close()
            yield item
    finally:
        close()
