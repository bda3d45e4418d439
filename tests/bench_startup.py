"""`python tests/bench_startup.py`: how long `bench step5` takes from Python's start to its first launch, beside creating a CUDA context.

Needs a GPU.  The first of the runs may compile; the best of the others counts.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

RUNS = 4
CONTEXT = """
import time
from cuda.bindings import driver
start = time.time()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])
print(time.time() - start)
"""
LAUNCH = """
import os, sys, time
from cudalab import gpu
prepare = gpu.Gpu.prepare

def first(self, plan, buffers):
    enqueue = prepare(self, plan, buffers)
    def call():
        enqueue()
        print(time.time() - float(os.environ["STARTED"]), file=sys.__stdout__, flush=True)
        os._exit(0)
    return call

gpu.Gpu.prepare = first
import cli
cli.main(["bench", "step5"])
"""


def seconds(program: str) -> float:
    """What the program prints, run by a Python of its own in the repository's root."""
    environment = {**os.environ, "STARTED": str(time.time())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a warm start has Python's bytecode too
    run = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).resolve().parent.parent, env=environment,
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"nothing was timed; this needs a GPU: {(run.stderr.strip().splitlines() or ['no word why'])[-1]}")
    return float(run.stdout.split()[-1])


if __name__ == "__main__":
    context = min(seconds(CONTEXT) for _ in range(RUNS))
    launch = min([seconds(LAUNCH) for _ in range(RUNS)][1:])
    print(f"context {context:.2f} s, first launch after {launch:.2f} s, beyond the context {launch - context:.2f} s")
