"""Tracing: from recorded activity records to events, to a table, to a file that Perfetto opens; what CUPTI refuses.  No GPU, no CUPTI."""

import ctypes
import enum
import json
import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from command import fails, works

from cudalab import devices, gpu, registry
from cudalab.errors import LabError, MissingTool
from cudalab.trace import activity, follow, timeline
from cudalab.trace.follow import Traced
from cudalab.trace.launch_cost import LaunchCost
from cudalab.trace.timeline import Event

SGEMM = registry.ops()["sgemm"]
PROBLEM = SGEMM.problem(dict(M=1024, N=1024, K=1024))


class ActivityKind(enum.IntEnum):
    MEMCPY, MEMSET, KERNEL, DRIVER, RUNTIME, CONCURRENT_KERNEL, OVERHEAD, DEVICE = 1, 2, 3, 4, 5, 10, 17, 8


class Result(enum.IntEnum):
    ERROR_MAX_LIMIT_REACHED, ERROR_HARDWARE_BUSY, ERROR_INSUFFICIENT_PRIVILEGES, ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 12, 26, 35, 39
    ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES, ERROR_NOT_COMPATIBLE = 40, 14


class cuptiError(Exception):
    def __init__(self, status):
        self.status = status


class Calls(enum.IntEnum):
    cuLaunchKernel, cuMemAlloc, cudaLaunchKernel_v7000, cuGraphLaunch = 1, 2, 3, 4


NAMES = {1: "cuLaunchKernel", 2: "cudaEventRecord", 3: "cudaLaunchKernel_v7000", 4: "cuGraphLaunch"}


def record(kind, start, end, correlation=0, **more):
    return types.SimpleNamespace(kind=int(kind), start=start, end=end, correlation_id=correlation, **more)


def api(kind, number, start, end, correlation):
    return record(kind, start, end, correlation, cbid=number, thread_id=77)


def kernel(start, end, correlation, name="_Z5sgemmPf", node=0, stream=13):
    sizes = dict(grid_x=8, grid_y=16, grid_z=1, block_x=256, block_y=1, block_z=1, cluster_x=2, cluster_y=1, cluster_z=1)
    return record(ActivityKind.CONCURRENT_KERNEL, start, end, correlation, name=name, stream_id=stream, registers_per_thread=122,
                  static_shared_memory=1024, dynamic_shared_memory=2048, graph_node_id=node, **sizes)


# as CUPTI hands them over: in no order; a call of the runtime holds one of the driver; a graph starts two kernels that overlap
RECORDED = [
    kernel(12_000, 40_000, 5), api(ActivityKind.DRIVER, 1, 8_500, 9_500, 5), api(ActivityKind.RUNTIME, 3, 8_000, 10_000, 5),
    api(ActivityKind.RUNTIME, 2, 4_000, 4_500, 4), kernel(62_000, 70_000, 9, "step", node=1), kernel(66_000, 74_000, 9, "step", node=2),
    api(ActivityKind.DRIVER, 4, 60_500, 61_500, 9), record(ActivityKind.MEMSET, 50_000, 51_000, 7, bytes=64, stream_id=13),
    api(ActivityKind.DRIVER, 2, 48_000, 49_000, 7), record(ActivityKind.OVERHEAD, 45_000, 46_000, overhead_kind=1),
    record(ActivityKind.DEVICE, 1, 2), api(ActivityKind.RUNTIME, 2, 0, 0, 6)]
SPANS = [Event("python", "cupy.matmul", 1_000, 11_000, 0, 77, dict(part="call")),
         Event("python", "wait for the device", 11_500, 41_000, 0, 77, dict(part="call_wait")),
         Event("python", "a graph of 2", 60_000, 61_800, 0, 77, dict(part="graph"))]


@pytest.fixture
def cupti(monkeypatch):
    """A module that has of cupti.cupti what is used; `state` says who has it and what arrives."""
    state = types.SimpleNamespace(refuse=None, records=RECORDED, callback=None, enabled=[], ended=[], old="Nsight Systems")

    class SubscriberParams:
        struct_size, subscriber_name, ptr, old_subscriber_name = 0, "", 1, "Nsight Systems"

    def subscribe(callback, userdata, params):
        if state.refuse:
            raise state.refuse
        state.callback, state.userdata = callback, userdata
        return 42

    def flush(flag):
        state.completed(state.records)

    def register(requested, completed):
        assert requested() == (activity.BUFFER, 0)
        state.completed = completed

    clock = iter(range(1_000, 10**6, 1_000))
    module = types.SimpleNamespace(
        ActivityKind=ActivityKind, Result=Result, cuptiError=cuptiError, SubscriberParams=SubscriberParams, SUBSCRIBER_PARAMS_SIZE=32,
        CallbackDomain=types.SimpleNamespace(DRIVER_API=1, RUNTIME_API=2), driver_api_trace_cbid=Calls, runtime_api_trace_cbid=Calls,
        ApiCallbackSite=types.SimpleNamespace(API_ENTER=0, API_EXIT=1),
        ActivityOverheadKind=enum.IntEnum("ActivityOverheadKind", dict(BUFFER_FLUSH=1)),
        ActivityThreadIdType=types.SimpleNamespace(SYSTEM=1), set_thread_id_type=lambda kind: None, get_timestamp=lambda: next(clock),
        get_callback_name=lambda domain, number: NAMES[number], subscribe_v2=subscribe, activity_flush_all=flush,
        activity_register_callbacks=register, activity_enable=state.enabled.append, activity_disable=state.enabled.remove,
        unsubscribe=state.ended.append, enable_callback=lambda on, who, domain, number: state.enabled.append(f"callback {number.name}"))
    package = types.ModuleType("cupti")
    package.cupti = module
    package.__spec__ = types.SimpleNamespace(name="cupti")
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setattr(activity, "_registered", [])
    monkeypatch.setattr(activity, "missing", lambda: None)
    state.module = module
    return state


@pytest.fixture
def events(cupti):
    found = [activity.event_of(cupti.module, one) for one in RECORDED]
    assert found[-2:] == [None, None], "a kind that nobody asked for; a call whose times CUPTI could not collect"
    return sorted(SPANS + found[:-2], key=lambda e: e.start_ns)


# Events

def test_a_record_becomes_an_event(events):
    one = next(e for e in events if e.kind == "kernel" and e.correlation == 5)
    assert (one.name, one.track, one.ns) == ("sgemm(float*)", 13, 28_000)
    assert one.details == dict(grid=[8, 16, 1], block=[256, 1, 1], registers=122, static_smem=1024, dynamic_smem=2048, cluster=[2, 1, 1])
    assert timeline.caller(events, one).name == "cuLaunchKernel", "the innermost call"
    assert [e.name for e in events if e.kind == "overhead"] == ["buffer flush"]


def test_a_call_holds_what_it_called_and_started(events):
    names = [e.name for e in timeline.inside(events, SPANS[0])]
    assert names == ["cupy.matmul", "cudaEventRecord", "cudaLaunchKernel", "cuLaunchKernel", "sgemm(float*)"]
    found = timeline.summary(events, SPANS[0])
    assert {name: round(1e9 * value) for name, value in found.items()} == dict(
        until_launch_s=7_500, launch_s=1_000, until_start_s=2_500, kernel_s=28_000, call_s=10_000, after_s=29_000)
    with pytest.raises(LabError, match="holds no kernel"):
        timeline.summary(events, SPANS[1])


def test_own_time_leaves_out_what_lies_inside(events):
    rows = timeline.lines(timeline.inside(events, SPANS[0]))
    assert [(r["depth"], round(1e9 * r["time_s"]), round(1e9 * r["own_s"])) for r in rows] == [
        (0, 10_000, 7_500), (1, 500, 500), (1, 2_000, 1_000), (2, 1_000, 1_000), (0, 28_000, 28_000)]
    assert rows[-1]["grid"] == "8x16 = 128" and rows[-1]["block"] == "256" and rows[-1]["dynamic_smem_bytes"] == 2048
    assert sum(r["own_s"] for r in rows[:-1]) == pytest.approx(rows[0]["time_s"]), "nothing is counted twice"


def test_what_overlaps_goes_to_a_lane_of_its_own():
    events = [Event("kernel", name, *times) for name, times in dict(a=(0, 10), b=(5, 15), c=(10, 12), d=(12, 30), e=(15, 20)).items()]
    lanes = [[(p.event.name, p.depth) for p in lane] for lane in timeline.place(events)]
    assert lanes == [[("a", 0), ("c", 0), ("d", 0), ("e", 1)], [("b", 0)]]
    assert [p.own_ns for p in timeline.place(events)[0]] == [10, 2, 13, 5]


# The file

def nested(complete):
    """No two events of a thread overlap in part."""
    ends = []
    for event in sorted(complete, key=lambda e: (e["ts"], -e["dur"])):
        while ends and ends[-1] <= event["ts"] + 1e-9:
            ends.pop()
        if ends and event["ts"] + event["dur"] > ends[-1] + 1e-9:
            return False
        ends.append(event["ts"] + event["dur"])
    return True


def valid(found):
    """What Perfetto needs of Chrome's JSON: fields by phase, numbers, names of every process and thread, flows in pairs inside events."""
    events = found["traceEvents"]
    threads = {}
    for e in events:
        assert e["ph"] in "MXsf" and isinstance(e["pid"], int) and isinstance(e["tid"], int)
        if e["ph"] == "X":
            assert e["ts"] >= 0 and e["dur"] >= 0 and e["name"] and e["cat"] in timeline.KINDS
            threads.setdefault((e["pid"], e["tid"]), []).append(e)
    assert all(nested(mine) for mine in threads.values())
    assert {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"} == set(threads)
    assert {e["pid"] for e in events if e["name"] == "process_name"} == {pid for pid, _ in threads}
    flows = {}
    for e in events:
        if e["ph"] in "sf":
            flows.setdefault(e["id"], {})[e["ph"]] = e
            assert any(x["ts"] <= e["ts"] <= x["ts"] + x["dur"] for x in threads[e["pid"], e["tid"]])
    assert all(set(pair) == {"s", "f"} and pair["f"]["bp"] == "e" and pair["s"]["ts"] <= pair["f"]["ts"] for pair in flows.values())
    return len(flows)


def test_the_file_is_valid_and_nested(events, tmp_path):
    file = timeline.write(tmp_path / "there" / "trace.json", timeline.chrome(events, dict(device="NVIDIA H200")))
    found = json.loads(file.read_text())
    assert valid(found) == 4, "three kernels and a fill"
    assert found["otherData"]["device"] == "NVIDIA H200" and found["displayTimeUnit"] == "ns"
    names = {e["args"]["name"] for e in found["traceEvents"] if e["ph"] == "M"}
    assert names == {"host", "GPU", "CUPTI's own overhead", "thread 77", "stream 13", "stream 13 (2)", "overhead"}
    assert min(e["ts"] for e in found["traceEvents"] if e["ph"] == "X") == 0
    one = next(e for e in found["traceEvents"] if e.get("cat") == "kernel")
    assert one["args"]["registers"] == 122 and one["dur"] == 28.0
    assert list(tmp_path.rglob(".*")) == []
    assert valid(timeline.chrome([], {})) == 0


def test_a_matmul_of_an_h200_is_read_as_it_was():
    """What CUPTI recorded there of one cupy.matmul, the wait for it, and a graph of twenty."""
    found = [Event(**one) for one in json.loads((Path(__file__).parent / "recorded/cupti_h200.json").read_text())]
    valid(timeline.chrome(found, {}))
    call, graph = (next(e for e in found if e.details.get("part") == part) for part in ("call", "graph"))
    first, *_, last = rows = timeline.lines(timeline.inside(found, call))
    assert (first["name"], first["depth"], last["kind"], last["grid"], last["registers"]) == (
        "cupy.matmul(A, B, out=C)", 0, "kernel", "8x16 = 128", 224)
    assert [row["name"] for row in rows if row["depth"] == 1 and row["time_s"] > 2e-6] == ["cudaLaunchKernelExC"]
    assert first["own_s"] == pytest.approx(first["time_s"] - sum(row["time_s"] for row in rows if row["depth"] == 1))
    figures = timeline.summary(found, call)
    assert figures["until_launch_s"] + figures["launch_s"] + figures["until_start_s"] == pytest.approx(last["start_s"])
    assert 0 < figures["until_start_s"] < 5e-6 and 50e-6 < figures["kernel_s"] < 60e-6 < figures["call_s"] < 70e-6
    kernels = [e for e in timeline.inside(found, graph) if e.kind == "kernel"]
    assert len(kernels) == 20 and {timeline.caller(found, e).name for e in kernels} == {"cudaGraphLaunch"}


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot write"):
        timeline.write(tmp_path / "file" / "trace.json", {})


# CUPTI

def test_recording_collects_and_leaves_nothing_on(cupti):
    with activity.recording() as found:
        with found.span("a call", part="call"):
            pass
        assert ActivityKind.RUNTIME in cupti.enabled and ActivityKind.CONCURRENT_KERNEL in cupti.enabled
    assert len(found.events) == len(RECORDED) - 2 + 1 and not cupti.enabled and cupti.ended == [42]
    span = next(e for e in found.events if e.kind == "python")
    assert (span.name, span.ns, span.details) == ("a call", 1_000, dict(part="call"))


def test_a_launch_has_its_way(cupti, monkeypatch):
    monkeypatch.setattr(activity, "native_stack", lambda: [
        dict(library="python3.12", functions=["main"]), dict(library="_routines_linalg.so", functions=[]),
        dict(library="libcublas.so.13", functions=["cublasGemmEx", "a", "b", "c"]),
        dict(library="libcuda.so.1", functions=["cuLaunchKernel"]), dict(library="libcupti.so.13", functions=[]),
        dict(library="python3.12", functions=[])])
    with activity.recording(stacks=True) as found:
        assert {"callback cuLaunchKernel", "callback cuGraphLaunch"} <= set(cupti.enabled) and "callback cuMemAlloc" not in cupti.enabled
        cupti.enabled[:] = [one for one in cupti.enabled if not isinstance(one, str)]
        for site in (0, 1):
            cupti.callback(cupti.userdata, 1, 1, types.SimpleNamespace(callback_site=site, correlation_id=5))
    python, *libraries = found.stacks[5]
    assert python["library"] == "python" and "test_a_launch_has_its_way" in python["functions"][-1]
    assert [one["library"] for one in libraries] == ["_routines_linalg.so", "libcublas.so.13", "libcuda.so.1"]
    assert libraries[1]["functions"] == ["cublasGemmEx", "a", "b"]
    lines = follow.path_lines({"sgemm": found.stacks[5]})
    assert lines[0] == "from Python to the launch of sgemm:" and "libcublas.so.13: cublasGemmEx" in lines[3]


def test_the_native_stack_names_exported_functions():
    seen = []
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda a, b: seen.append(activity.native_stack()) or 0)
    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, compare)
    assert any(one["library"].startswith("libc.") and any("qsort" in name for name in one["functions"]) for one in seen[0])


@pytest.mark.parametrize("status, words", [
    (Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "in use already, by Nsight Systems: run 'trace' outside of it, or with --no-cupti"),
    (Result.ERROR_MAX_LIMIT_REACHED, "in use already"), (Result.ERROR_INSUFFICIENT_PRIVILEGES, "not permitted here: run as root"),
    (Result.ERROR_NOT_COMPATIBLE, "refuses .ERROR_NOT_COMPATIBLE.: update the driver"), (9999, "refuses .9999.")])
def test_what_cupti_refuses_is_one_line_with_its_cure(cupti, status, words):
    cupti.refuse = cuptiError(int(status))
    with pytest.raises(LabError, match=words) as caught, activity.recording():
        raise AssertionError("recorded")
    assert "\n" not in str(caught.value) and not cupti.enabled


def test_a_library_that_does_not_load_and_records_that_cannot_be_read(cupti):
    cupti.refuse = RuntimeError("Failed to dlopen\nlibcupti.so.13")
    with pytest.raises(MissingTool, match="does not load .Failed to dlopen libcupti.so.13.: pip install nvidia-cuda-cupti"), \
            activity.recording():
        pass
    cupti.refuse, cupti.records = None, [types.SimpleNamespace(kind=int(ActivityKind.DRIVER))]
    with pytest.raises(LabError, match="could not be read"), activity.recording():
        pass
    assert not cupti.enabled


def test_without_cupti_python_it_says_what_installs_it(monkeypatch):
    monkeypatch.setattr(activity.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(activity, "versions", lambda: {"cupy-cuda13x": "14"})
    assert 'pip install -e ".[trace]"' in activity.missing()
    monkeypatch.setattr(activity, "versions", lambda: {"cupy-cuda12x": "14"})
    assert "[cuda13,trace]" in activity.missing()
    with pytest.raises(MissingTool), activity.recording():
        pass


def test_a_run_under_cupti_has_its_parts_and_nothing_else(cupti):
    """One call, several queued and a graph, with a device that records a launch and a kernel for each; what came before is left out."""
    import contextlib
    state, number = cupti, iter(range(1, 10_000))

    def launch(kernels=1):
        here, one = state.module.get_timestamp(), next(number)
        state.records += [api(ActivityKind.DRIVER, 1, here, here + 300, one)]
        state.records += [kernel(here + 400 + 100 * n, here + 460 + 100 * n, one) for n in range(kernels)]
        if state.callback and state.stacks:
            state.callback(state.userdata, 1, 1, types.SimpleNamespace(callback_site=0, correlation_id=one))

    class Device(contextlib.nullcontext):
        def synchronize(self, what):
            pass
    state.records, state.stacks = [], True
    device = Device()
    device.stream = device
    found = traced([])
    found = replace(found, spans={}, ways={})
    enable = state.module.enable_callback
    state.module.enable_callback = lambda *words: enable(*words) or setattr(state, "stacks", True)
    follow._by_cupti(device, None, launch, lambda: launch(3), 3, found)
    assert set(found.spans) == {"call", "call_wait", "queued", "queued_wait", "graph", "graph_wait"}
    assert len([e for e in found.events if e.kind == "kernel"]) == 1 + 3 + 3 and list(found.ways) == ["sgemm(float*)"]
    assert [e.kind for e in found.call] == ["python", "driver", "kernel"] and found.figures["launch_s"] == pytest.approx(300e-9)
    assert valid(timeline.chrome(found.events, {})) == 7


def test_own_spans_move_to_the_thread_whose_calls_they_hold(events):
    moved = follow._on_one_thread([replace(e, track=1) if e.kind == "python" else e for e in events])
    assert moved == events


# The verb

def traced(events, why=None):
    cost, graph = LaunchCost(5e-6, 30e-6, 40e-6), LaunchCost(8e-6, 560e-6, 600e-6)
    return Traced("cupy.matmul(A, B, out=C)", "CuPy lets no cuBLAS into a graph", PROBLEM, why, 0.5, list(events),
                  {"call": SPANS[0]}, {"sgemm(float*)": [dict(library="python", functions=["x.py:1 f"])]},
                  {"cupy.matmul(A, B, out=C)": (cost, 1), "a graph of 20": (graph, 20)})


@pytest.fixture
def played(lab, monkeypatch, events):
    """Runs `trace` with a device and a trace that are played; returns the result and what the trace was asked for."""
    class Played:
        name, target, device = "gpu", "sm_90a", devices.NAMED["NVIDIA H200"]

    def run(*words, found=None):
        asked = {}

        def play(place, subject, problem, **more):
            asked.update(more, subject=subject, problem=problem)
            return found or traced(events)
        monkeypatch.setattr(gpu, "backend", lambda name=None, **emulated: Played())
        monkeypatch.setattr(follow, "run", play)
        return lab("trace", *words), asked
    return run


def test_the_verb_shows_calls_costs_way_and_what_follows(played, tmp_path):
    result, asked = played("matmul", "--out", tmp_path / "trace.json")
    text = works(result).stdout
    assert asked["subject"] == "matmul" and dict(asked["problem"]) == dict(M=1024, N=1024, K=1024)
    assert re.search(r"^· · cuLaunchKernel +driver +7\.5 +1\.00 +1\.00 +5$", text, re.MULTILINE), "calls are indented by depth"
    assert re.search(r"^sgemm\(float\*\) +kernel +11\.0 +28\.00 +28\.00 +5 +8x16 = 128 +256 +122 +3072$", text, re.MULTILINE)
    assert re.search(r"^a graph of 20 +20 +0?\.?\d.* µs", text, re.MULTILINE) and "from Python to the launch of sgemm(float*)" in text
    assert "Under CUPTI, whose own cost is in it, the host pays 11.00 µs before the GPU starts: 7.500 µs until" in text
    assert "worked on for 29.00 µs" in text and "30.00 µs and 28.00 µs on the stream" in text
    assert valid(json.loads((tmp_path / "trace.json").read_text())) == 4


def test_json_has_events_rows_and_figures(played):
    result, _ = played("step5", "--shape", "512", "--json", "--calls", "7")
    found = json.loads(works(result).stdout)
    assert found["source"] == "CUPTI" and found["rows"][0]["name"] == "cupy.matmul" and found["figures"]["launch_s"] == pytest.approx(1e-6)
    assert len(found["events"]) == len(RECORDED) - 2 + len(SPANS) and found["costs"]["a graph of 20"]["kernels"] == 20


def test_without_cupti_it_says_so_and_claims_no_more(played):
    call = replace(SPANS[0], correlation=1)
    events = [call, Event("kernel", "kernel, between two events", 12_000, 40_000, 1, 0, {})]
    found = replace(traced(events, "left out, as asked"), spans={"call": call}, ways={})
    text = works(played("matmul", "--no-cupti", found=found)[0]).stdout
    assert "Without CUPTI (left out, as asked): host clocks" in text and "its kernels took 28.00 µs between two events" in text
    assert "until the launch is called" not in text and valid(timeline.chrome(events, {})) == 1


def test_without_a_gpu_there_is_the_plan(lab, tmp_path):
    text = works(lab("trace", "matmul")).stdout
    assert "no GPU here, so cuBLAS cannot be asked" in text and SGEMM.steps[-1].path in text and "registers a thread" in text
    assert json.loads(works(lab("trace", "vecadd/2", "--json")).stdout)["plan"]["actions"][0]["grid"][0] == 2**20
    fails(lab("trace", "step5", "--out", tmp_path / "x.json"), "--out needs times", "leave it out")


def test_what_a_person_gets_wrong_is_one_line(lab, played, tmp_path):
    fails(lab("trace", "sgemm"), "is a whole ladder")
    fails(lab("trace", "matmul", "--set", "BM=64"), "has none")
    fails(lab("trace", "step5", "--shape", "64 128"), "give one shape and one kind, not 2")
    (tmp_path / "file").write_text("")
    fails(played("matmul", "--out", tmp_path / "file" / "x.json")[0], "cannot write")
