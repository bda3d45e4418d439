"""On a device: every step on every check shape, the memory and race checkers, the protocol itself.  Run with `python -m pytest -m gpu`."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import toy
from kinds import few

from cudalab import check, measure, pairs, peers, results
from cudalab.errors import LabError, NoDevice, OutOfMemory
from cudalab.registry import ops, steps
from cudalab.spec import Copy, Fill, Plan

pytestmark = pytest.mark.gpu
SGEMM = ops()["sgemm"]
SMALL = "33x65x17 1x1x1 70x130x40"  # ragged in every dimension, and more than one tile of the smaller steps


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()


def runnable(gpu, step, problem):
    if not step.runs_on(gpu.device.sm, problem):
        pytest.skip(f"{step.path} needs {step.capabilities(problem)}")


@pytest.mark.parametrize("step, problem", [pytest.param(s, p, id=f"{s.path}-{p}") for s in steps() for p in few(s, "check")])
def test_every_step_is_right_on_every_check_shape(gpu, step, problem):
    runnable(gpu, step, problem)
    for verdict in check.check_step(step, problem, gpu):
        assert verdict, verdict.reason


SANITIZED = """
import sys
import cupy
from cudalab import check
from cudalab.gpu import Gpu
from cudalab.registry import steps
from cudalab.spec import shapes
cupy.cuda.set_allocator(None)  # every buffer an allocation of its own, so that one element too far is outside of it
gpu = Gpu()
FORMS = dict(WORKERS=dict(WORKERS=5), CLUSTER=dict(CLUSTER=2))  # of so few workers some share a tile; blocks that share a row
for step in steps():
    usual = step.problems("emulate", *zip(*step.kinds()[:1]))
    small = map(step.op.problem, shapes(sys.argv[1], step.op.dims)) if step.op.name == "sgemm" else usual
    for problem in small:
        if step.runs_on(gpu.device.sm, problem):
            forms = [{}, *(form for name, form in FORMS.items() if name in step.tunables)]
            for verdict in (v for form in forms for v in check.check_step(step, problem, gpu, overrides=form)):
                if not verdict:
                    sys.exit(f"{step.path} {problem}: {verdict.reason}")
print("all right")
"""


@pytest.mark.parametrize("tool", ("memcheck", "racecheck", "synccheck"))
def test_every_step_is_clean_under_the_sanitizer(tool):
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    done = subprocess.run([program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", SANITIZED, SMALL],
                          cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "all right" in done.stdout, (done.stdout + done.stderr)[-4000:]


def test_outputs_that_no_kernel_writes_are_nan(gpu):
    step, problem = SGEMM.steps[0], SGEMM.problem(dict(M=5, N=7, K=3))
    plan = step.plan(problem)
    idle = Plan(step, problem, plan.config, plan.tensors, ())
    inputs = check.draw(SGEMM, problem, "normal", check.generator(0))
    assert np.isnan(gpu.run(idle, inputs)["C"]).all()


def test_fill_and_copy_do_what_they_say(gpu):
    step, problem = SGEMM.steps[0], SGEMM.problem(dict(M=4, N=4, K=4))
    plan = step.plan(problem)
    inputs = check.draw(SGEMM, problem, "normal", check.generator(0))
    assert (gpu.run(Plan(step, problem, plan.config, plan.tensors, (Fill("C", 0),)), inputs)["C"] == 0).all()
    assert np.array_equal(gpu.run(Plan(step, problem, plan.config, plan.tensors, (Copy("C", "B"),)), inputs)["C"], inputs["B"])


def test_a_kernel_that_changes_an_input_is_wrong(gpu, tmp_path):
    plan = toy.plan(tmp_path, toy.COPY.replace("const float* A", "float* A").replace("C[i] = A[i];", "{ C[i] = A[i]; A[i] = 0; }"))
    verdict = check.verdict_of(plan, dict(A=np.ones(1000, np.float32)), gpu, "normal")
    assert not verdict and "writes to its input A" in verdict.reason


def test_too_much_memory_says_how_much(gpu):
    step = SGEMM.steps[0]
    plan = step.plan(SGEMM.problem(dict(M=46000, N=46000, K=46000)))
    with pytest.raises(OutOfMemory, match="GB .* free"):
        gpu.require(100 * gpu.device.memory_bytes, "this")
    if plan.nbytes > gpu.free_bytes():
        with pytest.raises(OutOfMemory):
            gpu.allocate(plan.tensors.values(), str(plan.problem))


def test_a_step_newer_than_the_device_is_refused(gpu):
    from dataclasses import replace
    step = replace(SGEMM.steps[0], min_sm=999)
    plan = step.plan(SGEMM.problem(dict(M=4, N=4, K=4)))
    with pytest.raises(NoDevice, match="99.9"):
        gpu.prepare(plan, gpu.allocate(plan.tensors.values(), "this"))


def test_launching_is_cheap_for_the_host(gpu):
    step = SGEMM.steps[0]
    plan = step.plan(SGEMM.problem(dict(M=1, N=1, K=1)))
    enqueue = gpu.prepare(plan, gpu.allocate(plan.tensors.values(), "this"))
    best = float("inf")
    for _ in range(20):
        gpu.synchronize("this")
        start = time.perf_counter()
        for _ in range(100):
            enqueue()
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 20e-6


def test_numpy_and_cupy_measure_the_same_error(gpu):
    import cupy
    problem = SGEMM.problem(dict(M=129, N=65, K=257))
    with gpu.stream:
        inputs = check.draw(SGEMM, problem, "normal", check.generator(0, cupy))
        buffers = {**inputs, "C": inputs["A"] @ inputs["B"]}
        there = check.device_error(gpu, SGEMM, problem, buffers)
        here = {name: array.get() for name, array in buffers.items()}
        exact = check.draw(SGEMM, problem, "integers", check.generator(0, cupy))
        assert check.compare(SGEMM, problem, exact, {"C": exact["A"] @ exact["B"]}, exact=True)
    error = check.error_of(SGEMM, problem, {n: here[n] for n in "AB"}, {"C": here["C"]})
    assert there.max == pytest.approx(error.max, rel=1e-6) and there.rms == pytest.approx(error.rms, rel=1e-6)
    assert check.check_on_device(gpu, SGEMM, problem, buffers)
    with gpu.stream:
        buffers["C"][3, 3] = cupy.nan
    assert not check.check_on_device(gpu, SGEMM, problem, buffers)


@pytest.mark.parametrize("peer", peers.PEERS.values(), ids=lambda p: p.name)
def test_each_peer_is_measured_beside_a_step(gpu, peer):
    if peer.missing():
        pytest.skip(peer.missing())
    op = ops()[peer.ops[0]]
    problem = op.problem(dict.fromkeys(op.dims, 512 if len(op.dims) > 1 else 2**20), "f32")
    step = next(step for step in reversed(op.steps) if step.runs_on(gpu.device.sm, problem) and not step.refuses(problem))
    seen = []
    (row,) = measure.bench_step(gpu, step, problem, peers=[peer], progress=lambda done, total, what: seen.append((done, total)))
    results.validate(row)
    assert row["peer"] == peer.name and row["ratio"] > 0 and row["error"] <= 1e-5 and seen[-1] == (pairs.PAIRS, pairs.PAIRS)
    assert 100 < row["sm_clock_mhz"] < 4000


def test_the_hold_holds_lets_go_and_gives_up(gpu):
    import cupy

    from cudalab.hold import Hold
    hold = Hold(gpu, limit_s=0.2)
    with gpu.stream:
        done = cupy.cuda.Event()
        with hold:
            done.record(gpu.stream)
            time.sleep(0.05)
            assert not done.done
        gpu.synchronize("this")
        hold.confirm()
        with pytest.raises(KeyboardInterrupt), hold:
            raise KeyboardInterrupt
        gpu.synchronize("this")
        with hold:
            time.sleep(0.4)
        gpu.synchronize("this")
        with pytest.raises(LabError, match="longer than"):
            hold.confirm()


def test_a_users_peer_and_sustained(gpu, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import cupy\n"
                    "def mine(problem, buffers):\n    return lambda: cupy.matmul(buffers['A'], buffers['B'], out=buffers['C'])\n"
                    "def wrong(problem, buffers):\n    return lambda: buffers['C'].fill(0)\n")
    step, problem, said = SGEMM.steps[-1], SGEMM.problem(dict(M=1024, N=1024, K=1024)), []
    runnable(gpu, step, problem)
    rows = list(measure.bench_step(gpu, step, problem, peers=[peers.find_peer(f"{file}:mine"), peers.find_peer(f"{file}:wrong")],
                                   protocol="sustained", say=said.append))
    assert [row["peer"] for row in rows] == ["mine.py:mine"] and rows[0]["protocol"] == "sustained"
    assert any("wrong" in line and "left out" in line for line in said)
