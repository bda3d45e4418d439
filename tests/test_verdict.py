"""What limits a kernel: the rules on counters, as a device or the emulator gives them; ncu's output read back, and what it refuses."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from cudalab import registry
from cudalab.devices import NAMED
from cudalab.errors import LabError, MissingTool
from cudalab.roofline import ncu, verdict
from cudalab.roofline.roofs import demands

H200 = NAMED["NVIDIA H200"]
# a kernel that waits for global memory: half of DRAM's rate, a third of the warps
WAITS = dict(dram=0.52, l2=0.4, l1=0.3, fma=0.1, issue=0.2, active=0.98, warps=0.6, coalesced=0.95, dram_bytes=1.1e9, compulsory_bytes=1e9,
             shared_wavefronts=1e6, shared_conflicts=0.0, local_bytes=0.0, l1_bytes=2e9, stall_long_scoreboard=8.0, stall_wait=1.0,
             stall_selected=1.0, stall_barrier=0.5)


def of(**changes):
    return verdict.of_counters(WAITS | changes)


# Hardware counters

@pytest.mark.parametrize("changes, limit, share, words, first", [
    ({}, "latency", 0.52, "84% of the waiting is waiting for data of global memory", "more loads in flight"),
    (dict(coalesced=0.125), "latency", 0.52, "12% of what loads fetch is used", "neighbouring addresses"),
    (dict(dram=0.93), "dram", 0.93, "DRAM 93% busy", "fewer bytes"),
    (dict(dram=0.93, dram_bytes=3e9), "dram", 0.93, "3.0 times the bytes that must move", "fetch what is used again only once"),
    (dict(dram=0.93, coalesced=0.3, dram_bytes=3e9), "dram", 0.93, "30% of what loads fetch is used", "neighbouring addresses"),
    (dict(l2=0.9), "l2", 0.9, "L2 90% busy", "larger tiles"),
    (dict(l1=0.97), "l1", 0.97, "L1 and shared memory 97% busy", "larger register tile"),
    (dict(l1=0.97, shared_conflicts=5e5), "l1", 0.97, "50% of its wavefronts are bank conflicts", "no bank conflicts"),
    (dict(fma=0.95), "fma", 0.95, "the FP32 pipe 95% busy", "at the roof of its arithmetic"),
    (dict(tensor=0.88), "tensor", 0.88, "the tensor cores 88% busy", "at the roof of its arithmetic"),
    (dict(issue=0.85), "issue", 0.85, "the issue of instructions 85% busy", "fewer instructions"),
    (dict(issue=0.95, fma=0.94), "fma", 0.94, "the FP32 pipe 94% busy with 99% of all instructions", "at the roof of its arithmetic"),
    (dict(l1=0.96, coalesced=0.125), "l1", 0.96, "12% of what loads fetch is used", "neighbouring addresses"),
    (dict(stall_not_selected=20.0), "latency", 0.52, "84% of the waiting is waiting for data of global memory", "more loads in flight"),
    (dict(xu=0.81), "xu", 0.81, "special-function pipe", "exponentials"),
    (dict(active=0.4), "idle", 0.4, "has work 40% of the time", "finer work"),
    (dict(active=0.4, dram=0.95), "dram", 0.95, "DRAM 95% busy", "fewer bytes"),
    (dict(local_bytes=1e9), "spills", 0.52, "50% of the bytes through L1 are spilled", "smaller tile"),
    (dict(stall_long_scoreboard=0.1, stall_barrier=9.0), "latency", 0.52, "barrier", "fewer barriers"),
    (dict(stall_long_scoreboard=0.1, stall_gmma=9.0, warps=0.2), "latency", 0.52, "tensor cores' instructions", "more of them in flight"),
    (dict(stall_long_scoreboard=0.1, stall_short_scoreboard=9.0, shared_conflicts=5e5), "latency", 0.52, "with bank conflicts", "no bank"),
    (dict(warps=0.1), "latency", 0.52, "10% of the warps that fit are there", "more loads in flight"),
    (dict(stall_long_scoreboard=0.1, stall_unheard_of=9.0), "latency", 0.52, "unheard of", "SASS")])
def test_a_kernel_has_one_verdict(changes, limit, share, words, first):
    found = of(**changes)
    assert (found.limit, found.share) == (limit, share) and words in found.words and first in found.first


def test_what_is_not_known_is_not_held_against_a_kernel():
    assert verdict.of_counters(dict(dram=0.9, l2=None)).limit == "dram"
    alone = verdict.of_counters(dict(dram=0.3, coalesced=None, active=None, stall_wait=None))
    assert alone.limit == "latency" and "no unit is busy" in alone.words


def test_every_unit_and_stall_has_a_verdict_of_its_own():
    seen = {of(**dict.fromkeys(verdict.UNITS, 0.1) | {unit: 0.99}).limit for unit in verdict.UNITS}
    assert seen == set(verdict.UNITS)
    words = {of(**{name: 0.0 for name in WAITS if name.startswith("stall_")} | {f"stall_{reason}": 5.0}).words for reason in verdict.STALLS}
    assert len(words) == len(verdict.STALLS)


# Counted work

def counts(**more):
    return dict(flops_f32=256 * 1000 * 132, flops_f64=0, flops_tensor=0, dram_bytes=1e6, shared_load_wavefronts=0,
                shared_store_wavefronts=0, async_shared_bytes=0, warp_instructions=0) | more


def test_counted_work_names_the_busiest_limit_and_what_it_costs():
    busy = verdict.of_work(demands(counts(shared_load_wavefronts=4000 * 132), H200), "fp32")
    assert busy.limit == "shared" and "leaves fp32 arithmetic at 25% of its roof" in busy.words and busy.share is None
    assert "no bank conflicts" in verdict.of_work(demands(counts(shared_load_wavefronts=4000 * 132), H200), "fp32", excess=132 * 2000).first
    own = verdict.of_work(demands(counts(), H200), "fp32")
    assert own.limit == "fp32" and "leaves" not in own.words and "roof of its arithmetic" in own.first
    assert verdict.of_work(demands(counts(dram_bytes=1e12), H200), "dram").limit == "dram"


def test_counted_work_that_explains_little_of_the_time_is_said():
    found = demands(counts(), H200)
    assert verdict.of_work(found, "fp32", time_s=found[0].time_s / 0.9).share == pytest.approx(0.9)
    slow = verdict.of_work(found, "fp32", time_s=found[0].time_s * 10)
    assert slow.limit == "latency" and "--counters" in slow.first


# ncu

def csv(*rows, metrics=None):
    """What ncu prints with --csv --page raw --print-units base, for kernels of (name, {metric: value})."""
    names = metrics or sorted({name for _, values in rows for name in values})
    units = {"gpu__time_duration.sum": "ns"}
    lines = [["ID", "Kernel Name", "Block Size", *names], ["", "", "", *(units.get(name, "") for name in names)]]
    lines += [[str(i), name, "(256, 1, 1)", *(values.get(n, "n/a") for n in names)] for i, (name, values) in enumerate(rows)]
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    return f"==PROF== Connected to process 1\n{text}\n==PROF== Disconnected\n"


SGEMM = {"gpu__time_duration.sum": "2,717,504", "sm__cycles_elapsed.max": "5,380,000", "sm__cycles_active.avg": "5,300,000.5",
         "dram__throughput.avg.pct_of_peak_sustained_elapsed": "4.5",
         "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed": "81.2",
         "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed": "79.9", "dram__bytes_read.sum": "134,217,728",
         "dram__bytes_write.sum": "67108864", "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": "0.9",
         "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "100"}


def test_ncus_csv_is_read_in_our_names_and_units():
    (found,) = ncu.read(csv(("sgemm", SGEMM)))
    assert found["kernel"] == "sgemm" and found["time_s"] == pytest.approx(2.717504e-3) and found["fma"] == pytest.approx(0.812)
    assert found["dram_bytes"] == 134217728 + 67108864 and found["active"] == pytest.approx(0.9851, abs=1e-4)
    assert found["coalesced"] == 1.0 and found["stall_wait"] == 0.9 and found["l2"] is None and found["local_bytes"] is None
    assert verdict.of_counters(found).limit == "fma"


@pytest.mark.parametrize("name, limit, share, words, first", [
    ("vecadd-06_one_pass", "dram", 0.92, "DRAM 92% busy", "fewer bytes"),
    ("sgemm-01_naive", "l1", 0.96, "12% of what loads fetch is used", "neighbouring addresses"),
    ("sgemm-05_blocktile_2d", "latency", 0.65, "conflict at dispatch, often of register banks", "another order of operands"),
    ("sgemm-12_stream_k", "fma", 0.83, "with 92% of all instructions", "at the roof of its arithmetic")])
def test_kernels_of_an_h200_are_judged_as_they_are(name, limit, share, words, first):
    """What ncu wrote there, of its columns those that are asked for."""
    text = (Path(__file__).parent / "recorded/ncu_h200" / f"{name}.csv").read_text()
    (found,) = ncu.read(text)
    assert all(found[ours] is not None for ours in ncu.METRICS)
    judged = verdict.of_counters(found)
    assert (judged.limit, round(judged.share, 2)) == (limit, share) and words in judged.words and first in judged.first


def test_metrics_that_a_device_lacks_are_found_in_what_ncu_says():
    text = "==ERROR== Failed to find metric sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed\n"
    names = [name for names in ncu.METRICS.values() for name in names]
    assert ncu.unknown_metrics(text, names) == ["sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed"]
    assert ncu.unknown_metrics("==ERROR== Failed to find metric regex: lts__t_bytes\n", names) == ["lts__t_bytes.sum"]
    assert ncu.unknown_metrics(csv(("sgemm", SGEMM)), names) == []


@pytest.fixture
def played(tmp_path, monkeypatch):
    """A program `ncu` on PATH that writes a text into its --log-file; returns a function that says which, and the calls it saw."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script, calls = folder / "ncu", tmp_path / "calls.jsonl"
    texts = tmp_path / "texts"
    texts.mkdir()
    script.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\n"
                      f"with open({str(calls)!r}, 'a') as file: print(json.dumps(sys.argv), file=file)\n"
                      f"number = len(open({str(calls)!r}).readlines())\n"
                      f"log = sys.argv[sys.argv.index('--log-file') + 1]\n"
                      f"files = sorted(pathlib.Path({str(texts)!r}).iterdir())\n"
                      f"pathlib.Path(log).write_text(files[min(number, len(files)) - 1].read_text())\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def say(*answers):
        for number, text in enumerate(answers):
            (texts / f"{number}.txt").write_text(text)
        return lambda: [json.loads(line) for line in calls.read_text().splitlines()]
    return say


def plan(name="step5", **sizes):
    step = registry.resolve_step(name)
    return step.plan(step.op.problem(sizes or dict(M=256, N=256, K=64)))


def test_a_step_is_run_by_the_labs_own_command_under_ncu(played):
    calls = played("==ERROR== Failed to find metric lts__t_bytes.sum\n", csv(("sgemm", SGEMM)))
    (found,) = ncu.profile(plan())
    assert found["fma"] == pytest.approx(0.812)
    first, second = calls()
    assert first[first.index("--clock-control") + 1] == "none" and {"--csv", "--page", "raw"} <= set(first)
    assert first[first.index("--kernel-name") + 1] == "regex:^(sgemm)$" and first[first.index("--launch-skip") + 1] == "1"
    own = first[first.index("run"):]
    assert own[1] == "sgemm/05_blocktile_2d" and own[own.index("--shape") + 1] == "256x256x64" and "BM=128" in own
    assert "lts__t_bytes.sum" in ",".join(first) and "lts__t_bytes.sum" not in ",".join(second), "asked again without what is not there"


@pytest.mark.parametrize("text, says", [
    ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0.\n",
     "NVreg_RestrictProfilingToAdminUsers=0"),
    ("==ERROR== Profiling failed because a driver resource was unavailable.\n", "dcgmi profile --pause"),
    ("==ERROR== Something else went wrong\n", "Something else went wrong; --no-counters"),
    ("==PROF== Connected to process 7\n==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
    (csv(("sgemm", SGEMM), ("sgemm", SGEMM)), "saw 2 of the 1 launches")])
def test_what_keeps_ncu_from_measuring_is_one_line_with_the_cure(played, text, says):
    played(text)
    with pytest.raises(LabError, match=says) as found:
        ncu.profile(plan())
    assert "\n" not in str(found.value)


def test_without_ncu_its_absence_is_said(monkeypatch):
    monkeypatch.setattr(ncu, "program", lambda name: None)
    with pytest.raises(MissingTool, match="'doctor' says what installs it"):
        ncu.profile(plan())


def test_the_names_of_metrics_are_ncus():
    """Every metric is a counter with a suffix, none stands under two of our names."""
    names = [name for names in ncu.METRICS.values() for name in names]
    assert len(names) == len(set(names)) and all(name.count("__") >= 1 and "." in name for name in names)
    assert set(ncu.SHARES) <= set(ncu.METRICS) and {f"stall_{reason}" for reason in verdict.STALLS} <= set(ncu.METRICS)
