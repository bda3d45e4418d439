"""Events from CUPTI: its activity API for what every call and kernel took, its callback API for the way from Python to a launch.

CUPTI serves one tool in a process at a time.  CUPTI documentation, "CUPTI Activity API", "CUPTI Callback API"; through cupti-python.
"""

import contextlib
import ctypes
import importlib.util
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

from cudalab.errors import LabError, MissingTool
from cudalab.installed import versions
from cudalab.trace.timeline import Event

BUFFER = 8 * 2**20  # bytes that CUPTI fills before it hands them over
FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: records that are not complete, too
DEEPEST = 128  # frames of a stack
VERSION = re.compile(r"_v\d{4,}$")  # cudaLaunchKernelExC_v11060: CUPTI says since when a function is what it is
NAMES = 3  # functions that are shown of one library
_sink: list["Recording"] = []  # where completed buffers go; CUPTI's callbacks are the process's, so there is one
_registered: list[bool] = []


class Recording:
    """What was recorded.  events: complete when the block is left; stacks: kernel's correlation id -> way of its launch (see `way`)."""

    def __init__(self, cupti):
        self._cupti, self.events, self.stacks, self.failed = cupti, [], {}, None

    @contextlib.contextmanager
    def span(self, name: str, **details) -> Iterator[None]:
        """An event of our own around what is done inside, by CUPTI's clock."""
        start = self._cupti.get_timestamp()
        try:
            yield
        finally:
            self.events.append(Event("python", name, start, self._cupti.get_timestamp(), 0, threading.get_native_id(), details))


def missing() -> str | None:
    """None, or why CUPTI cannot be used and what installs it."""
    if importlib.util.find_spec("cupti"):
        return None
    if "cupy-cuda12x" in versions():
        return ("cupti-python is there for CUDA 13 only, and this environment is of CUDA 12: where the driver is one of CUDA 13, in a "
                "fresh environment pip install -e '.[cuda13,trace]'")
    return 'cupti-python is not installed: pip install -e ".[trace]"'


@contextlib.contextmanager
def recording(*, stacks: bool = False) -> Iterator[Recording]:
    """Record what CUDA does inside the block; who runs it must wait for the device before it ends.

    stacks: take the stack at every launch, too, which costs the host so much that the times mean little.  Raises MissingTool without
    cupti-python or its library, LabError where another tool has CUPTI or the system forbids it.
    """
    if reason := missing():
        raise MissingTool(reason)
    try:
        from cupti import cupti
    except ImportError as error:
        raise MissingTool(f"cupti-python does not import ({_line(error)}): pip install --force-reinstall cupti-python") from None
    found, kinds, subscriber = Recording(cupti), cupti.ActivityKind, None
    wanted = [kinds.RUNTIME, kinds.DRIVER, kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET, kinds.OVERHEAD]
    enabled = []
    try:
        subscriber = _subscribe(cupti, found, stacks)
        with _said(cupti):
            cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)  # the thread's number that Python knows, too
            for kind in wanted:
                cupti.activity_enable(kind)
                enabled.append(kind)
            if not _registered:
                cupti.activity_register_callbacks(lambda: (BUFFER, 0), _complete)
                _registered.append(True)
        _sink.append(found)
        yield found
        with _said(cupti):
            cupti.activity_flush_all(FORCED)
        if found.failed:
            raise LabError(f"a record of CUPTI could not be read ({_line(found.failed)}): --no-cupti traces without it")
    finally:
        for kind in enabled:
            with contextlib.suppress(Exception):
                cupti.activity_disable(kind)
        if subscriber is not None:
            with contextlib.suppress(Exception):
                cupti.unsubscribe(subscriber)
        if found in _sink:
            _sink.remove(found)


def _subscribe(cupti, found: Recording, stacks: bool) -> int:
    """Subscribe, which is what finds another tool, and ask for launches where their stacks are wanted."""
    params = cupti.SubscriberParams()
    params.struct_size = cupti.SUBSCRIBER_PARAMS_SIZE
    params.subscriber_name = "cudalab"
    with _said(cupti, params):
        subscriber = cupti.subscribe_v2(_at_call, found, params.ptr)
    if stacks:
        with _said(cupti):
            for domain, ids in ((cupti.CallbackDomain.DRIVER_API, cupti.driver_api_trace_cbid),
                                (cupti.CallbackDomain.RUNTIME_API, cupti.runtime_api_trace_cbid)):
                for member in ids:
                    if "Launch" in member.name and ("Kernel" in member.name or "Graph" in member.name):
                        cupti.enable_callback(1, subscriber, domain, member)
    return subscriber


@contextlib.contextmanager
def _said(cupti, params=None) -> Iterator[None]:
    """CUPTI's refusals as errors that name the cure."""
    try:
        yield
    except cupti.cuptiError as error:
        result = cupti.Result
        if error.status in (result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, result.ERROR_MAX_LIMIT_REACHED, result.ERROR_HARDWARE_BUSY):
            who = getattr(params, "old_subscriber_name", None) or "ncu, nsys, compute-sanitizer or another profiler"
            raise LabError(f"CUPTI is in use already, by {who}: run 'trace' outside of it, or with --no-cupti") from None
        if error.status in (result.ERROR_INSUFFICIENT_PRIVILEGES, result.ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES):
            raise LabError("CUPTI is not permitted here: run as root, or let the administrator load the driver with "
                           "NVreg_RestrictProfilingToAdminUsers=0; --no-cupti traces without it") from None
        name = result(error.status).name if error.status in list(result) else error.status
        raise LabError(f"CUPTI refuses ({name}): update the driver, or trace with --no-cupti") from None
    except RuntimeError as error:  # its loader: the library, or a symbol of it, is not there
        raise MissingTool(f"CUPTI's library does not load ({_line(error)}): pip install nvidia-cuda-cupti, "
                          f"or trace with --no-cupti") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# -- records

def _complete(activities) -> None:
    """CUPTI's callback for a full buffer, on a thread of its own; the records are only good until it returns."""
    if not _sink:
        return
    found = _sink[-1]
    try:
        found.events += filter(None, (event_of(found._cupti, record) for record in activities))
    except Exception as error:  # raised here it would be lost in CUPTI
        found.failed = error


def event_of(cupti, record) -> Event | None:
    """The event that an activity record tells of; None for a kind that is not wanted, or without times."""
    kinds, kind = cupti.ActivityKind, record.kind
    if kind in (kinds.RUNTIME, kinds.DRIVER):
        domain = cupti.CallbackDomain.DRIVER_API if kind == kinds.DRIVER else cupti.CallbackDomain.RUNTIME_API
        name = VERSION.sub("", cupti.get_callback_name(domain, record.cbid))
        return _event("driver" if kind == kinds.DRIVER else "runtime", name, record, record.thread_id)
    if kind in (kinds.CONCURRENT_KERNEL, kinds.KERNEL):
        details = dict(grid=[record.grid_x, record.grid_y, record.grid_z], block=[record.block_x, record.block_y, record.block_z],
                       registers=record.registers_per_thread, static_smem=record.static_shared_memory,
                       dynamic_smem=record.dynamic_shared_memory)
        if record.cluster_x > 1 or record.cluster_y > 1 or record.cluster_z > 1:
            details["cluster"] = [record.cluster_x, record.cluster_y, record.cluster_z]
        if record.graph_node_id:
            details["graph_node"] = record.graph_node_id
        return _event("kernel", demangled(record.name or "kernel without a name"), record, record.stream_id, details)
    if kind == kinds.MEMCPY:
        return _event("memcpy", f"copy of {record.bytes} bytes", record, record.stream_id, dict(bytes=record.bytes))
    if kind == kinds.MEMSET:
        return _event("memset", f"fill of {record.bytes} bytes", record, record.stream_id, dict(bytes=record.bytes))
    if kind == kinds.OVERHEAD:
        known = {kind.value: kind.name for kind in cupti.ActivityOverheadKind}
        return _event("overhead", known.get(record.overhead_kind, f"kind {record.overhead_kind}").lower().replace("_", " "), record, 0)
    return None


def _event(kind: str, name: str, record, track: int, details: dict | None = None) -> Event | None:
    if not record.start or record.end < record.start:  # CUPTI could not collect the times
        return None
    return Event(kind, name, record.start, record.end, record.correlation_id if kind != "overhead" else 0, track, details or {})


def demangled(name: str) -> str:
    """A C++ name as a person reads it, where the C++ runtime is there to do it; else as it is."""
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    demangle, status = runtime.__cxa_demangle, ctypes.c_int()
    demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    address = demangle(name.encode(), None, None, ctypes.byref(status))
    if not address or status.value:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(address)
    return text


# -- the way to a launch

def _at_call(found: Recording, domain, callback_id, data) -> None:
    """CUPTI's callback at a launch: the stack, once a correlation id, at the innermost call that has it."""
    try:
        if data.callback_site == found._cupti.ApiCallbackSite.API_ENTER:
            found.stacks[data.correlation_id] = way()
    except Exception as error:
        found.failed = error


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def way() -> list[dict]:
    """How the program came to CUPTI's callback, outermost first: dict(library, functions).  "python" with the innermost functions of the
    Python stack; then each library between Python and CUPTI with the functions that it exports on the way."""
    python = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in traceback.extract_stack()
              if frame.filename != __file__]
    return [dict(library="python", functions=python[-NAMES:]), *below_python(native_stack())]


def native_stack() -> list[dict]:
    """The stack of this thread, outermost first, as stretches in one library: dict(library, functions).

    backtrace(3), dladdr(3): a function that its library does not export has no name, and none is guessed.
    """
    system = ctypes.CDLL(None)
    system.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Symbol)]
    addresses = (ctypes.c_void_p * DEEPEST)()
    count, found = system.backtrace(addresses, DEEPEST), []
    for address in reversed(addresses[:count]):
        symbol = _Symbol()
        if not address or not system.dladdr(address, ctypes.byref(symbol)) or not symbol.file:
            continue
        library = Path(symbol.file.decode(errors="replace")).name
        if not found or found[-1]["library"] != library:
            found.append(dict(library=library, functions=[]))
        name = demangled(symbol.name.decode()) if symbol.name else None
        if name and name not in found[-1]["functions"]:
            found[-1]["functions"].append(name)
    return found


def below_python(stretches: list[dict]) -> list[dict]:
    """The stretches between the interpreter and CUPTI, whose callback the rest of the stack is."""
    cut = next((i for i, one in enumerate(stretches) if one["library"].startswith("libcupti")), len(stretches))
    before = stretches[:cut]
    interpreter = (Path(sys.executable).resolve().name, "python", "libpython")
    last = max((i for i, one in enumerate(before) if one["library"].startswith(interpreter)), default=-1)
    return [dict(one, functions=one["functions"][:NAMES]) for one in before[last + 1:]]
