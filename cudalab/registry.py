"""Finding ops and steps by what a person types: step5, sgemm/5, blocktile_2d, sgemm."""

import difflib

from cudalab.errors import UnknownName
from cudalab.parts import PARTS
from cudalab.spec import Op, Step

DEFAULT_LADDER = "sgemm"  # what `step5` alone means


def ops() -> dict[str, Op]:
    """Every op by name, in the order of the parts."""
    return {op.name: op for part in PARTS for op in part.ops}


def steps() -> list[Step]:
    """Every step of every ladder, in the order of the parts."""
    return [step for op in ops().values() for step in op.steps]


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
    near = difflib.get_close_matches(text, dict.fromkeys(known), n=3, cutoff=0.5) or list(ops())
    raise UnknownName(f"no step or op is called '{text}'; nearest: {', '.join(near)} ('list' shows all)")


def resolve_step(text: str) -> Step:
    """Like `resolve`, for a place where only one step makes sense."""
    found = resolve(text)
    if isinstance(found, Op):
        raise UnknownName(f"'{text}' is a whole ladder; name one step of it: {', '.join(s.path for s in found.steps[:3])}, …")
    return found


def _names(step: Step) -> list[str]:
    number = str(step.number)
    names = [step.path, f"{step.op.name}/{number}", f"{step.op.name}/{step.name}", f"{step.op.name}/step{number}", step.id, step.name]
    return names + [f"step{number}", f"step{step.number:02d}"] * (step.op.name == DEFAULT_LADDER)
