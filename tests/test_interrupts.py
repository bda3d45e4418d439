"""Ctrl-C as the command's process gets it: wherever it comes it ends with one line and 130."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudalab.spec import KERNELS


def begin(*words, **environment):
    """The command in a process of its own, in which SIGINT is as in a terminal."""
    return subprocess.Popen([sys.executable, "cli.py", *map(str, words)], cwd=KERNELS.parent, env={**os.environ, **environment}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def ended(process):
    """Status, stdout and stderr of a process, at its end."""
    output = process.communicate(timeout=60)
    return process.returncode, *output


def test_while_it_imports(tmp_path):
    (tmp_path / "click.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n")
    process = begin("list", PYTHONPATH=str(tmp_path))
    assert ended(process) == (130, "", "interrupted\n")


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="only Linux tells what a process has loaded")
@pytest.mark.parametrize("later", [0.0, 0.05, 0.4])
def test_while_nvrtc_compiles(tmp_path, later):
    """NVRTC takes SIGINT for itself at first, and a process that takes its memory down while it works ends with a segmentation fault."""
    process = begin("--dumps", tmp_path, "show", "step12")
    maps = Path(f"/proc/{process.pid}/maps")
    while "nvrtc-builtins" not in maps.read_text() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(later)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "", "interrupted\n")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
