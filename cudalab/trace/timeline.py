"""What happened when something ran: events of host and GPU joined by correlation ids, as a table and as a Chrome trace for Perfetto.

Plain data: where the events come from (CUPTI, or events and host clocks) is the business of `activity` and `follow`.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cudalab.errors import BadResults, LabError

HOST = ("python", "runtime", "driver")  # from the outside in
DEVICE = ("kernel", "memcpy", "memset")
KINDS = (*HOST, "overhead", *DEVICE)


@dataclass(frozen=True)
class Event:
    """Something that took time.  kind: python (a span of ours), runtime or driver (a call of CUDA's API), kernel, memcpy, memset, or
    overhead (of the tracing itself).  Times in ns of one clock.  correlation: shared by a call and what it starts on the GPU; 0: none.
    track: the thread of the host, the stream of the GPU.  details: of a kernel grid, block, cluster, registers, static_smem,
    dynamic_smem."""

    kind: str
    name: str
    start_ns: int
    end_ns: int
    correlation: int = 0
    track: int = 0
    details: Mapping = field(default_factory=dict)

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def on_host(self) -> bool:
        return self.kind in HOST


@dataclass(frozen=True)
class Placed:
    """An event in the tree of its track.  own_ns: its time without that of the events inside it."""

    event: Event
    depth: int
    own_ns: int


def place(events: Iterable[Event]) -> list[list[Placed]]:
    """The events of one track as lanes, in each of which events are apart or one inside the other.  Almost always one lane is enough; what
    would overlap in part (kernels of a graph that run side by side) goes to the next."""
    lanes = []  # of each: [placed so far, stack of [event, depth, time of those inside]]
    for event in sorted(events, key=lambda e: (e.start_ns, -e.end_ns, KINDS.index(e.kind))):
        for done, stack in lanes:
            while stack and stack[-1][0].end_ns <= event.start_ns and not (stack[-1][0].ns == 0 == event.ns):
                _close(done, stack)
            if not stack or event.end_ns <= stack[-1][0].end_ns:
                break
        else:
            done, stack = [], []
            lanes.append((done, stack))
        stack.append([event, len(stack), 0])
    for done, stack in lanes:
        while stack:
            _close(done, stack)
    return [sorted(done, key=lambda p: (p.event.start_ns, p.depth)) for done, _ in lanes]


def _close(done: list, stack: list) -> None:
    event, depth, inside = stack.pop()
    done.append(Placed(event, depth, event.ns - inside))
    if stack:
        stack[-1][2] += event.ns


def tracks(events: Iterable[Event]) -> dict[tuple[str, int], list[Event]]:
    """Events by ("host", thread), ("gpu", stream) and ("overhead", 0), in this order."""
    found = {}
    for event in events:
        side = "host" if event.on_host else "overhead" if event.kind == "overhead" else "gpu"
        found.setdefault((side, 0 if side == "overhead" else event.track), []).append(event)
    return dict(sorted(found.items(), key=lambda item: (("host", "gpu", "overhead").index(item[0][0]), item[0][1])))


def inside(events: Sequence[Event], span: Event) -> list[Event]:
    """What belongs to a span of the host: calls of its thread that start within it, and what these started on the GPU."""
    calls = [e for e in events if e.on_host and e is not span and e.track == span.track and span.start_ns <= e.start_ns < span.end_ns]
    started = {e.correlation for e in (span, *calls) if e.correlation}
    return [span, *calls, *(e for e in events if e.kind in DEVICE and e.correlation in started)]


def caller(events: Iterable[Event], work: Event) -> Event | None:
    """The innermost call of the host that started a kernel, copy or fill."""
    calls = [e for e in events if e.on_host and e.correlation == work.correlation != 0]
    return max(calls, key=lambda e: (HOST.index(e.kind), e.start_ns), default=None)


def lines(events: Sequence[Event]) -> list[dict]:
    """One row an event, in order of time, calls of the host before the work that they start: depth, kind, name, start_s since the first,
    time_s, own_s, correlation, and for a kernel grid, block, registers, static_smem_bytes, dynamic_smem_bytes."""
    if not events:
        return []
    begin = min(e.start_ns for e in events)
    placed = [p for (side, _), mine in tracks(events).items() if side != "overhead" for lane in place(mine) for p in lane]
    rows = []
    for p in sorted(placed, key=lambda p: (not p.event.on_host, p.event.start_ns, p.depth)):
        e, more = p.event, p.event.details
        rows.append(dict(depth=p.depth, kind=e.kind, name=e.name,
                         start_s=(e.start_ns - begin) / 1e9, time_s=e.ns / 1e9, own_s=p.own_ns / 1e9,
                         correlation=e.correlation or None, **{name: _times(more[name]) for name in ("grid", "block") if name in more},
                         registers=more.get("registers"), static_smem_bytes=more.get("static_smem"),
                         dynamic_smem_bytes=more.get("dynamic_smem")))
    return rows


def summary(events: Sequence[Event], span: Event) -> dict:
    """Of one traced call (span) in seconds: until_launch_s, from the call until CUDA's launch begins; launch_s, inside the launch;
    until_start_s, from the launch's return (negative: from before it) until the first kernel starts; kernel_s, of all kernels; call_s, of
    the whole call; after_s, from the call's return until the last kernel ends (negative: it had ended).
    Raises LabError without a kernel."""
    kernels = [e for e in inside(events, span) if e.kind == "kernel"]
    if not kernels:
        raise LabError(f"the trace holds no kernel of {span.name}: the records of CUPTI were lost; run it again")
    first, last = min(kernels, key=lambda e: e.start_ns), max(kernels, key=lambda e: e.end_ns)
    launch = caller(events, first)
    if launch is None:
        raise LabError(f"the trace holds no call that started {first.name}: the records of CUPTI were lost; run it again")
    return dict(until_launch_s=(launch.start_ns - span.start_ns) / 1e9, launch_s=launch.ns / 1e9,
                until_start_s=(first.start_ns - launch.end_ns) / 1e9, kernel_s=sum(e.ns for e in kernels) / 1e9, call_s=span.ns / 1e9,
                after_s=(last.end_ns - span.end_ns) / 1e9)


def chrome(events: Sequence[Event], about: Mapping) -> dict:
    """The trace as Chrome's JSON object format ("Trace Event Format"): a complete event (ph X) each, in µs from the first; a flow (ph s, f)
    from every call to the work that it started; names of processes and threads.  about: what goes beside them as otherData."""
    if not events:
        return dict(traceEvents=[], displayTimeUnit="ns", otherData=dict(about))
    begin = min(e.start_ns for e in events)
    found, where, thread = [], {}, 0
    pids = dict(host=(1, "host"), gpu=(2, "GPU"), overhead=(3, "CUPTI's own overhead"))
    for side in dict.fromkeys(side for side, _ in tracks(events)):
        found.append(dict(ph="M", name="process_name", pid=pids[side][0], tid=0, args=dict(name=pids[side][1])))
    for (side, track), mine in tracks(events).items():
        label = dict(host=f"thread {track}", gpu=f"stream {track}", overhead="overhead")[side]
        for number, lane in enumerate(place(mine)):
            thread, pid = thread + 1, pids[side][0]
            name = label + (f" ({number + 1})" if number else "")
            found.append(dict(ph="M", name="thread_name", pid=pid, tid=thread, args=dict(name=name)))
            for p in lane:
                e = p.event
                args = dict(own_us=p.own_ns / 1e3, **({"correlation": e.correlation} if e.correlation else {}), **e.details)
                found.append(dict(ph="X", name=e.name, cat=e.kind, pid=pid, tid=thread, ts=(e.start_ns - begin) / 1e3, dur=e.ns / 1e3,
                                  args=args))
                where[id(e)] = pid, thread
    flows = 0
    for work in events:
        call = caller(events, work) if work.kind in DEVICE else None
        if call is None:
            continue
        flows += 1  # an id of its own each: one call of a graph starts many kernels
        for ph, e, more in (("s", call, {}), ("f", work, dict(bp="e"))):
            pid, tid = where[id(e)]
            found.append(dict(ph=ph, name="starts", cat="correlation", id=flows, pid=pid, tid=tid, ts=(e.start_ns - begin) / 1e3, **more))
    return dict(traceEvents=found, displayTimeUnit="ns", otherData=dict(about))


def require_writable(file: Path) -> None:
    """Raise BadResults where the trace could not be written; leaves what is there as it is."""
    write(file.with_name(f".{file.name}.tried"), {}).unlink()


def write(file: Path, trace: Mapping) -> Path:
    """The Chrome trace as a file, whole or not at all.  Raises BadResults if it cannot be written."""
    temporary = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(trace, ensure_ascii=False), encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise BadResults(f"cannot write {file}: {error.strerror}") from None
    return file


def as_json(events: Iterable[Event]) -> list[dict]:
    """Events as JSON takes them."""
    return [asdict(e) for e in events]


def _times(sizes: Sequence[int]) -> str:
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept)) + (f" = {math.prod(kept)}" if len(kept) > 1 else "")
