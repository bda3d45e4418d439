"""The emulator beside the device: the same bits for every step, and the counters of Nsight Compute for the SGEMM ladder."""

import csv
import functools
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cudalab import registry
from cudalab.build import build
from cudalab.check import draw, error_of, generator
from cudalab.counted import count, joined
from cudalab.dtypes import decode
from cudalab.emulator import Emulator
from cudalab.gpu import Gpu

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parent.parent
EVEN = dict(M=256, N=512, K=96)  # every step's tiles and slices fill it: a copy of zeros past an edge is no request here, and one to ncu
SECTORS = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_{}.sum"
WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
METRICS = [SECTORS.format(way) for way in ("ld", "ldgsts", "st")] + [WAVEFRONTS.format(way) for way in ("ld", "ldgsts", "st")]
CHILD = """
import json, sys
from cudalab import registry
from cudalab.check import draw, generator
from cudalab.gpu import Gpu
gpu = Gpu()
for step in registry.ops()["sgemm"].steps:
    problem = step.op.problem(json.loads(sys.argv[1]))
    gpu.run(step.plan(problem), draw(step.op, problem, "integers", generator(0)))
"""


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


def difference(step, problem, inputs, here, there) -> float:
    """The largest difference of two results, in units of each element's scale, beyond what rounding to the output's type explains."""
    wanted = [decode(there[name], step.op.tensors(problem)[name].dtype) for name in step.op.outputs]
    meant = replace(step.op, reference=lambda **inputs: wanted[0] if len(wanted) == 1 else tuple(wanted))
    return error_of(meant, problem, inputs, here).max


@pytest.mark.parametrize("step", registry.steps(), ids=lambda step: step.path)
def test_emulator_and_device_agree(gpu, step):
    """On integer inputs, whose sums are exact, in every output of the op that is no measurement of time."""
    problems = [problem for problem in step.problems("emulate") if step.runs_on(gpu.device.sm, problem)]
    if not problems:
        pytest.skip(f"{step.path} does not run on {gpu.device.name}")
    for problem in problems:
        plan, inputs = step.plan(problem), draw(step.op, problem, "integers", generator(0))
        here, there = gpu.run(plan, inputs), Emulator(gpu.target).run(plan, inputs)
        if ".approx" in build(plan, gpu.target).ptx:  # of which PTX gives a bound, not the bits
            assert difference(step, problem, inputs, here, there) <= 2.0**-20, problem
            continue
        for name in step.op.outputs:
            assert here[name].tobytes() == there[name].tobytes(), f"{name} at {problem}"


@functools.cache
def profiled() -> dict[str, dict[str, int]]:
    """Step -> metric -> its sum over the step's launches, all in one run of ncu."""
    run = subprocess.run(["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(METRICS),
                          sys.executable, "-c", CHILD, json.dumps(EVEN)], cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith('"')]
    assert lines, run.stdout + run.stderr
    header, _, *rows = csv.reader(lines)
    launches = iter([{name: int(row[header.index(name)].replace(",", "")) for name in METRICS} for row in rows])
    found = {}
    for step in registry.ops()["sgemm"].steps:
        mine = [next(launches) for _ in step.plan(step.op.problem(EVEN)).launches]
        found[step.id] = {name: sum(one[name] for one in mine) for name in METRICS}
    return found


@pytest.mark.parametrize("step", registry.ops()["sgemm"].steps, ids=lambda step: step.path)
def test_counters_agree_with_ncu(gpu, step):
    """Global sectors and shared wavefronts within 1 % wherever PTX and SASS access the same widths.

    Not so: shared loads that ptxas joins (`joined` names them).  And what cp.async brings (LDGSTS): which of its sectors are asked for
    twice, and in how many parts a line arrives, depends on what is in L1 at that moment; within 7 % of what ncu counts.
    """
    if not shutil.which("ncu"):
        pytest.skip("ncu is not installed")
    theirs = profiled()[step.id]
    one = count(step, step.op.problem(EVEN), gpu.target, sanitize=False, kinds=("integers",))
    ours = one.counters.total()
    near = 0.07 if theirs[WAVEFRONTS.format("ldgsts")] else 0.01
    loads = theirs[SECTORS.format("ld")] + theirs[SECTORS.format("ldgsts")]
    stores = theirs[WAVEFRONTS.format("st")] + theirs[WAVEFRONTS.format("ldgsts")]
    assert math.isclose(ours["global_load_sectors"], loads, rel_tol=near)
    assert math.isclose(ours["global_store_sectors"], theirs[SECTORS.format("st")], rel_tol=0.01)
    assert math.isclose(ours["shared_store_wavefronts"], stores, rel_tol=near)
    if not any("shared load" in line for line in joined(one)):
        assert math.isclose(ours["shared_load_wavefronts"], theirs[WAVEFRONTS.format("ld")], rel_tol=0.01)
    else:
        assert step.number in (3, 4, 5), "the steps whose loads of neighbouring floats ptxas joins"
