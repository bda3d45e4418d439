"""Hardware counters of a step's kernels through Nsight Compute: the lab's own command `run`, under `ncu`, its CSV read back.

Clocks are left as they are; ncu empties the caches before each of its passes.  Metrics: Nsight Compute, "Kernel Profiling Guide", metrics
reference.  A device that lacks one gives None for it.
"""

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudalab.errors import LabError, MissingTool
from cudalab.installed import program
from cudalab.roofline.verdict import NOT_WAITING, STALLS, UNITS
from cudalab.spec import KERNELS, Plan

_ELAPSED, _ACTIVE = "avg.pct_of_peak_sustained_elapsed", "avg.pct_of_peak_sustained_active"
# our name -> ncu's; of several the largest counts
METRICS: dict[str, tuple[str, ...]] = dict(
    time_s=("gpu__time_duration.sum",), cycles=("sm__cycles_elapsed.max",), active_cycles=("sm__cycles_active.avg",),
    dram=(f"dram__throughput.{_ELAPSED}",), l2=(f"lts__t_sectors.{_ELAPSED}",), l1=(f"l1tex__data_pipe_lsu_wavefronts.{_ELAPSED}",),
    fma=(f"sm__pipe_fma_cycles_active.{_ELAPSED}", f"sm__inst_executed_pipe_fma.{_ELAPSED}"),
    fp64=(f"sm__inst_executed_pipe_fp64.{_ELAPSED}",), tensor=(f"sm__pipe_tensor_cycles_active.{_ELAPSED}",),
    alu=(f"sm__inst_executed_pipe_alu.{_ELAPSED}",), xu=(f"sm__inst_executed_pipe_xu.{_ELAPSED}",),
    lsu=(f"sm__inst_executed_pipe_lsu.{_ELAPSED}",), issue=(f"sm__inst_issued.{_ELAPSED}",),
    warps=(f"sm__warps_active.{_ACTIVE}",),
    dram_read_bytes=("dram__bytes_read.sum",), dram_write_bytes=("dram__bytes_write.sum",), l2_bytes=("lts__t_bytes.sum",),
    l1_bytes=("l1tex__t_bytes.sum",), shared_wavefronts=("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    shared_conflicts=("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    local_load_bytes=("l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",), local_store_bytes=("l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum",),
    coalesced=("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",), instructions=("sm__inst_executed.sum",),
    **{f"stall_{reason}": (f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio",) for reason in (*STALLS, *NOT_WAITING)})
SHARES = (*UNITS, "warps", "coalesced")  # per cent with ncu
SCALES = dict(nsecond=1e-9, usecond=1e-6, msecond=1e-3, second=1.0, ns=1e-9, us=1e-6, ms=1e-3, s=1.0)
DENIED = ("the driver lets only administrators read hardware counters: run as root, or load the driver with "
          "NVreg_RestrictProfilingToAdminUsers=0 (developer.nvidia.com/ERR_NVGPUCTRPERM); --no-counters goes without them")
TAKEN = ("another tool holds the device's counters (DCGM, another profiler, CUPTI in some process): end it, for DCGM by "
         "'dcgmi profile --pause'; --no-counters goes without them")


def profile(plan: Plan, timeout_s: float = 300.0) -> list[dict]:
    """Counters of the plan's launches, one mapping a launch in their order: the names of METRICS, and `kernel`.  None: not on this device.

    Raises MissingTool without ncu, LabError where counters may not be read, are in use, or ncu fails.
    """
    ncu = program("ncu")
    if ncu is None:
        raise MissingTool("ncu is neither on PATH nor in a toolkit's folder: 'doctor' says what installs it; --no-counters goes without it")
    metrics = dict.fromkeys(name for names in METRICS.values() for name in names)
    for _ in range(4):  # an older or newer device lacks a metric or two, and ncu then measures nothing
        text = _run(ncu, plan, list(metrics), timeout_s)
        unknown = unknown_metrics(text, metrics)
        if not unknown:
            break
        for name in unknown:
            del metrics[name]
    refuse(text, plan.step.path)
    found = read(text)
    if len(found) != len(plan.launches):
        raise LabError(f"ncu saw {len(found)} of the {len(plan.launches)} launches of {plan.step.path}: --no-counters goes without it")
    return found


def command(ncu: Path, plan: Plan, metrics: Sequence[str], log: Path) -> list[str]:
    """What is run: the second of two runs of the plan is the one that ncu looks at."""
    names = "|".join(sorted({re.escape(re.sub(r"<.*", "", launch.entry)) for launch in plan.launches}))
    count = str(len(plan.launches))
    problem = plan.problem
    own = ["run", plan.step.path, "--shape", "x".join(map(str, problem.values())), "--dtype", problem.dtype, "--times", "2"]
    own += ["--variant", problem.variant] if problem.variant else []
    own += [word for name, value in plan.config.items() for word in ("--set", f"{name}={value}")]
    return [str(ncu), "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
            "--metrics", ",".join(metrics), "--kernel-name", f"regex:^({names})$", "--launch-skip", count, "--launch-count", count,
            sys.executable, "-c", "import cli; cli.main()", *own]


def _run(ncu: Path, plan: Plan, metrics: Sequence[str], timeout_s: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (str(KERNELS.parent), os.environ.get("PYTHONPATH")))))
        try:
            ran = subprocess.run(command(ncu, plan, metrics, log), capture_output=True, text=True, errors="replace", timeout=timeout_s,
                                 env=environment)
        except subprocess.TimeoutExpired:
            raise LabError(f"ncu took longer than {timeout_s:.0f} s for {plan.step.path}: a smaller --shape, or --no-counters") from None
        except OSError as error:
            raise MissingTool(f"{ncu} does not start ({error.strerror}): reinstall Nsight Compute, or take --no-counters") from None
        text = log.read_text(errors="replace") if log.exists() else ""
        return f"{text}\n{ran.stdout}\n{ran.stderr}" if ran.returncode or not text else text


def unknown_metrics(text: str, metrics: Sequence[str]) -> list[str]:
    """The metrics that ncu says it does not know."""
    said = "\n".join(line for line in text.splitlines() if line.startswith("==ERROR==") and "metric" in line.lower())
    words = set(re.findall(r"[\w.]+", said))
    return [name for name in metrics if name in words or name.split(".")[0] in words]


def refuse(text: str, what: str) -> None:
    """Raise LabError, one line with the cure, if ncu's output says that it measured nothing."""
    if "ERR_NVGPUCTRPERM" in text:
        raise LabError(DENIED)
    if re.search(r"driver resource was unavailable|already in use|InsufficientResources|MultipleSubscribers", text):
        raise LabError(TAKEN)
    if errors := [line for line in text.splitlines() if line.startswith("==ERROR==")]:
        raise LabError(f"ncu failed on {what}: {errors[0].removeprefix('==ERROR==').strip()}; --no-counters goes without it")
    if '"ID"' not in text:
        said = [line for line in text.splitlines() if line.strip()]
        raise LabError(f"ncu saw no kernel of {what} ({said[-1].strip() if said else 'it said nothing'}); --no-counters goes without it")


def read(text: str) -> list[dict]:
    """Counters of each kernel in ncu's CSV (--page raw --print-units base)."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if not rows or rows[0].get("ID"):
        return [_counters(row, {}) for row in rows]
    return [_counters(row, rows[0]) for row in rows[1:]]


def _counters(row: Mapping[str, str], units: Mapping[str, str]) -> dict:
    def value(name):
        try:
            number = float(row.get(name, "").replace(",", ""))
        except ValueError:
            return None
        return number * SCALES.get(units.get(name, ""), 1.0)
    found = {}
    for ours, names in METRICS.items():
        values = [v for v in map(value, names) if v is not None]
        found[ours] = max(values) / (100 if ours in SHARES else 1) if values else None

    def total(*names):
        known = [found[name] for name in names if found[name] is not None]
        return sum(known) if known else None
    active = found["active_cycles"] / found["cycles"] if found["cycles"] and found["active_cycles"] is not None else None
    return dict(found, kernel=row.get("Kernel Name", ""), active=active, dram_bytes=total("dram_read_bytes", "dram_write_bytes"),
                local_bytes=total("local_load_bytes", "local_store_bytes"))
