"""Which problems the tests of every step take: each shape in the usual kind, and one shape in others.

Of steps that take many kinds it is one other, a different one from step to step, so that all are met along a ladder.
"""

from cudalab.spec import Plan, Problem, Step


def spread(plans: list[Plan], count: int) -> list[Plan]:
    """So many of the plans that are compiled differently, the first, the last and what lies evenly between them."""
    different = list({(plan.config, plan.problem.kind): plan for plan in plans}.values())
    return [different[i * (len(different) - 1) // max(1, count - 1)] for i in range(count)] if len(different) > count else different


def few(step: Step, purpose: str) -> list[Problem]:
    """The step's problems for a purpose: all of its usual kind; the first one of kinds whose type, or whose variant, is another."""
    (dtype, variant), *others = step.kinds()
    near = [kind for kind in others if dtype in kind or variant in kind]
    taken = [near[step.number % len(near)]] if len(near) > 3 else near
    return step.problems(purpose, [dtype], [variant]) + [p for d, v in taken for p in step.problems(purpose, [d], [v])[:1]]
