"""Which distributions are installed, read from the names of their metadata folders.

`importlib.metadata` says the same, but importing it costs 80 ms, more than all else that a build taken from the cache needs.
"""

import re
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


def extra() -> str:
    """The extra of setup.cfg that fits this machine: the line it has begun, else cuda12 beside a driver and cpu without one."""
    for name, distribution in (("cuda13", "cupy-cuda13x"), ("cuda12", "cupy-cuda12x")):
        if distribution in versions():
            return name
    return "cuda12" if Path("/proc/driver/nvidia/version").exists() else "cpu"


def cure() -> str:
    """The command that installs what is missing."""
    return f'pip install -e ".[{extra()}]"'
