"""NVRTC: one compilation gives PTX and cubin; its refusals become errors that name what to change."""

import atexit
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cudalab import leaving
from cudalab.errors import BadConfig, BadLaunch, CompileError, LabError, MissingTool, UnknownName
from cudalab.installed import NVRTC, cure, versions

HOST_CODE = (  # what only a host compiler understands, as a person would name it
    re.compile(r'#\s*include\s*[<"](?:iostream|fstream|sstream|iomanip|vector|string|map|memory|random|chrono|thread|algorithm|'
               r'array|numeric|functional|cstdio|cstdlib|cstring|cmath|cassert|cfloat|climits|std(?:io|lib)\.h|'
               r'string\.h|math\.h|assert\.h|time\.h|cuda\.h|cuda_runtime(?:_api)?\.h|device_launch_parameters\.h|'
               r'cublas\w*\.h|curand\.h|helper_\w+\.h)[>"]'),
    re.compile(r"<<<"),
    re.compile(r"\bmain\s*\("),
    re.compile(r"\bcuda(?!GridDependencySynchronize|TriggerProgrammaticLaunchCompletion)[A-Z]\w*\s*\("),
)
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
ASSERTION = re.compile(r'\((\d+)\): error: static assertion failed(?: with "(.*)")?\n\s*(.*)')
TOO_MUCH = re.compile(r"ptxas (?:error|fatal)\s*:\s*(.*(?:uses too|too many|register|resource|exceeds).*)", re.IGNORECASE)
CACHING = (12, 9)  # from here on NVRTC keeps a cache of its own, and what it takes from there comes with an empty log: no resources
PTX_ERROR = re.compile(r"ptxas application ptx input, line (\d+); (?:error|fatal)\s*:\s*(.*)")
_first, _loaded = threading.Lock(), []  # see compile_program
_starting = threading.Lock()  # see _start
STACK_BYTES = 64 << 20  # of a thread for NVRTC: 8 MiB were enough for the largest kernels here and 4 were not; see _start
_working: list[threading.Event] = []  # one for each thread in which NVRTC works, set when it is done, whether or not anybody waits


@dataclass(frozen=True)
class Program:
    """What one compilation gives.  symbols: name expression -> its mangled name in PTX and cubin."""

    ptx: bytes
    cubin: bytes
    log: str
    symbols: dict[str, str]


@cache
def version() -> str:
    """Version of the NVRTC that will be loaded: "13.0.88" from its wheel, else "13.0" and the library's file name.  Raises MissingTool.

    A build taken from the cache needs nothing of NVRTC but this.  The wheel's metadata costs under a millisecond, where importing
    cuda.bindings.nvrtc costs 100 ms; pathfinder looks at wheels first, so the wheel is what gets loaded (`compile_program` makes sure).
    A toolkit's NVRTC carries its version only inside, so that one is loaded.
    """
    for distribution in NVRTC:
        if distribution in versions():
            return versions()[distribution]
    path, major, minor = _library()
    return f"{major}.{minor} {Path(path).resolve().name}"


def _major_minor() -> tuple[int, int]:
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", version()).groups()))


@cache
def _library() -> tuple[str, int, int]:
    """Path, major and minor version of the NVRTC that cuda-pathfinder loads.  Raises MissingTool."""
    import ctypes
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        raise MissingTool(f"cuda-python is not installed, so nothing can be compiled: {cure()}") from None
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except DynamicLibNotFoundError:
        raise MissingTool(f"NVRTC is not installed, so nothing can be compiled: {cure()}") from None
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return path, major.value, minor.value


def include_folders() -> tuple[Path, ...]:
    """The CUDA headers of the NVRTC's major version, from wheels, else from a toolkit; empty if there are none."""
    major, minor = _major_minor()
    for root in map(Path, sys.path):
        for runtime, cccl in ((f"nvidia/cu{major}/include", f"nvidia/cu{major}/include/cccl"),
                              ("nvidia/cuda_runtime/include", "nvidia/cuda_cccl/include")):
            if _is_major(root / runtime, major):
                return tuple(folder for folder in (root / runtime, root / cccl) if folder.is_dir())
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")]
    for home in filter(None, (*homes, f"/usr/local/cuda-{major}.{minor}", "/usr/local/cuda")):
        for folder in (Path(home) / "include", Path(home) / "targets/x86_64-linux/include", Path(home) / "targets/sbsa-linux/include"):
            if _is_major(folder, major):
                return tuple(f for f in (folder, folder / "cccl") if f.is_dir())
    return ()


def _is_major(folder: Path, major: int) -> bool:
    """Does the folder hold CUDA headers of this major version?"""
    try:
        found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", (folder / "cuda_runtime_api.h").read_text(errors="replace"))
    except OSError:
        return False
    return found is not None and int(found[1]) // 1000 == major


def compile_program(source: Path, text: bytes, options: list[str], names: list[str]) -> Program:
    """Compile `text`, which messages shall call `source`.  names: name expressions whose symbols are wanted.

    Raises BadConfig (a static_assert fails, too few resources), CompileError with NVRTC's message, BadLaunch for a name expression
    that names no kernel, MissingTool, and UnknownName for a target that this NVRTC does not know.
    """
    with _first:  # NVRTC loads its builtins in a process's first compilation, and finds none where two threads begin at once
        if not _loaded:
            program = _compile_program(source, text, options, names)
            _loaded.append(True)
            return program
    return _compile_program(source, text, options, names)


def _compile_program(source: Path, text: bytes, options: list[str], names: list[str]) -> Program:
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise MissingTool(f"cuda-python is not installed, so nothing can be compiled: {cure()}") from None
    _, major, minor = _library()
    if _major_minor() != (major, minor):
        raise MissingTool(f"the NVRTC wheel is {version()} but {major}.{minor} was loaded: keep one CUDA line in this environment")
    if (major, minor) >= CACHING:
        options = [*options, "-no-cache"]
    ok = nvrtc.nvrtcResult.NVRTC_SUCCESS

    def call(function, *arguments):
        status, *values = function(*arguments)
        if status != ok:
            raise CompileError(f"{function.__name__} failed: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
        return values[0] if values else None

    def fetch(size, get) -> bytes:
        length = call(size, program)
        buffer = bytes(length + 1)  # never of one byte: Python keeps one object for each of those, and NVRTC writes into this one
        call(get, program, buffer)
        return buffer[:length]

    program = call(nvrtc.nvrtcCreateProgram, text, str(source).encode(), 0, [], [])
    try:
        for name in names:
            call(nvrtc.nvrtcAddNameExpression, program, name.encode())
        status, = _interruptible(nvrtc.nvrtcCompileProgram, program, len(options), [option.encode() for option in options])
        log = fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace").strip("\0 \n")
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION and "--gpu-architecture" in log:
            known = " ".join(f"sm_{number}" for number in call(nvrtc.nvrtcGetSupportedArchs))
            target = next(option.partition("=")[2] for option in options if option.startswith("--gpu-architecture"))
            raise UnknownName(f"NVRTC {version()} does not know the target '{target}'; it has {known} (90 and later also with an a behind)")
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            in_ptxas = PTX_ERROR.search(log) is not None  # only then is there PTX to look the line up in
            raise _refusal(source, text, log, fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).decode() if in_ptxas else "", options)
        if status != ok:
            raise CompileError(f"{source}: {nvrtc.nvrtcGetErrorString(status)[1].decode()}\n{log}".rstrip())
        symbols = {name: call(nvrtc.nvrtcGetLoweredName, program, name.encode()).decode() for name in names}
        ptx = fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0 \n") + b"\n"
        return Program(ptx, fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log, symbols)
    except KeyboardInterrupt:
        program = None  # NVRTC may still be at work on it
        raise
    finally:
        if program is not None:
            nvrtc.nvrtcDestroyProgram(program)


def _interruptible(function, *arguments):
    """What a function of NVRTC returns; Ctrl-C ends the main thread's wait for it at once, and a pool's soon (see leaving.py).

    NVRTC would be deaf to it, or end the process: a process's first compilation puts handlers of its own for SIGINT and SIGTERM in the
    place of Python's within some milliseconds.  So it works in a thread, and the main thread puts Python's back and takes what comes
    meanwhile by itself.  Where Ctrl-C comes the thread is left to itself, see `abandoned`.
    """
    returned, failed, done = [], [], threading.Event()  # Thread.is_alive is not to be believed after a join that Ctrl-C ended

    def work():
        try:
            returned.append(function(*arguments))
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    leaving.check()
    try:
        if threading.current_thread() is threading.main_thread():
            _heeding_signals(work, done)
        else:
            _working.append(done)
            _start(work)
            while not done.wait(0.1):
                leaving.check()
    except LabError:
        done.set()  # nobody works
        raise
    finally:
        if done.is_set() and done in _working:
            _working.remove(done)
    if failed:
        raise failed[0]
    return returned[0]


def _start(work: Callable[[], None]) -> None:
    """Start a thread with a stack that NVRTC does not outgrow: the usual one follows `ulimit -s`, and is 2 MiB where that is unlimited."""
    with _starting:  # what stack new threads have is a setting of the process
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError as error:
            raise LabError(f"no thread for NVRTC ({error}): free memory, or end other programs") from None
        finally:
            threading.stack_size(before)


def _heeding_signals(work: Callable[[], None], done: threading.Event) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heeded = {number for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}

    def put_back():
        for number, handler in handlers.items():
            if handler is not None:  # None: not set by Python, so not Python's to put back
                signal.signal(number, handler)

    go, wanted = threading.Event(), [True]

    def held_off():
        signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
        go.wait()
        if wanted:
            work()

    # Before it puts its handler there, NVRTC lets SIGINT be ignored for a moment, and what is pending then is lost: so whoever holds it off
    # waits for it from before NVRTC begins, and does not raise what came again, which could meet the handler of NVRTC.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    early = 0.0 if _loaded else 0.5  # seconds in which a process's first compilation may do so
    try:
        _start(held_off)
        signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
        _working.append(done)
        go.set()
        early += time.monotonic()
        while not done.is_set():
            if caught := signal.sigtimedwait(heeded, 0.0005 if time.monotonic() < early else 0):
                put_back()
                if callable(handler := handlers[caught.si_signo]):
                    handler(caught.si_signo, None)
                else:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                    signal.raise_signal(caught.si_signo)
            put_back()
            if time.monotonic() >= early:
                done.wait(0.1)
    finally:
        if not go.is_set():  # Ctrl-C came before NVRTC had anything to do
            wanted.clear()
            done.set()
            go.set()
        put_back()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def abandoned() -> bool:
    """Whether NVRTC is still at work in a thread that Ctrl-C left to itself.

    A process that runs its exit handlers meanwhile may end with a segmentation fault: they take down what NVRTC works with.
    """
    return not all(done.is_set() for done in list(_working))


@atexit.register
def _let_them_end() -> None:
    """Where a program goes on after Ctrl-C, and so may reach its exit handlers."""
    for done in list(_working):
        done.wait()


def _refusal(source: Path, text: bytes, log: str, ptx: str, options: list[str] = ()) -> LabError:
    """What NVRTC's log means for a person."""
    if name := _colliding(log, options):
        return BadConfig(f"the name {name} is one that NVRTC's own headers use, and as a macro it takes its place there: give the tunable "
                         f"another name, such as {name}_SIZE")
    if found := ASSERTION.search(log):
        line, message, condition = found.groups()
        return BadConfig(f"this configuration is not legal: {message or condition.strip()} ({source.name}:{line})")
    if found := TOO_MUCH.search(log):
        return BadConfig(f"this configuration is not legal: {found[1].strip()} ({source.name})")
    if host := _host_code(source, text.decode(errors="replace"), log):
        return CompileError(f"{source}: the lab compiles device code only; remove {', '.join(host)}")
    if re.search("(?:cannot|could not) open source file", log) and not include_folders():
        return MissingTool(f"{source} includes CUDA headers, and none of the loaded NVRTC's version are installed: {cure()}")
    if found := re.search(r'(?:cannot|could not) open source file "((?:nv|cuda|cub|thrust)/\S+)"', log):
        major, minor = _major_minor()
        return MissingTool(f"{source} needs <{found[1]}>, a header of the CUDA Core Compute Libraries, which are not installed: "
                           f'pip install "nvidia-cuda-cccl{"" if major > 12 else f"-cu{major}"}=={major}.{minor}.*"')
    if "Error in parsing name expression" in log and not _complaints(source, log):
        asked = re.search(r'Input name expression was: "\s*(.*?)\s*"', log)
        return BadLaunch(f"{source} has no kernel '{asked[1]}': " + re.search(r"error: (.*)", log)[1])
    inline = [f"{source}({_line_of_ptx(ptx, int(line))}): error: inline PTX: {message}" for line, message in PTX_ERROR.findall(log)]
    return CompileError("\n".join([*inline, log]))


def _colliding(log: str, options: list[str]) -> str:
    """The macro among the options that breaks NVRTC's built-in header, where the first error lies there; empty where it does not."""
    first = re.search(r"^(.*)\(\d+\): (?:catastrophic )?error:.*\n(.*)", log, re.MULTILINE)
    if first is None or not first[1].startswith("__nv_nvrtc"):
        return ""
    macros = [option[2:].partition("=")[0] for option in options if option.startswith("-D")]
    return next((name for name in macros if re.search(rf"\b{name}\b", first[2])), "")


def _host_code(source: Path, text: str, log: str) -> list[str]:
    """The host code of a file, as 'line 3 (#include <iostream>)'; empty if none of it is what NVRTC complains about."""
    blank = COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0]), text)
    found = {}
    for number, line in enumerate(blank.splitlines(), 1):
        if hits := [hit[0] for pattern in HOST_CODE if (hit := pattern.search(line))]:
            found[number] = f"line {number} ({hits[0].removesuffix('(').strip()})"
    complaints = _complaints(source, log)
    for line, message in complaints:
        if "considered a host function" in message:
            found.setdefault(int(line), f"line {line} (a function that is neither __global__ nor __device__)")
    in_a_header = re.search(r"^(?!" + re.escape(str(source)) + r"\().*\(\d+\): (?:catastrophic )?error:", log, re.MULTILINE)
    guilty = any(int(line) in found for line, _ in complaints) or (in_a_header and any("include" in what for what in found.values()))
    return [found[number] for number in sorted(found)] if guilty else []


def _complaints(source: Path, log: str) -> list[tuple[str, str]]:
    """Line and message of every error in the source itself."""
    return re.findall(rf"^{re.escape(str(source))}\((\d+)\): (?:catastrophic )?error:(.*)", log, re.MULTILINE)


def _line_of_ptx(ptx: str, number: int) -> str:
    """The source line that a line of PTX came from."""
    for line in reversed(ptx.splitlines()[:number]):
        if found := re.match(r"\s*\.loc\s+\d+\s+(\d+)", line):
            return found[1]
    return "?"
