"""The timing protocol, the same for a step and for its peer.

steady: a kernel holds the stream while N calls over rotating buffer sets (together more than three times L2) are queued, then events
around the batch; the batch lasts at least a millisecond; time = elapsed / N.  So inputs are cold, the gap between launches counts, host
time does not, and nothing is captured.  Step and peer alternate A B B A; the ratio is the median over the pairs, peer over ours.
sustained: the same calls without a pause for two seconds at a time: what power and clocks allow.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cudalab import check, nvrtc, results
from cudalab.devices import Device
from cudalab.dtypes import bits, device_dtype, finite, is_float, numpy_dtype
from cudalab.errors import BadConfig, LabError, WrongResult
from cudalab.hold import Hold
from cudalab.nvml import Monitor
from cudalab.pairs import PAIRS, QUEUE, Summary, alternate, calls_per_batch, set_count, summarise
from cudalab.peers import Peer
from cudalab.problem import Problem, Values
from cudalab.roofline import roofs
from cudalab.spec import Plan, Step

PROTOCOLS = ("steady", "sustained")
GRAPH_LAUNCHES = 4  # as so many launches the launch of a graph counts there
SUSTAINED_S, SUSTAINED_BATCH_S = 2.0, 10e-3
RAMP = 0.25  # the share of a sustained arm's start that is dropped, while clocks and power settle
STARVED = 0.1  # of a sustained arm's batches may find the device idle
_said: list[str] = []  # what one process says once only


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.  calls: one zero-argument call for each buffer set; launches: kernels, fills and copies of one call."""

    name: str
    calls: Sequence[Callable[[], None]]
    launches: int


def bench_step(gpu, step: Step, problem: Problem, *, config: Mapping[str, int] | None = None, peers: Iterable[Peer] = (),
               protocol: str = "steady", seed: int = 0, progress: Callable[[int, int, str], None] | None = None,
               say: Callable[[str], None] | None = None) -> Iterator[dict]:
    """Check the step, time it against each peer, check it again; yields a results row a peer as soon as it is measured.

    config: the step's tunables, all (Values) or those that differ from its defaults.  progress(done, total, what).  say(line): what a
    person must know beside the rows, a missing peer above all; by default to stderr.  Where no peer can run there is one row, whose peer
    is None.
    Raises WrongResult if the step is wrong before or after the timing, OutOfMemory before anything is allocated, LabError otherwise.
    """
    if protocol not in PROTOCOLS:
        raise BadConfig(f"no protocol is called '{protocol}'; there are {', '.join(PROTOCOLS)}")
    say = say or (lambda line: print(line, file=sys.stderr))
    peers = list(peers)
    plan = step.plan(problem, config if isinstance(config, Values) else step.config(problem, config or {}))
    bench = _Bench(gpu, plan, protocol, seed, bool(peers), progress, say)

    def present():  # looked for once ours has been launched and is right: to load a library takes longer than that
        for peer in peers:
            why = peer.missing() or (peer.ops and step.op.name not in peer.ops and f"it does not compute {step.op.name}")
            if why:
                say(f"peer {peer.name} is missing: {why}")
            else:
                yield peer

    found = filter(None, map(bench.against, present()))
    first = next(found, None)
    yield bench.against(None) if first is None else first
    yield from found


@dataclass(frozen=True)
class Timing:
    """One plan timed by itself.  time_s, time_iqr_s: a call, median and interquartile range over the batches.  outputs: the NumPy arrays of
    those outputs that the step has beside its op's (cycles that a kernel counted, say), as the last call left them."""

    time_s: float
    time_iqr_s: float
    sm_clock_mhz: float
    outputs: Mapping[str, np.ndarray]
    power_w: float | None
    temperature_c: int | None
    throttle: list[str] | None


def time_plan(gpu, plan: Plan, *, inputs: Mapping[str, np.ndarray] | None = None, cold: bool = True, graph: int = 0,
              batches: int = PAIRS, seed: int = 0, protocol: str = "steady") -> Timing:
    """Check a plan, time it under a protocol without a peer, check it again.

    inputs: NumPy arrays by name; what is not given is drawn, and checked as for `bench_step`.  Where all are given, the NumPy reference on
    the host decides (bit for bit where the outputs are integers).  cold: rotate over sets of buffers that together exceed L2; False: one
    set, whose data stay where the caches keep them.  graph: time replays of a CUDA graph that holds the plan so many times, over their
    number.  Raises WrongResult, OutOfMemory before anything is allocated, LabError otherwise.
    """
    bench = _Bench(gpu, plan, protocol, seed, False, None, lambda line: None, inputs=inputs, cold=cold, batches=batches)
    return bench.alone(graph)


def versions(gpu=None, driver: str | None = None) -> dict:
    """What measures: versions by name; of the driver (its CUDA and its own) and CuPy where there is a gpu."""
    common = dict(nvrtc=nvrtc.version(), python=".".join(map(str, sys.version_info[:3])))
    if gpu is None:
        return common
    import cupy
    return dict(cuda_driver=gpu.device.driver, driver=driver, cupy=cupy.__version__, **common)


class _Bench:
    """The buffers and the state of one step's timing on one problem."""

    def __init__(self, gpu, plan: Plan, protocol: str, seed: int, with_peer: bool, progress, say, *,
                 inputs: Mapping[str, np.ndarray] | None = None, cold: bool = True, batches: int = PAIRS):
        self.gpu, self.plan, self.op, self.protocol, self.seed, self.say = gpu, plan, plan.step.op, protocol, seed, say
        self.inputs, self.cold, self.batches = inputs or {}, cold, batches
        self.on_host = set(self.inputs) == set(self.op.inputs)  # nothing was drawn
        self.progress = progress or (lambda done, total, what: None)
        gpu.synchronize(plan.step.path)  # a context that an earlier kernel lost is said before anything else fails for it
        self.hold = Hold(gpu)
        self.tensors = self.op.tensors(plan.problem)
        self._allocate(with_peer)
        self.ours = Arm(plan.step.path, [gpu.prepare(plan, buffers) for buffers in self.sets], len(plan.actions))
        self.before = self._check_ours()
        self.monitor = Monitor(gpu.pci_bus_id)  # after the first launch: NVML takes a tenth of a second to start
        if self.monitor.missing and not _said:
            say(self.monitor.missing)
            _said.append(self.monitor.missing)

    def _allocate(self, with_peer: bool) -> None:
        """The rotating sets: inputs shared by both arms, outputs for each, and one scratch for all sets, as a library's workspace is."""
        import cupy
        gpu, problem = self.gpu, self.plan.problem
        outputs = [t for t in self.tensors.values() if t.role == "out"]
        extra = [t for name, t in self.plan.tensors.items() if name not in self.tensors]
        one_call = sum(t.nbytes for t in self.tensors.values())
        count = set_count(one_call, gpu.device.l2_bytes) if self.cold else 1
        needed = count * (one_call + with_peer * sum(t.nbytes for t in outputs)) + sum(t.nbytes for t in extra)
        gpu.require(needed, f"{self.plan.step.path} at {problem} ({count} rotating {'set' if count == 1 else 'sets'} of buffers)")
        scratch = gpu.allocate(extra, str(problem))
        self.sets, self.peer_sets = [], []
        with gpu.stream:
            rng = check.generator(self.seed, cupy)
            for _ in range(count):
                drawn = {} if self.on_host else check.draw(self.op, problem, self.op.kinds[0], rng)
                drawn |= {n: self._placed(n, a) for n, a in self.inputs.items()}
                self.sets.append({**drawn, **gpu.allocate(outputs, str(problem)), **scratch})
                self.peer_sets.append({**drawn, **gpu.allocate(outputs, str(problem))} if with_peer else None)

    def alone(self, graph: int) -> Timing:
        """The plan timed by itself, by stream or (graph > 0) that many times in a CUDA graph."""
        if graph:
            what = self.plan.step.path
            self.ours = Arm(what, [self.gpu.capture(call, graph, what) for call in self.ours.calls], GRAPH_LAUNCHES)
        for buffers in self.sets:
            self.gpu.poison(self.tensors.values(), buffers, ("out",))
        pairs, clocks = self._sustained(None) if self.protocol == "sustained" else self._steady(None)
        electric = self.monitor.summary()
        self._check_after(None)
        summary, last = summarise(pairs), self._used_sets()[-1]
        own = {n: last[n].get() for n, t in self.plan.tensors.items() if t.role == "out" and n not in self.op.outputs}
        return Timing(summary.time_s / (graph or 1), summary.time_iqr_s / (graph or 1), statistics.median(clocks), own, **electric)

    def _placed(self, name: str, array: np.ndarray):
        """A given input on the device; its bits, for CuPy knows not every type."""
        import cupy
        dtype = self.tensors[name].dtype
        return cupy.asarray(bits(np.ascontiguousarray(array, numpy_dtype(dtype)))).view(device_dtype(dtype))

    def against(self, peer: Peer | None) -> dict | None:
        """A row of this step against the peer; None (and a line that says why) where the peer computes something else."""
        gpu, problem = self.gpu, self.plan.problem
        theirs, peer_error = None, None
        if peer is not None:
            try:
                with gpu.stream:
                    theirs = Arm(peer.name, [peer.prepare(problem, buffers, gpu.stream) for buffers in self.peer_sets], 1)
            except LabError as error:
                self.say(f"peer {peer.name} is left out at {problem}: {error}")
                return None
        if peer is not None and peer.computes:
            gpu.poison(self.tensors.values(), self.peer_sets[0], ("out",))
            self._run_once(theirs, 0)
            peer_error = check.device_error(gpu, self.op, problem, self.peer_sets[0])
            verdict = check.judge_peer(self.op, problem, peer_error, self.before)  # a peer in TF32, say, is no peer
            if not verdict:
                self.say(f"peer {peer.name} is left out, its result is not as exact as the step's: {verdict.reason}")
                return None
            self._accept(check.judge(self.op, problem, self.before, exact=False, peer_error=peer_error), f"beside {peer.name}")
        for buffers in self.sets + (self.peer_sets if theirs else []):
            gpu.poison(self.tensors.values(), buffers, ("out",))
        pairs, clocks = self._sustained(theirs) if self.protocol == "sustained" else self._steady(theirs)
        after = self._check_after(peer_error)
        error = check.Error(max(self.before.max, after.max), max(self.before.rms, after.rms))
        return self._row(peer, theirs, summarise(pairs), clocks, error, peer_error)

    # -- timing

    def _steady(self, theirs: Arm | None):
        clocks = []
        ours_n = self._calls(self.ours)
        peer_n = theirs and self._calls(theirs)

        def batch_of_ours():
            seconds = self._batch(self.ours, ours_n)
            clocks.append(self.hold.sm_clock_mhz())
            return seconds

        batch_of_peer = theirs and (lambda: self._batch(theirs, peer_n))
        alternate(batch_of_ours, batch_of_peer, 1, lambda: None)  # brings the clocks up
        clocks.clear()
        self.monitor.summary()
        return alternate(batch_of_ours, batch_of_peer, self.batches, self._ticker(self.batches, theirs)), clocks

    def _ticker(self, total: int, theirs: Arm | None) -> Callable[[], None]:
        done = iter(range(1, total + 1))
        what = f"{self.plan.step.path} {self.plan.problem}" + (f" against {theirs.name}" if theirs else "")
        self.progress(0, total, what)
        return lambda: self.progress(next(done), total, what)

    def _calls(self, arm: Arm) -> int:
        """The batch size for an arm, from one rotation of its sets after a first one that warmed everything up."""
        for index in range(len(arm.calls)):
            self._run_once(arm, index)
        rotation = min(len(arm.calls), max(1, QUEUE // arm.launches))
        return calls_per_batch(self._batch(arm, rotation), len(arm.calls), arm.launches)

    def _run_once(self, arm: Arm, index: int) -> None:
        with self.gpu.stream:
            arm.calls[index]()
        self.gpu.synchronize(arm.name)

    def _batch(self, arm: Arm, count: int) -> float:
        """Seconds a call, over `count` calls that were queued before the first began."""
        import cupy
        start, end, stream, calls = cupy.cuda.Event(), cupy.cuda.Event(), self.gpu.stream, arm.calls
        with stream:
            with self.hold:
                start.record(stream)
                for index in range(count):
                    calls[index % len(calls)]()
                end.record(stream)
                self.hold.queue_clocks()
            self.monitor.sample()  # released: the batch is running now
            self.gpu.synchronize(arm.name)
        self.hold.confirm()
        return cupy.cuda.get_elapsed_time(start, end) / 1e3 / count

    def _sustained(self, theirs: Arm | None):
        arms = [self.ours, theirs, theirs, self.ours] if theirs else [self.ours]
        sizes = {id(arm): self._calls_sustained(arm) for arm in arms}
        tick, measured, clocks = self._ticker(len(arms), theirs), [], []
        self.monitor.summary()
        for arm in arms:
            measured.append(self._segment(arm, sizes[id(arm)]))
            if arm is self.ours:
                clocks.append(self.hold.sm_clock_mhz())
            tick()
        if theirs is None:
            return [(seconds, None) for segment in measured for seconds in segment], clocks
        first, peer_first, peer_second, second = measured
        return [*zip(first, peer_first), *zip(second, peer_second)], clocks

    def _calls_sustained(self, arm: Arm) -> int:
        seconds = self._batch(arm, self._calls(arm))
        return max(1, min(math.ceil(SUSTAINED_BATCH_S / seconds), QUEUE // 2 // arm.launches))

    def _segment(self, arm: Arm, count: int) -> list[float]:
        """Seconds a call of the batches of SUSTAINED_S without a pause: always one batch queued behind the one that runs."""
        import cupy
        stream, calls, index, starved = self.gpu.stream, arm.calls, 0, 0
        with stream:
            marks = [stream.record(cupy.cuda.Event())]
            until = time.perf_counter() + SUSTAINED_S
            while time.perf_counter() < until:
                starved += len(marks) > 2 and marks[-1].done
                for _ in range(count):
                    calls[index % len(calls)]()
                    index += 1
                marks.append(stream.record(cupy.cuda.Event()))
                if len(marks) > 2:
                    marks[-2].synchronize()
                    if len(marks) % 16 == 0:
                        self.monitor.sample()
            self.hold.queue_clocks()
            self.gpu.synchronize(arm.name)
        batches = len(marks) - 1
        if starved > STARVED * batches:
            raise LabError(f"{arm.name} at {self.plan.problem} is too short to sustain: in {starved} of {batches} batches the device "
                           f"waited for the host; leave --sustained away, or take a larger shape")
        seconds = [cupy.cuda.get_elapsed_time(a, b) / 1e3 / count for a, b in zip(marks, marks[1:])]
        return seconds[int(RAMP * batches):]

    # -- checking

    def _check_ours(self) -> check.Error:
        """Poison, run once, check: sampled rows and columns by NumPy, the whole by CuPy."""
        self.gpu.poison(self.plan.tensors.values(), self.sets[0])
        self._run_once(self.ours, 0)
        if self.on_host:
            return self._check_on_host(self.sets[0], "before the timing")
        verdict = check.check_on_device(self.gpu, self.op, self.plan.problem, self.sets[0], seed=self.seed)
        self._accept(verdict, "before the timing")
        return check.Error(verdict.error, verdict.rms)

    def _check_on_host(self, buffers: Mapping, when: str) -> check.Error:
        """Of inputs that were given: what a set's outputs are, by NumPy; integers bit for bit."""
        exact = not any(is_float(self.tensors[name].dtype) for name in self.op.outputs)
        outputs = {name: buffers[name].get() for name in self.op.outputs}
        verdict = check.compare(self.op, self.plan.problem, self.inputs, outputs, exact=exact)
        self._accept(verdict, when)
        return check.Error(verdict.error, verdict.rms)

    def _used_sets(self) -> list:
        """The sets that timed calls have written."""
        return self.sets[:min(len(self.sets), max(1, QUEUE // self.ours.launches))]

    def _check_after(self, peer_error: check.Error | None) -> check.Error:
        """What the timed calls left: no NaN in any set that was used, and the last of those against float64."""
        used = self._used_sets()
        with self.gpu.stream:
            for number, buffers in enumerate(used):
                if not all(finite(buffers[name], self.tensors[name].dtype) for name in self.op.outputs):
                    raise WrongResult(f"{self.plan.step.path} at {self.plan.problem}: after the timing set {number} holds NaN or infinity")
        if self.on_host:
            return self._check_on_host(used[-1], "after the timing")
        error = check.device_error(self.gpu, self.op, self.plan.problem, used[-1])
        self._accept(check.judge(self.op, self.plan.problem, error, exact=False, peer_error=peer_error), "after the timing")
        return error

    def _accept(self, verdict: check.Verdict, when: str) -> None:
        if not verdict:
            raise WrongResult(f"{self.plan.step.path} at {self.plan.problem}, {when}: {verdict.reason}")

    def _row(self, peer: Peer | None, theirs: Arm | None, summary: Summary, clocks, error, peer_error) -> dict:
        known = dict(versions(self.gpu, self.monitor.driver), peer=(peer.version() or None) if peer else None)
        return row(self.plan, self.gpu.device, peer.name if peer else None, self.protocol, summary, error=error.max,
                   peer_error=peer_error.max if peer_error else None, peer_note=getattr(theirs.calls[0], "note", None) if theirs else None,
                   seed=self.seed, sm_clock_mhz=round(statistics.median(clocks)), **self.monitor.summary(), versions=known)


def row(plan: Plan, device: Device, peer: str | None, protocol: str, summary: Summary, *, error: float, peer_error: float | None,
        peer_note: str | None, seed: int, sm_clock_mhz: int, power_w: float | None, temperature_c: int | None, throttle: list[str] | None,
        versions: dict) -> dict:
    """A row of results: op to protocol are its key.  Times in seconds; ratio: the peer's time over ours, above 1 is faster."""
    op, step, problem = plan.step.op, plan.step, plan.problem
    roof, share, measured = roofs.share(op, problem, device, summary.time_s, protocol)
    return dict(op=op.name, step=step.id, shape=dict(problem), dtype=problem.dtype, variant=problem.variant, device=device.name, peer=peer,
                protocol=protocol, time_s=summary.time_s, time_iqr_s=summary.time_iqr_s, flops=op.flops(problem), bytes=op.bytes(problem),
                roof=roof, roof_share=share, roof_measured=measured, peer_time_s=summary.peer_time_s,
                peer_time_iqr_s=summary.peer_time_iqr_s, ratio=summary.ratio, ratio_iqr=summary.ratio_iqr,
                error=error, peer_error=peer_error, peer_note=peer_note, config=dict(plan.config), seed=seed,
                source_digest=results.source_digest(step), sm_clock_mhz=sm_clock_mhz, power_w=power_w, temperature_c=temperature_c,
                throttle=throttle, versions=versions, date=results.now())
