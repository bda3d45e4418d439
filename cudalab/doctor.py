"""What this machine has of what the lab can use, and how to get what is missing.  Looks, never raises."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from cudalab.errors import LabError
from cudalab.installed import NVRTC, cure, program, versions


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.  detail: its version or place, or why it is not usable; install: the command that gets it."""

    what: str
    found: bool
    detail: str
    install: str
    needed_for: str


class Missing(Exception):
    """Not there; the text says why, `install` what gets it where that is not the usual command."""

    def __init__(self, why: str, install: str | None = None):
        super().__init__(why)
        self.install = install


def examine() -> list[Finding]:
    """Every finding, in the order in which things need one another."""
    return [_look(*entry) for entry in (
        ("Python", _python, "", "everything (3.11 or later)"),
        ("driver", _driver, "sudo apt install nvidia-driver-580  (or nvidia.com/drivers; a container: --gpus all)", "running"),
        ("device", _device, "make a GPU visible: nvidia-smi, CUDA_VISIBLE_DEVICES", "running"),
        ("NVRTC", _nvrtc, cure(), "compiling"),
        ("CUDA headers", _headers, cure(), "kernels that include cuda_fp16.h and the like"),
        ("nvdisasm", _nvdisasm, "pip install nvidia-cuda-nvdisasm", "SASS, instruction mix"),
        ("CuPy", _cupy, cure(gpu=True), "running"),
        ("cuBLAS", _cublas, cure(gpu=True), "the peer cublas"),
        ("nvmath-python", lambda: _distribution("nvmath-python"), 'pip install -e ".[peers]"', "the peer cublaslt"),
        ("NVML", _nvml, "pip install nvidia-ml-py", "clock, power and temperature beside the times"),
        ("matplotlib", lambda: _distribution("matplotlib"), 'pip install -e ".[plot]"', "results --plot"),
        ("CUPTI", _cupti, 'pip install -e ".[trace]"  (in an environment of CUDA 13)', "trace, in full"),
        ("ncu", lambda: _program("ncu"), "sudo apt install nsight-compute  (or developer.nvidia.com/nsight-compute)",
         "roofline by hardware counters"),
        ("compute-sanitizer", lambda: _program("compute-sanitizer"),
         "sudo apt install cuda-sanitizer-13-0  (NVIDIA's package repository; also in every CUDA toolkit)", "python -m pytest -m gpu"),
    )]


def warnings() -> list[str]:
    """What is installed but works against itself."""
    both = [f"{name} {versions()[name]}" for name in NVRTC if name in versions()]
    cupys = [f"{name} {versions()[name]}" for name in versions() if name in ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")]
    found = []
    if len(both) > 1:
        found.append(f"two NVRTC majors in one environment ({', '.join(both)}): the newer one is loaded whatever was meant; "
                     f"keep one line: pip uninstall {NVRTC[1]}, or make a fresh environment")
    if len(cupys) > 1:
        found.append(f"several CuPy packages in one environment ({', '.join(cupys)}): they overwrite each other; make a fresh environment")
    return found


def _look(what: str, examination: Callable[[], str], install: str, needed_for: str) -> Finding:
    try:
        return Finding(what, True, examination(), install, needed_for)
    except (Missing, LabError) as reason:
        return Finding(what, False, str(reason).partition(": pip install")[0], getattr(reason, "install", None) or install, needed_for)
    except Exception as error:  # a half-installed package may raise anything, and that is the finding
        return Finding(what, False, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}", install, needed_for)


def _python() -> str:
    return f"{sys.version.split()[0]}, {sys.executable}"


def _cuda_driver():
    """The driver's bindings, initialised."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise Missing("cuda-python is not installed", cure(gpu=True)) from None
    try:
        status = driver.cuInit(0)[0]
    except RuntimeError:
        raise Missing("libcuda is not there") from None
    return driver, status


def _driver() -> str:
    driver, _ = _cuda_driver()
    _, version = driver.cuDriverGetVersion()
    return f"supports CUDA {version // 1000}.{version % 1000 // 10}"


def _device() -> str:
    try:
        driver, status = _cuda_driver()
    except Missing:
        raise Missing("needs the driver", "the driver first") from None
    if status != driver.CUresult.CUDA_SUCCESS:
        raise Missing(status.name)
    count = driver.cuDeviceGetCount()[1]
    if not count:
        raise Missing("the driver sees none")
    return ", ".join(driver.cuDeviceGetName(256, driver.cuDeviceGet(i)[1])[1].split(b"\0")[0].decode() for i in range(count))


def _nvrtc() -> str:
    from cudalab import nvrtc
    path, major, minor = nvrtc._library()
    return f"{nvrtc.version()}, {path}"


def _headers() -> str:
    from cudalab import nvrtc
    folders = nvrtc.include_folders()
    if not folders:
        raise Missing(f"none for NVRTC {nvrtc.version()}")
    return ", ".join(map(str, folders))


def _nvdisasm() -> str:
    from cudalab import sass
    return str(sass.find_nvdisasm())


def _cupy() -> str:
    try:
        import cupy
    except ImportError as error:
        raise Missing(str(error).strip().splitlines()[0]) from None
    return f"{cupy.__version__}, for CUDA {cupy.cuda.runtime.runtimeGetVersion() // 1000}"


def _cupti() -> str:
    from cudalab.trace import activity
    if reason := activity.missing():
        raise Missing(reason)
    return f"cupti-python {versions().get('cupti-python', 'of an unknown version')}"


def _cublas() -> str:
    from cudalab.peers import PEERS
    if reason := PEERS["cublas"].missing():
        raise Missing(reason.partition(" (")[0])
    return next((f"{name} {versions()[name]}" for name in ("nvidia-cublas", "nvidia-cublas-cu12") if name in versions()), "of the system")


def _nvml() -> str:
    try:
        import pynvml
    except ImportError:
        raise Missing("nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Missing(f"nvidia-ml-py is there, the driver's library is not ({error})", "comes with the driver") from None
    return f"driver {pynvml.nvmlSystemGetDriverVersion()}"


def _distribution(name: str) -> str:
    if name not in versions():
        raise Missing("not installed")
    return versions()[name]


def _program(name: str) -> str:
    found = program(name)
    if not found:
        raise Missing("neither on PATH nor in a toolkit's folder")
    return str(found)
