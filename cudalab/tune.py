"""The search for a step's best configuration on a device at one shape: all legal ones are timed quickly, the best few again."""

import itertools
import math
import os
import random
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from cudalab import leaving, pairs
from cudalab.errors import BadConfig, BadLaunch, BadShape, LabError
from cudalab.problem import Problem, Values
from cudalab.spec import Plan, Step

QUICK = 3  # batches of a first look
FINAL = 15  # batches of a finalist
FINALISTS = 5


def space(step: Step, problem: Problem, settings: Mapping[str, int], sample: int | None = None, seed: int = 0) -> tuple[list[Plan], int]:
    """The plans of every combination of the values in `step.tune`, the default first, and how many combinations were refused.

    settings: NAME -> the one value it shall have.  sample: draw so many combinations, by `seed`, instead of all.
    Raises BadConfig if there is nothing to search, or the reason if all are refused.
    """
    default = step.config(problem, settings)
    free = {name: values for name, values in step.tune.items() if name not in settings}
    if not free:
        raise BadConfig(f"{step.path} has nothing {'left ' if step.tune else ''}to tune; it searches {' '.join(step.tune) or 'no tunable'}")
    combinations = [dict(zip(free, values, strict=True)) for values in itertools.product(*free.values())]
    if sample is not None and sample < len(combinations):
        combinations = random.Random(seed).sample(combinations, sample)
    configs = dict.fromkeys([default, *(step.config(problem, {**settings, **values}) for values in combinations)])
    legal, reasons = [], []
    for config in configs:
        try:
            legal.append(step.plan(problem, config))
        except (BadConfig, BadLaunch, BadShape) as error:
            reasons.append(error)
    if not legal:
        raise reasons[0]
    return legal, len(reasons)


def size(step: Step, settings: Mapping[str, int]) -> int:
    """How many combinations of the values in `step.tune` there are beside the settings, legal or not."""
    return math.prod(len(values) for name, values in step.tune.items() if name not in settings)


@dataclass(frozen=True)
class Candidate:
    """A configuration that was timed, in seconds a call."""

    plan: Plan
    time_s: float

    @property
    def config(self) -> Values:
        return self.plan.config


@dataclass
class Search:
    """The state of one search.  It can be read at any time, after Ctrl-C too: `best` is the best so far, checked and timed.

    refused: configurations that are not legal.  wrong: checked and found wrong, with the reason; they are never the best.
    """

    step: Step
    problem: Problem
    refused: int = 0
    timed: list[Candidate] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    best: Candidate | None = None
    default_s: float | None = None
    finished: bool = False

    def run(self, gpu, plans: Sequence[Plan], *, seed: int = 0, progress: Callable[[int], None] = lambda n: None) -> None:
        """Compile `plans` in parallel and time each as it is ready; then time the best few again and keep the fastest that is right.

        progress(n): n more plans are done.  Raises CompileError for a source that is wrong whatever the configuration.
        """
        from cudalab.build import build, verify
        stand = _Stand(gpu, plans, seed)

        def compiled(plan):
            verify(build(plan, gpu.target), plan)
            return plan

        over = threading.Event()  # one processor is left to the timing
        pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), initializer=leaving.leave_when, initargs=(over,))
        try:
            for future in as_completed([pool.submit(compiled, plan) for plan in plans]):
                try:
                    self._try(stand, future.result(), plans[0].config)
                except (BadConfig, BadLaunch):
                    self.refused += 1
                progress(1)
        finally:
            over.set()  # after Ctrl-C compilers still work
            pool.shutdown(cancel_futures=True)
        if not self.timed:
            raise BadConfig(f"{self.step.path} at {self.problem}: none of the {self.refused} configurations can run on {gpu.device.name}")
        self._final(stand, plans[0].config)
        self.finished = True

    def _try(self, stand: "_Stand", plan: Plan, default: Values) -> None:
        candidate = Candidate(plan, stand.time(plan, QUICK))
        self.timed.append(candidate)
        if plan.config == default:
            self.default_s = candidate.time_s
        if (self.best is None or candidate.time_s < self.best.time_s) and self._right(stand, plan):
            self.best = candidate

    def _right(self, stand: "_Stand", plan: Plan) -> bool:
        if reason := stand.fault(plan):
            self.wrong.append(f"{plan.config}: {reason}")
        return not reason

    def _final(self, stand: "_Stand", default: Values) -> None:
        fastest = sorted(self.timed, key=lambda c: c.time_s)[:FINALISTS]
        right = [c.plan for c in fastest if self.best and (c is self.best or c.time_s > self.best.time_s and self._right(stand, c.plan))]
        again = [Candidate(plan, stand.time(plan, FINAL)) for plan in right]
        if again:
            self.best = min(again, key=lambda c: c.time_s)
            reference = next((c.plan for c in self.timed if c.config == default), None)
            self.default_s = reference and stand.time(reference, FINAL)

    def has_timed(self, config: Values) -> bool:
        return any(candidate.config == config for candidate in self.timed)

    def summary(self) -> dict:
        """What was found, for printing: config {} and times None where nothing was."""
        best = self.best
        speedup = self.default_s / best.time_s if best and self.default_s else None
        return dict(op=self.step.op.name, step=self.step.id, shape=dict(self.problem), dtype=self.problem.dtype,
                    variant=self.problem.variant, timed=len(self.timed), refused=self.refused,
                    wrong=self.wrong, config=dict(best.config) if best else {}, time_s=best and best.time_s, default_s=self.default_s,
                    speedup=speedup, finished=self.finished,
                    all=[dict(config=dict(c.config), time_s=c.time_s) for c in sorted(self.timed, key=lambda c: c.time_s)])


class _Stand:
    """Buffers and the held stream for quick timings of one problem, under the same protocol as `measure`: cold inputs, queued batches."""

    def __init__(self, gpu, plans: Sequence[Plan], seed: int):
        import cupy

        from cudalab import check
        from cudalab.hold import Hold
        self.gpu, self.op, self.problem = gpu, plans[0].step.op, plans[0].problem
        self.tensors = self.op.tensors(self.problem)
        one_call = sum(t.nbytes for t in self.tensors.values())
        count = pairs.set_count(one_call, gpu.device.l2_bytes)
        largest = max(sum(t.nbytes for t in self._extra(plan)) for plan in plans)
        drawing = 3 * max(t.nbytes for t in self.tensors.values())  # CuPy draws in float64 and then rounds
        gpu.require(count * one_call + largest + drawing, f"tuning {plans[0].step.path} at {self.problem}")
        outputs = [t for t in self.tensors.values() if t.role == "out"]
        with gpu.stream:
            rng = check.generator(seed, cupy)
            self.sets = [{**check.draw(self.op, self.problem, self.op.kinds[0], rng), **gpu.allocate(outputs, str(self.problem))}
                         for _ in range(count)]
        self.hold = Hold(gpu)

    def time(self, plan: Plan, batches: int) -> float:
        """The median time of a call over `batches` batches, in seconds."""
        calls = self._calls(plan)
        for call in calls:
            self._once(call, plan)
        launches = len(plan.actions)
        count = pairs.calls_per_batch(self._batch(calls, min(len(calls), max(1, pairs.QUEUE // launches)), plan), len(calls), launches)
        return statistics.median(self._batch(calls, count, plan) for _ in range(batches))

    def fault(self, plan: Plan) -> str:
        """Why the plan's result is wrong on this device; empty if it is right."""
        from cudalab import check
        (call,) = self._calls(plan, sets=1)
        self.gpu.poison(plan.tensors.values(), call.buffers)
        self._once(call, plan)
        return check.judge(self.op, self.problem, check.device_error(self.gpu, self.op, self.problem, call.buffers), exact=False).reason

    def _calls(self, plan: Plan, sets: int | None = None) -> list:
        scratch = self.gpu.allocate(self._extra(plan), str(self.problem))
        return [_Call(self.gpu.prepare(plan, buffers), buffers) for buffers in ({**chosen, **scratch} for chosen in self.sets[:sets])]

    def _extra(self, plan: Plan) -> list:
        return [t for name, t in plan.tensors.items() if name not in self.tensors]

    def _once(self, call: "_Call", plan: Plan) -> None:
        with self.gpu.stream:
            call.enqueue()
        self.gpu.synchronize(plan.step.path)

    def _batch(self, calls: list, count: int, plan: Plan) -> float:
        """Seconds a call over `count` calls, all queued before the first begins."""
        import cupy
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        with self.gpu.stream:
            with self.hold:
                start.record(self.gpu.stream)
                for index in range(count):
                    calls[index % len(calls)].enqueue()
                end.record(self.gpu.stream)
            self.gpu.synchronize(plan.step.path)
        self.hold.confirm()
        seconds = cupy.cuda.get_elapsed_time(start, end) / 1e3 / count
        if not (math.isfinite(seconds) and seconds > 0):
            raise LabError(f"{plan.step.path} with {plan.config}: the events around the batch are {seconds} s apart")
        return seconds


@dataclass(frozen=True)
class _Call:
    """A prepared plan and the buffers it works on."""

    enqueue: Callable[[], None]
    buffers: Mapping
