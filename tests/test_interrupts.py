"""Ctrl-C as the command's process gets it: wherever it comes it ends with one line and 130."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cudalab import leaving, nvrtc
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


@pytest.mark.parametrize("call", [1, 2])
def test_before_nvrtc_has_anything_to_do(call):
    """Ctrl-C in the main thread's calls that hold signals off: nobody waits for ever, and signals are let through again."""
    code = f"""
import signal
from cudalab import nvrtc
hold, calls = signal.pthread_sigmask, []
def interrupted(how, what):
    import threading
    if threading.current_thread() is threading.main_thread():
        calls.append(how)
        if len(calls) == {call}:
            raise KeyboardInterrupt
    return hold(how, what)
signal.pthread_sigmask = interrupted
try:
    nvrtc._interruptible(lambda: None)
except KeyboardInterrupt:
    print("left", nvrtc.abandoned(), signal.SIGINT in hold(signal.SIG_BLOCK, []))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent, text=True, capture_output=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "left False False\n"), run.stderr


def test_while_a_pool_disassembles(tmp_path):
    """With a disassembler that does not end, so that whoever waits for it, or for a pool that does, does not either."""
    slow = tmp_path / "nvidia" / "cu99" / "bin" / "nvdisasm"
    slow.parent.mkdir(parents=True)
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun.$$\nexec sleep 600\n")
    slow.chmod(0o755)
    process = begin("--dumps", tmp_path / "dumps", "dump", "vecadd", PYTHONPATH=str(tmp_path))
    while not list(tmp_path.glob("begun.*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "", "interrupted\n")
    assert list((tmp_path / "dumps").rglob("kernel.cubin")) and not list((tmp_path / "dumps").rglob(".*"))


def test_a_pool_leaves_a_compiler_that_works():
    """And begins nothing more; whoever ends the process is told that it still works."""
    over, working, release, left = threading.Event(), threading.Event(), threading.Event(), []

    def compiling():
        working.set()
        release.wait()

    def of_the_pool():
        leaving.leave_when(over)
        for function in (compiling, lambda: left.append("begun all the same")):
            try:
                nvrtc._interruptible(function)
            except KeyboardInterrupt:
                left.append("left")
    thread = threading.Thread(target=of_the_pool)
    thread.start()
    try:
        assert working.wait(10) and nvrtc.abandoned()
        over.set()
        thread.join(10)
        assert left == ["left", "left"] and nvrtc.abandoned()
    finally:
        release.set()
        thread.join()
