"""What is traced and how: one cupy.matmul or one step, through CUPTI, or by events and host clocks, or as a plan where there is no GPU."""

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cudalab import check
from cudalab.errors import LabError, WrongResult
from cudalab.problem import Problem
from cudalab.spec import Plan, Step
from cudalab.trace import activity
from cudalab.trace.launch_cost import LaunchCost, launch_cost
from cudalab.trace.timeline import Event, inside, summary

CALLS = 20  # that are queued without waiting, and that one graph holds
WARM = 3
MATMUL = "matmul"  # what `trace` names the call of CuPy
CUBLAS_WORKSPACE = 32 * 2**20  # bytes; what NVIDIA advises for Hopper


@dataclass
class Traced:
    """What was found of a subject.  said: what a reader must know of it; why: None where the events are CUPTI's, else why they are not.
    spans: "call", "queued", "graph" -> the event of the host around that part; ways: kernel name -> way of its launch (activity.way);
    costs: name -> (LaunchCost, kernels of one call), the subject's own first and its graph's last; first_s: the first call of the process,
    until the device has ended."""

    subject: str
    said: str
    problem: Problem
    why: str | None
    first_s: float
    events: list[Event] = field(default_factory=list)
    spans: dict[str, Event] = field(default_factory=dict)
    ways: dict[str, list[dict]] = field(default_factory=dict)
    costs: dict[str, tuple[LaunchCost, int]] = field(default_factory=dict)

    @property
    def call(self) -> list[Event]:
        """The events of the one call."""
        return inside(self.events, self.spans["call"])

    @property
    def figures(self) -> dict:
        """The one call and its costs as flat figures: timeline.summary (by host clocks only what these can tell), first_s, host_s and
        stream_s a call, graph_host_s and graph_stream_s in a graph of graph_kernels calls, without_cupti (why, or None)."""
        if self.why is None:
            found = summary(self.events, self.spans["call"])
        else:
            found = dict(call_s=self.spans["call"].ns / 1e9, kernel_s=sum(e.ns for e in self.call if e.kind == "kernel") / 1e9)
        (call, _), (graph, count) = next(iter(self.costs.values())), next(reversed(self.costs.values()))
        return dict(found, first_s=self.first_s, host_s=call.host_s, stream_s=call.stream_s, graph_host_s=graph.host_s / count,
                    graph_stream_s=graph.stream_s / count, graph_kernels=count, without_cupti=self.why)


def run(gpu, subject: str | Step, problem: Problem, *, config: Mapping[str, int] | None = None, cupti: bool = True, calls: int = CALLS,
        seed: int = 0, progress: Callable[[int, int, str], None] | None = None) -> Traced:
    """Trace "matmul" (a problem of sgemm) or a step: its first call, its costs without any tracing, then under CUPTI one call, `calls` of
    them and a graph of as many.  Without CUPTI (cupti False, or cupti-python is missing, which `why` says) by events and host clocks.

    Raises WrongResult if the result is wrong, LabError where CUPTI is there and in use or not permitted.
    """
    import cupy
    op, plan = _described(subject, problem, config)
    name = "cupy.matmul(A, B, out=C)" if plan is None else plan.step.path
    stages = iter(range(1, 5))

    def tick():
        if progress:
            progress(next(stages), 4, f"trace {name}")

    why = "left out, as asked" if not cupti else activity.missing()
    tensors = list((plan.tensors if plan else op.tensors(problem)).values())
    buffers = gpu.allocate(tensors, str(problem))
    with gpu.stream:
        buffers |= check.draw(op, problem, "normal", check.generator(seed, cupy))
    gpu.poison(tensors, buffers)
    gpu.synchronize(name)
    began = time.perf_counter()
    call = gpu.prepare(plan, buffers) if plan else functools.partial(cupy.matmul, buffers["A"], buffers["B"], out=buffers["C"])
    with gpu.stream:
        call()
        gpu.synchronize(name)
    first_s = time.perf_counter() - began
    verdict = check.check_on_device(gpu, op, problem, buffers, seed=seed)
    if not verdict:
        raise WrongResult(f"{name} at {problem}: {verdict.reason}")
    tick()
    for_graph = call if plan else cublas_call(problem, buffers, gpu.stream)
    for_graph()  # what a library sets up at its first call cannot be captured
    gpu.synchronize(name)
    found = Traced(name, SAID[plan is None], problem, why, first_s)
    graph = gpu.capture(for_graph, calls, name)
    ways = {name: (call, 1), **({} if plan else {"cublasSgemm, without CuPy": (for_graph, 1)}), f"a graph of {calls}": (graph, calls)}
    found.costs |= {way: (launch_cost(gpu, work, name, max(1, 200 // count)), count) for way, (work, count) in ways.items()}
    tick()
    (_by_clocks if why else _by_cupti)(gpu, plan, call, graph, calls, found)
    tick()
    return found


SAID = {True: "CuPy lets no cuBLAS into a graph: there, cublasSgemm is called without CuPy",
        False: "the kernel is this lab's, and what calls the driver is cuda.bindings"}


def _described(subject: str | Step, problem: Problem, config: Mapping[str, int] | None):
    from cudalab import registry
    if subject == MATMUL:
        return registry.ops()["sgemm"], None
    return subject.op, subject.plan(problem, subject.config(problem, config or {}))


def loaded_library(name: str) -> str:
    """The path of a library that this process has loaded, by the beginning of its file name.  Raises LabError where it has not."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if path[1] and f"/{path[2]}".rpartition("/")[2].startswith(name):
                return f"/{path[2]}"
    raise LabError(f"{name} is not among the libraries that CuPy has loaded, so it cannot be called without CuPy: trace a step")


def cublas_call(problem: Problem, buffers: Mapping, stream) -> Callable[[], None]:
    """C = A·B by cublasSgemm straight from the library, without CuPy; it allocates nothing, so that a graph can hold it.

    cuBLAS documentation, "cublas<t>gemm()", "cublasSetWorkspace()".  Raises LabError where cuBLAS refuses.
    """
    import cupy
    library = ctypes.CDLL(loaded_library("libcublas.so"))
    handle, one, zero = ctypes.c_void_p(), ctypes.c_float(1), ctypes.c_float(0)
    workspace = cupy.empty(CUBLAS_WORKSPACE, "uint8")

    def do(function: str, *args) -> None:
        if status := getattr(library, function)(*args):
            raise LabError(f"{function} refuses {problem} (status {status}): trace a smaller shape, or a step")

    def pointer(name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(buffers[name].data.ptr)

    do("cublasCreate_v2", ctypes.byref(handle))
    do("cublasSetStream_v2", handle, ctypes.c_void_p(stream.ptr))
    do("cublasSetWorkspace_v2", handle, ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(CUBLAS_WORKSPACE))
    M, N, K = (ctypes.c_int(problem[dim]) for dim in "MNK")
    # cuBLAS counts columns first: a row-major C is the transpose of its C, so B comes first and A second, neither transposed
    args = (handle, 0, 0, N, M, K, ctypes.byref(one), pointer("B"), N, pointer("A"), K, ctypes.byref(zero), pointer("C"), N)
    call = functools.partial(do, "cublasSgemm_v2", *args)
    call.kept = workspace, buffers
    return call


# -- through CUPTI

def _by_cupti(gpu, plan, call: Callable, graph: Callable, calls: int, found: Traced) -> None:
    """Twice: once for the stacks, whose cost would spoil the times, once for the times."""
    with activity.recording(stacks=True) as recorded, gpu.stream:
        for _ in range(WARM):
            call()
        gpu.synchronize(found.subject)
    for event in recorded.events:
        if event.kind == "kernel" and event.correlation in recorded.stacks:
            found.ways.setdefault(event.name, recorded.stacks[event.correlation])
    with activity.recording() as recorded, gpu.stream:
        for _ in range(WARM):  # CUPTI's own first times
            call()
        graph()
        gpu.synchronize(found.subject)
        _phases(gpu, call, graph, calls, recorded.span, found.subject)
    found.events = sorted(_on_one_thread(recorded.events), key=lambda e: (e.start_ns, -e.end_ns))
    found.spans = {e.details["part"]: e for e in found.events if e.kind == "python" and "part" in e.details}
    begin = found.spans["call"].start_ns
    belong = {id(e) for span in found.spans.values() for e in inside(found.events, span)}
    found.events = [e for e in found.events if id(e) in belong or e.kind == "overhead" and e.start_ns >= begin]
    found.figures  # noqa: B018  raises if the kernels of the call are not among the events


def _on_one_thread(events: Sequence[Event]) -> list[Event]:
    """The events with our own spans on the thread whose calls lie in them, should CUPTI number threads otherwise than the system."""
    spans = [e for e in events if e.kind == "python"]
    threads = {e.track for e in events if e.kind in ("runtime", "driver") for span in spans if span.start_ns <= e.start_ns < span.end_ns}
    if len(threads) != 1:
        return list(events)
    (thread,) = threads
    return [replace(e, track=thread) if e.kind == "python" else e for e in events]


def _phases(gpu, call: Callable, graph: Callable, calls: int, span: Callable, name: str) -> None:
    """One call and a wait for it; several calls queued and a wait; a graph of as many and a wait."""
    def wait(part):
        with span("wait for the device", part=part):
            gpu.synchronize(name)

    with span(name, part="call"):
        call()
    wait("call_wait")
    with span(f"{calls} calls, queued", part="queued"):
        for _ in range(calls):
            call()
    wait("queued_wait")
    with span(f"a graph of {calls}", part="graph"):
        graph()
    wait("graph_wait")


# -- by events and host clocks

def _by_clocks(gpu, plan, call: Callable, graph: Callable, calls: int, found: Traced) -> None:
    """The same parts.  On the GPU a part is one event, from a mark before its first kernel to one behind its last: the marks' distances are
    the device's, and where they lie on the host's clock is known to some microseconds only, from a mark that the host waited for."""
    import cupy
    thread, spans = threading.get_native_id(), []

    class Span:
        def __init__(self, name, **details):
            self.name, self.details = name, details

        def __enter__(self):
            self.start = time.perf_counter_ns()

        def __exit__(self, *_):
            spans.append(Event("python", self.name, self.start, time.perf_counter_ns(), len(spans) + 1, thread, self.details))

    works = {"call": call, "graph": graph, "queued": call}
    base, marks = cupy.cuda.Event(), {}
    with gpu.stream:
        base.record(gpu.stream)
        base.synchronize()
        base_ns = time.perf_counter_ns()
        counted = dict(call=1, queued=calls, graph=1)
        for part, label in (("call", found.subject), ("queued", f"{calls} calls, queued"), ("graph", f"a graph of {calls}")):
            before, after = marks[part] = cupy.cuda.Event(), cupy.cuda.Event()
            with Span(label, part=part):
                before.record(gpu.stream)
                for _ in range(counted[part]):
                    works[part]()
                after.record(gpu.stream)
            with Span("wait for the device", part=f"{part}_wait"):
                gpu.synchronize(found.subject)
    found.spans = {e.details["part"]: e for e in spans}
    details = _launch_details(gpu, plan) if plan else {}
    for part, (before, after) in marks.items():
        start, end = (base_ns + round(1e6 * cupy.cuda.get_elapsed_time(base, mark)) for mark in (before, after))
        label = "kernel" if part == "call" else f"{calls} kernels"
        spans.append(Event("kernel", f"{label}, between two events", start, end, found.spans[part].correlation, 0, details))
    found.events = sorted(spans, key=lambda e: (e.start_ns, -e.end_ns))


def _launch_details(gpu, plan: Plan) -> dict:
    """Of a plan's only launch; empty where there are several, which two marks cannot tell apart."""
    from cudalab.build import build
    if len(plan.actions) != 1 or len(plan.launches) != 1:
        return {}
    launch = plan.launches[0]
    kernel = build(plan, gpu.target).kernels[launch.entry]
    return dict(grid=list(launch.grid), block=list(launch.block), registers=kernel.registers, static_smem=kernel.static_smem,
                dynamic_smem=launch.smem, **({"cluster": list(launch.cluster)} if launch.cluster else {}))


# -- what follows

def sentences(figures: Mapping) -> list[str]:
    """What a trace says (Traced.figures), in words."""
    from cudalab.report import time_text
    said = [f"The first call of this process took {time_text(figures['first_s'])}: libraries are loaded and set up once."]
    if figures.get("without_cupti") is None:
        start, after = figures["until_start_s"], figures["after_s"]
        paid = figures["until_launch_s"] + figures["launch_s"] + start
        said.append(f"Under CUPTI, whose own cost is in it, the host pays {time_text(paid)} before the GPU starts: "
                    f"{time_text(figures['until_launch_s'])} until the launch is called, {time_text(figures['launch_s'])} in it, and the "
                    f"kernel starts {time_text(abs(start))} {'after' if start >= 0 else 'before'} it returned.")
        said.append(f"The call returned after {time_text(figures['call_s'])}; the GPU " +
                    (f"worked on for {time_text(after)}, beside the host." if after > 0 else "had ended by then."))
    else:
        said.append(f"Without CUPTI ({figures['without_cupti']}): host clocks and CUDA's events only, so the calls of the API, the "
                    f"kernels' names and what passes between a launch and its kernel are not known.")
        said.append(f"The call returned after {time_text(figures['call_s'])}; its kernels took {time_text(figures['kernel_s'])} between "
                    f"two events.")
    said.append(f"Without any tracing a call costs the host {time_text(figures['host_s'])} by stream and "
                f"{time_text(figures['graph_host_s'])} in a graph of {figures['graph_kernels']}; from one to the next pass "
                f"{time_text(figures['stream_s'])} and {time_text(figures['graph_stream_s'])} on the stream.")
    return said


def path_lines(ways: Mapping[str, Sequence[Mapping]]) -> list[str]:
    """The way from Python to each kernel's launch, one library a line."""
    lines = []
    for kernel, stretches in ways.items():
        lines.append(f"from Python to the launch of {kernel}:")
        lines += [f"  {'  ' * depth}{one['library']}" + (f": {', '.join(one['functions'])}" if one["functions"] else "")
                  for depth, one in enumerate(stretches)]
    return lines


def about(found: Traced, gpu) -> dict:
    """What stands beside the events in the Chrome trace."""
    return dict(subject=found.subject, shape=dict(found.problem), device=gpu.device.name, source="CUPTI" if found.why is None else
                f"host clocks and events; CUPTI {found.why}", figures=found.figures,
                costs={name: dict(host_s=cost.host_s / count, stream_s=cost.stream_s / count, alone_s=cost.alone_s, kernels=count)
                       for name, (cost, count) in found.costs.items()}, ways=found.ways)
