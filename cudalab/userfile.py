"""A user's own `.cu` file, or one of PTX for the emulator, as a step.

It is checked against the op's reference and timed against its peers without touching the package.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cudalab import registry
from cudalab.errors import LabError, UnknownName
from cudalab.expressions import evaluate
from cudalab.spec import Launch, Step, f32, i32


def step(source: Path, *, like: str | None = None, op: str | None = None, entry: str | None = None, grid: str | None = None,
         block: str | None = None, args: str | None = None, smem: str | None = None, settings: Mapping[str, int] = {}) -> Step:
    """The file as a step, launched as a known step is (`like`), or as the expressions over dimensions and settings say, or both.

    settings: NAME -> value, handed to the source as macros.  It may spill registers, and with `like` it finds that step's headers.
    Raises LabError naming what is missing.
    """
    if not source.is_file():
        raise LabError(f"there is no file {source}")
    if source.suffix == ".ptx" and entry and not re.fullmatch(r"[A-Za-z_$%][\w$]*", entry):
        raise LabError(f"--entry '{entry}': PTX has no templates; name the kernel as it stands behind .entry in {source}")
    launch = dict(entry=entry, grid=grid, block=block, args=args, smem=smem)
    own = next((s for s in registry.steps() if s.source == source.resolve()), None)
    if own and like is None and op is None and not any(launch.values()):
        return own  # the file of a step, named by its path
    if like is None:
        missing = [f"--{name}" for name, value in dict(op=op, entry=entry, grid=grid, block=block, args=args).items() if value is None]
        if missing:
            raise LabError(f"{source} needs {', '.join(missing)}, or --like STEP to take them from a step: "
                           f'--op sgemm --entry NAME --grid "cdiv(N, 32), cdiv(M, 32)" --block "32, 32" --args "A B C M N K"')
        if op not in registry.ops():
            raise UnknownName(f"no op is called '{op}'; there are: {', '.join(registry.ops())}")
        return Step(registry.ops()[op], 0, source.stem, source.resolve(), _plan(**launch), dict(settings), {}, spills=True)
    model = registry.resolve_step(like)
    if op not in (None, model.op.name):
        raise LabError(f"--op {op} and --like {like} disagree: {model.path} computes {model.op.name}")
    return replace(model, name=source.stem, source=source.resolve(), make_actions=_plan_like(model, launch),
                   tunables={**model.tunables, **settings}, tune={}, spills=True, folders=(model.source.parent,))


def _plan(entry: str, grid: str, block: str, args: str, smem: str | None):
    def make(p, c):
        names = {**p, **c}
        yield Launch(entry, _sizes("grid", grid, names), _sizes("block", block, names), _arguments(args), _bytes(smem, names))
    return make


def _plan_like(model: Step, launch: Mapping[str, str | None]):
    """The model's actions, with what the person gave put in its place."""
    given = {name: value for name, value in launch.items() if value is not None}

    def make(p, c):
        names = {**p, **c}
        actions = list(model.make_actions(p, c))
        if given and sum(isinstance(a, Launch) for a in actions) > 1:
            raise LabError(f"{model.path} launches several kernels; --{', --'.join(given)} would not say which one is meant")
        for action in actions:
            if isinstance(action, Launch):
                values = {name: _sizes(name, given[name], names) for name in ("grid", "block") if name in given}
                if "entry" in given:
                    values["entry"] = given["entry"]
                if "args" in given:
                    values["args"] = _arguments(given["args"])
                if "smem" in given:
                    values["smem"] = _bytes(given["smem"], names)
                action = replace(action, **values)
            yield action
    return make


def _sizes(option: str, text: str, names: Mapping[str, int]) -> tuple[int, ...]:
    values = evaluate(text, names)
    if len(values) > 3:
        raise LabError(f"--{option} '{text}' has {len(values)} sizes; x, y and z are all there are")
    return values


def _arguments(text: str) -> tuple:
    """Names stay names; 3 is passed as an int, 1.0 or 1.0f as a float."""
    def one(word):
        if re.fullmatch(r"-?\d+", word):
            return i32(int(word))
        if re.fullmatch(r"-?(\d+\.\d*|\.\d+|\d+(?=e))(e[-+]?\d+)?f?", word.lower()):
            return f32(float(word.lower().rstrip("f")))
        return word
    return tuple(one(word) for word in text.replace(",", " ").split())


def _bytes(text: str | None, names: Mapping[str, int]) -> int:
    if text is None:
        return 0
    values = evaluate(text, names)
    if len(values) != 1 or values[0] < 0:
        raise LabError(f"--smem '{text}' must be one number of bytes, at least 0")
    return values[0]
