"""Which distributions are installed, read from the names of their metadata folders, and where NVIDIA's programs lie.

`importlib.metadata` says the same of the first, but importing it costs 80 ms, more than all else that a build taken from the cache needs.
"""

import os
import re
import shutil
import sys
from functools import cache
from pathlib import Path

NVRTC = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")  # the CUDA 13 wheel first: where both are installed, it is the one loaded


@cache
def versions() -> dict[str, str]:
    """Version of every installed distribution, by normalised name (PEP 503).  The first on sys.path wins, as in an import."""
    found = {}
    for folder in sys.path:
        for entry in Path(folder or ".").glob("*-*.dist-info"):
            name, version = entry.name.removesuffix(".dist-info").split("-", 1)
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return found


def cure(gpu: bool = False) -> str:
    """The command that installs what is missing: of the CUDA line this environment has begun, else of CUDA 12.

    gpu: whether it is missing for running on a GPU; else, on a machine without an NVIDIA driver, the smaller extra `cpu` is enough.
    """
    if "cupy-cuda13x" in versions() or NVRTC[0] in versions():
        extra = "cuda13"
    elif gpu or "cupy-cuda12x" in versions() or Path("/proc/driver/nvidia/version").exists():
        extra = "cuda12"
    else:
        extra = "cpu"
    return f'pip install -e ".[{extra}]"'


def program(name: str) -> Path | None:
    """A program of NVIDIA's tools: on PATH, or in a toolkit's folder; None where there is none."""
    homes = (("/usr/local", "cuda*/bin"), ("/usr/local", "cuda*/compute-sanitizer"), ("/opt/nvidia/nsight-compute", "*"))
    places = [str(place) for home, pattern in homes for place in sorted(Path(home).glob(pattern), reverse=True)]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
    return Path(found) if found else None
