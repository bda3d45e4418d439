"""Parts 1 and 2 on a device: the occupancy calculator beside the driver, a plan timed by itself, graphs, launch costs, traces."""

import json

import numpy as np
import pytest
from test_trace import valid

from cudalab import measure, registry
from cudalab.build import build
from cudalab.errors import LabError, Spills, WrongResult
from cudalab.occupancy import occupancy
from cudalab.spec import Op
from cudalab.studies import vecadd as studies
from cudalab.trace import activity, follow, timeline
from cudalab.trace.launch_cost import launch_cost

pytestmark = pytest.mark.gpu
PATHS = registry.ops()["paths"]


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()


def calculated(gpu, plan):
    launch = plan.launches[0]
    kernel = build(plan, gpu.target).kernels[launch.entry]
    return occupancy(gpu.device.sm, int(np.prod(launch.block)), kernel.registers, kernel.static_smem + launch.smem).blocks


def test_the_calculator_agrees_with_the_driver_on_the_sweep(gpu):
    swept = [dict(THREADS=threads, REGS=held) for threads in studies.BLOCK_SIZES for held in (0, 24, 56, 120)]
    swept += [dict(THREADS=threads, SMEM=size) for threads in (32, 128, 256, 1024) for size in (1, 1000, 8192, 50_000, 90_000)]
    agreed = 0
    for config in swept:
        plan = studies.plan_of("residency/1", dict(N=1000), **config)
        try:
            assert gpu.resident_blocks(plan) == calculated(gpu, plan), config
        except Spills:  # more values than a thread of so large a block has registers
            assert config["THREADS"] * config.get("REGS", 0) > 48 * 1024
        else:
            agreed += 1
    assert agreed > 0.8 * len(swept)


@pytest.mark.parametrize("step", [s for s in registry.steps() if s.op.name in ("sgemm", "vecadd", "paths")], ids=lambda step: step.path)
def test_the_calculator_agrees_with_the_driver_on_steps(gpu, step):
    plan = step.plan(step.problems("bench")[0])
    assert gpu.resident_blocks(plan) == calculated(gpu, plan)


def test_a_plan_is_timed_by_itself_cold_hot_and_in_a_graph(gpu):
    plan = studies.plan_of("vecadd/2", dict(N=2**20))
    cold, hot, graph = (measure.time_plan(gpu, plan, batches=4, **more) for more in (dict(), dict(cold=False), dict(graph=10)))
    assert 0 < hot.time_s < cold.time_s < 1e-3 and 0 < graph.time_s < 1e-3 and 100 < hot.sm_clock_mhz < 4000 and cold.outputs == {}


def test_what_is_timed_is_checked(gpu):
    plan = studies.plan_of("paths/1", dict(N=1000))
    inputs = dict(x=np.ones(1000, np.float32), path=np.full(1000, 3, np.int32), rounds=np.full(1, 5, np.int32))
    assert measure.time_plan(gpu, plan, inputs=inputs, cold=False, batches=2).time_s > 0
    wrong = Op(**{name: getattr(PATHS, name) for name in Op.__dataclass_fields__} | dict(reference=lambda x, path, rounds: x, steps=[]))
    step = wrong.step(1, **PATHS.steps[0].tunables, zero=("SMEM",))(PATHS.steps[0].make_actions)
    with pytest.raises(WrongResult):
        measure.time_plan(gpu, step.plan(wrong.problem(dict(N=1000))), inputs=inputs, cold=False, batches=2)


def test_a_graph_costs_less_to_launch_than_what_is_in_it(gpu):
    plan = studies.plan_of("vecadd/2", dict(N=5000))
    call = gpu.prepare(plan, gpu.allocate(plan.tensors.values(), "this"))
    stream, graph = launch_cost(gpu, call, "this"), launch_cost(gpu, gpu.capture(call, 100, "this"), "this", calls=20)
    assert 0 < graph.host_s / 100 < stream.host_s < stream.alone_s and graph.stream_s / 100 < stream.stream_s


def test_what_cannot_be_captured_is_said_and_the_stream_goes_on(gpu):
    import cupy
    small = cupy.ones((64, 64), np.float32)
    with pytest.raises(LabError, match="cannot be captured"):
        gpu.capture(lambda: cupy.matmul(small, small), 1, "this")
    plan = studies.plan_of("vecadd/2", dict(N=5000))
    gpu.prepare(plan, gpu.allocate(plan.tensors.values(), "this"))()
    gpu.synchronize("this")


@pytest.mark.parametrize("cupti", (True, False))
@pytest.mark.parametrize("subject", ("matmul", "vecadd/6"))
def test_a_trace_holds_a_kernel_its_call_and_what_both_took(gpu, subject, cupti, tmp_path):
    if cupti and activity.missing():
        pytest.skip(activity.missing())
    if subject == "matmul":
        problem = registry.ops()["sgemm"].problem(dict(M=512, N=512, K=512))
    else:
        subject = registry.resolve_step(subject)
        problem = subject.op.problem(dict(N=2**20))
    found = follow.run(gpu, subject, problem, cupti=cupti, calls=10)
    rows, figures = timeline.lines(found.call), found.figures
    assert rows[0]["kind"] == "python" and rows[-1]["kind"] == "kernel" and 0 < figures["kernel_s"] < 1e-2 and figures["call_s"] > 0
    flows = valid(json.loads(timeline.write(tmp_path / "trace.json", timeline.chrome(found.events, follow.about(found, gpu))).read_text()))
    if cupti:
        assert figures["until_launch_s"] > 0 and figures["launch_s"] > 0 and rows[-1]["registers"] > 0 and rows[-1]["correlation"]
        assert any(row["kind"] in ("driver", "runtime") for row in rows) and flows >= 21, "one call, ten queued, ten of the graph"
        assert found.ways and all(way[0]["library"] == "python" for way in found.ways.values())
        if subject == "matmul":
            assert any("cublas" in stretch["library"] for way in found.ways.values() for stretch in way)
    assert follow.sentences(figures)
