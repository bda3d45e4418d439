"""One run of a plan whose result is checked, for what its kernels counted themselves."""

from collections.abc import Mapping

import numpy as np

from cudalab.check import compare, draw, generator
from cudalab.errors import WrongResult
from cudalab.spec import Plan


def run(place, plan: Plan, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """All outputs of a plan with integer outputs, the step's own among them, after the op's were found right bit for bit.

    inputs: NumPy arrays by name; those not given are drawn.  Raises WrongResult, OutOfMemory.
    """
    op, problem = plan.step.op, plan.problem
    given = {**draw(op, problem, "integers", generator(seed)), **(inputs or {})}
    outputs = place.run(plan, given)
    verdict = compare(op, problem, given, outputs, exact=True)
    if not verdict:
        raise WrongResult(f"{plan.step.path} at {problem}: {verdict.reason}")
    return outputs


def cycles_per(outputs: Mapping[str, np.ndarray], count: int) -> float:
    """Cycles that the kernel counted, over what it did in them."""
    return float(outputs["cycles"][0]) / count
