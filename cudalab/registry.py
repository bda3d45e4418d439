"""Finding ops, steps and studies by what a person types: step5, sgemm/5, blocktile_2d, sgemm; vecadd/waves, waves."""

import difflib

from cudalab import parts
from cudalab.errors import UnknownName
from cudalab.spec import Op, Step
from cudalab.study import Study

DEFAULT_LADDER = "sgemm"  # what `step5` alone means


def ops() -> dict[str, Op]:
    """Every op by name, in the order of the parts."""
    return {op.name: op for part in parts.PARTS for op in part.ops}


def steps() -> list[Step]:
    """Every step of every ladder, in the order of the parts."""
    return [step for op in ops().values() for step in op.steps]


def studies() -> dict[str, Study]:
    """Every study by name, in the order of the parts."""
    return {study.name: study for part in parts.PARTS for study in getattr(part, "studies", ())}


def resolve_studies(text: str) -> list[Study]:
    """The study that `text` names, in full or by its own part alone, or all of a part.  Raises UnknownName with the nearest names, or the
    candidates if several fit."""
    known = studies()
    if text in known:
        return [known[text]]
    if of_part := [study for study in known.values() if study.part == text]:
        return of_part
    found = [study for name, study in known.items() if name.partition("/")[2] == text]
    if len(found) > 1:
        raise UnknownName(f"'{text}' is ambiguous: {', '.join(study.name for study in found)}")
    if not found:
        names = dict.fromkeys(n for name in known for n in (name, *name.split("/")))
        near = difflib.get_close_matches(text, names, n=3, cutoff=0.5)
        raise UnknownName(f"no study or part with studies is called '{text}'{_nearest(near)} ('study' lists all)")
    return found


def resolve(text: str) -> Op | Step:
    """The op or step that `text` names.  Raises UnknownName with the nearest names, or with the candidates if several fit."""
    if text in ops():
        return ops()[text]
    found = [step for step in steps() if text in _names(step)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownName(f"'{text}' is ambiguous: {', '.join(step.path for step in found)}")
    known = [name for step in steps() for name in _names(step)] + list(ops())
    near = difflib.get_close_matches(text, dict.fromkeys(known), n=3, cutoff=0.5)
    raise UnknownName(f"no step or op is called '{text}'{_nearest(near)} ('list' shows all)")


def resolve_step(text: str) -> Step:
    """Like `resolve`, for a place where only one step makes sense."""
    found = resolve(text)
    if isinstance(found, Op):
        raise UnknownName(f"'{text}' is a whole ladder; name one step of it: {', '.join(s.path for s in found.steps[:3])}, …")
    return found


def _nearest(names: list[str]) -> str:
    return f"; nearest: {', '.join(names)}" if names else ""


def _names(step: Step) -> list[str]:
    number = str(step.number)
    names = [step.path, f"{step.op.name}/{number}", f"{step.op.name}/{step.name}", f"{step.op.name}/step{number}", step.id, step.name]
    return names + [f"step{number}", f"step{step.number:02d}"] * (step.op.name == DEFAULT_LADDER)
