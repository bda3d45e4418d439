"""What a launch costs the host, and the device where nothing holds its stream: what `measure` keeps out of its times."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

BATCHES, WARM = 15, 3
BATCH_S = 20e-3  # a batch of long kernels has fewer calls, but never fewer than LEAST
LEAST = 4
PENDING = 400  # calls that one batch queues: fewer than what the driver's queue holds, so that the host never waits for the device


@dataclass(frozen=True)
class LaunchCost:
    """Seconds a call, medians.  host_s: until the call returns.  stream_s: between events around the batch, at the host's pace.
    alone_s: one call on an idle device, from the call until the host knows that it has ended."""

    host_s: float
    stream_s: float
    alone_s: float


def launch_cost(gpu, call: Callable[[], None], what: str, calls: int = PENDING) -> LaunchCost:
    """What a prepared call (of `gpu.prepare`, `gpu.capture` or a peer) costs when nothing holds the stream; a batch has at most `calls`."""
    import cupy
    host, stream, alone = [], [], []
    for _ in range(2):  # the first one warms up
        gpu.synchronize(what)
        with gpu.stream:
            began = time.perf_counter()
            call()
            gpu.synchronize(what)
            once_s = time.perf_counter() - began
    calls = min(calls, max(LEAST, int(BATCH_S / once_s)))
    for _ in range(WARM + BATCHES):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        gpu.synchronize(what)
        with gpu.stream:
            start.record(gpu.stream)
            began = time.perf_counter()
            for _ in range(calls):
                call()
            queued = time.perf_counter()
            end.record(gpu.stream)
        gpu.synchronize(what)
        host.append((queued - began) / calls)
        stream.append(cupy.cuda.get_elapsed_time(start, end) / 1e3 / calls)
        with gpu.stream:
            began = time.perf_counter()
            call()
            gpu.synchronize(what)
            alone.append(time.perf_counter() - began)
    return LaunchCost(*(statistics.median(values[WARM:]) for values in (host, stream, alone)))
