"""Which problems the tests of every step take: each shape in the usual kind, and one shape in every other type and variant."""

from cudalab.spec import Problem, Step


def few(step: Step, purpose: str) -> list[Problem]:
    """The step's problems for a purpose: all of its usual kind; the first of those whose type, or whose variant, is another."""
    (dtype, variant), *others = step.kinds()
    near = [kind for kind in others if dtype in kind or variant in kind]
    return step.problems(purpose, [dtype], [variant]) + [step.problems(purpose, [d], [v])[0] for d, v in near]
