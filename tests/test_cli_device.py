"""The verbs that run kernels, with a device that is played: what happens around a check, a measurement, a search."""

import dataclasses
import json
import re

import pytest
from command import fails, works

from cudalab import build, devices, gpu, measure, peers, registry, results, tune
from cudalab.commands.run import DRAWN, LARGE
from cudalab.errors import OutOfMemory


class Played:
    """A backend that only has a device: measurements are played too."""

    name, target, device = "gpu", "sm_90a", devices.NAMED["NVIDIA H200"]


@pytest.fixture
def bench(lab, monkeypatch, row):
    """Runs the command with a played device and played rows: a function of (step, problem, config) for each measurement."""
    def run(play, *words):
        def bench_step(place, step, problem, *, config, peers, protocol, seed, progress, say):
            progress(0, 2, "playing")
            for fields in play(step, problem, config):
                yield row(op=step.op.name, step=step.id, shape=dict(problem), protocol=protocol, config=dict(config), **fields)
        monkeypatch.setattr(gpu, "backend", lambda name=None, **emulated: Played())
        monkeypatch.setattr(measure, "bench_step", bench_step)
        return lab("bench", *words)
    return run


def test_rows_are_printed_and_saved(bench, tmp_path):
    result = works(bench(lambda *_: [{}, dict(peer="cublaslt")], "step5", "--save", tmp_path / "rows.jsonl"))
    assert "sgemm/05_blocktile_2d" in result.stdout and "0.750" in result.stdout and "cublaslt" in result.stdout
    assert [r["peer"] for r in results.read(tmp_path / "rows.jsonl")] == ["cublas", "cublaslt"]


def test_ctrl_c_keeps_what_was_measured(bench, tmp_path):
    def play(step, problem, config):
        yield {}
        if step.number == 2:
            raise KeyboardInterrupt
    result = bench(play, "sgemm", "--save", tmp_path / "rows.jsonl", "--json")
    assert result.exit_code == 130 and result.stderr.rstrip().endswith("interrupted")
    steps = ["01_naive", "02_coalesced"]
    assert [r["step"] for r in json.loads(result.stdout)] == steps and [r["step"] for r in results.read(tmp_path / "rows.jsonl")] == steps


def test_one_step_that_fails_does_not_lose_the_others(bench):
    def play(step, problem, config):
        if step.number == 1:
            raise OutOfMemory("needs 9 GB and 1 GB are free")
        yield {}
    result = bench(play, "sgemm", "--json")
    assert result.exit_code == 1 and len(json.loads(result.stdout)) == len(registry.ops()["sgemm"].steps) - 1
    assert "Error: 1 of " in result.stderr and "needs 9 GB and 1 GB are free" in result.stderr
    fails(bench(play, "step1"), "needs 9 GB")


def test_where_nothing_was_measured_an_error_stands_alone(bench):
    def play(step, problem, config):
        raise OutOfMemory("needs 9 GB and 1 GB are free")
    fails(bench(play, "step1", "--json"), "needs 9 GB")
    fails(bench(play, "sgemm", "--json"), "measurements failed, the first: needs 9 GB")


def test_against_says_what_changed_and_can_fail(bench, results_folder, row):
    assert "never measured" in works(bench(lambda *_: [{}], "step5", "--against", "--fail-below", "0.97")).stdout
    results.append(results_folder / "nvidia_h200.jsonl", [row(time_s=3e-3)])
    assert "0.750" in works(bench(lambda *_: [{}], "step5", "--against")).stdout
    assert json.loads(works(bench(lambda *_: [{}], "step5", "--against", "--json")).stdout)[0]["speed"] == pytest.approx(0.75)
    result = bench(lambda *_: [{}], "step5", "--against", "--fail-below", "0.97")
    assert result.exit_code == 1 and "1 of 1 rows fell below 0.97" in result.stderr and "0.750" in result.stdout
    works(bench(lambda *_: [dict(time_s=3e-3)], "step5", "--against", "--fail-below", "0.97"))


def test_steps_that_the_device_does_not_run_are_left_out_of_an_op(bench, monkeypatch):
    monkeypatch.setattr(Played, "target", "sm_89")
    result = works(bench(lambda *_: [{}], "tcgemm", "--json"))
    assert [r["step"][:2] for r in json.loads(result.stdout)][:5] == ["01", "02", "03", "04", "05"] and "06_wgmma" not in result.stdout
    assert result.stderr.count("left out, as sm_89 does not have") == 1
    fails(bench(lambda *_: [{}], "tcgemm/6"), "tcgemm/06_wgmma needs compute capability 9.0, which sm_89 does not have")


def test_a_tuned_configuration_is_used_and_said_and_settings_go_before_it(bench):
    step = registry.resolve_step("step5")
    problem = step.op.shapes["bench"][0]
    results.save_tuned(step, Played.device.name, problem, dict(step.config(problem)) | dict(BM=64, BK=16), 1e-3)
    result = works(bench(lambda *_: [{}], "step5", "--json", "--set", "BK=8"))
    config = json.loads(result.stdout)[0]["config"]
    assert (config["BM"], config["BK"]) == (64, 8) and "'tune' kept: BM=64" in result.stderr
    assert json.loads(works(bench(lambda *_: [{}], "step5", "--json", "--shape", "64")).stdout)[0]["config"]["BM"] == 128


def test_save_is_refused_before_anything_is_measured(bench, tmp_path):
    def play(*_):
        raise AssertionError("measured")
    (tmp_path / "file").write_text("")
    fails(bench(play, "step5", "--save", tmp_path / "file" / "rows.jsonl"), "cannot write")
    copy = tmp_path / "05_blocktile_2d.cu"
    copy.write_text(registry.resolve_step("step5").source.read_text())
    fails(bench(play, copy, "--like", "step5", "--save", tmp_path / "rows.jsonl"), "has the name of a step")


def test_a_peer_that_was_asked_for_must_be_there(bench, monkeypatch):
    monkeypatch.setitem(peers.PEERS, "cublaslt", dataclasses.replace(peers.PEERS["cublaslt"], missing=lambda: "pip install nvmath-python"))
    works(bench(lambda *_: [{}], "step5"))
    fails(bench(lambda *_: [{}], "step5", "--peer", "cublaslt"), "peer cublaslt: pip install nvmath-python")


def test_the_device_says_what_is_compiled(bench):
    fails(bench(lambda *_: [{}], "step5", "--arch", "sm_80"), "NVIDIA H200 runs sm_90a")


# Check

def test_check_prints_a_line_a_step_and_every_failure(lab, monkeypatch):
    import numpy as np

    class NumPyBackend:
        """Right for every step but the second, which leaves an element out."""

        name, target = "gpu", "sm_90a"

        def run(self, plan, inputs):
            C = inputs["A"] @ inputs["B"]
            if plan.step.number == 2:
                C[-1, -1] = np.nan
            return {"C": C}
    monkeypatch.setattr(gpu, "backend", lambda name=None, **emulated: NumPyBackend())
    shapes = ("--shape", "33x20x65 7", "--shape", "7")
    result = lab("check", "sgemm", *shapes)
    lines = result.stdout.splitlines()
    steps = len(registry.ops()["sgemm"].steps)
    assert result.exit_code == 1 and f"6 of {6 * steps} checks failed" in result.stderr
    table, failures = lines[:lines.index("")], lines[lines.index("") + 3:]
    assert len(table) == 2 + steps and len(failures) == 6
    assert re.match(r"sgemm/01_naive +2  right +\d\.\d\de-0\d +\d\.\d\de-0\d +(33x20x65|7³)$", table[2])
    assert re.match(r"sgemm/02_coalesced +2  6 of 6 WRONG +- +-$", table[3])
    assert all("02_coalesced" in line and "NaN" in line for line in failures)
    found = json.loads(lab("check", "sgemm", *shapes, "--json").stdout)
    assert len(found) == 6 * steps and sum(not f["passed"] for f in found) == 6
    works(lab("check", "step1", *shapes))


# Tune

class Stand:
    """Plays the timings of a search: time_of and fault_of take a configuration."""

    def __init__(self, time_of, fault_of=lambda config: ""):
        self.time_of, self.fault_of = time_of, fault_of

    def __call__(self, place, plans, seed):
        return self

    def time(self, plan, batches):
        return self.time_of(plan.config)

    def fault(self, plan):
        return self.fault_of(plan.config)


@pytest.fixture
def tuned(lab, monkeypatch):
    """Runs `tune step5` with a played device and a played compiler, which refuses TN=4; returns the result and what was kept."""
    def run(stand, *words):
        from cudalab.errors import BadConfig

        def compiled(plan, target):
            if plan.config.TN == 4:
                raise BadConfig("static assertion failed")
        monkeypatch.setattr(gpu, "backend", lambda name=None, **emulated: Played())
        monkeypatch.setattr(tune, "_Stand", stand)
        monkeypatch.setattr(build, "build", compiled)
        monkeypatch.setattr(build, "verify", lambda built, plan: None)
        step = registry.resolve_step("step5")
        result = lab("tune", "step5", *words)
        return result, results.tuned(step, Played.device.name, step.op.shapes["bench"][0])
    return run


def test_tune_keeps_the_fastest_legal_configuration(tuned):
    result, kept = tuned(Stand(lambda c: 1e-3 if (c.BM, c.BK) == (64, 16) else 2e-3), "--json")
    (found,) = json.loads(works(result).stdout)
    assert (kept["BM"], kept["BK"]) == (64, 16) and kept["TN"] != 4 and found["config"] == kept
    assert found["finished"] and found["speedup"] == pytest.approx(2) and found["refused"] > 0 and found["timed"] > 1


def test_tune_never_keeps_what_is_wrong(tuned):
    result, kept = tuned(Stand(lambda c: 1e-3 if c.BM == 64 else 2e-3, lambda c: "the output holds NaN" if c.BM == 64 else ""))
    assert result.exit_code == 1 and kept["BM"] != 64
    assert "compute something wrong" in result.stderr and "wrong result: " in result.stderr and "kept in" in result.stderr


def test_ctrl_c_keeps_the_best_so_far(tuned):
    timed = []

    def time_of(config):
        timed.append(config)
        if len(timed) == 3:
            raise KeyboardInterrupt
        return 1e-3 / len(timed)
    result, kept = tuned(Stand(time_of), "--json")
    assert result.exit_code == 130 and kept == dict(timed[1]) and "(the best so far)" in result.stderr
    assert not json.loads(result.stdout)[0]["finished"]


def test_tune_is_refused_before_the_search_where_nothing_can_be_kept(lab, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUDALAB_RESULTS", str(tmp_path / "file"))
    monkeypatch.setattr(gpu, "backend", lambda name=None, **emulated: Played())
    fails(lab("tune", "step5"), "cannot write", "choose another")


def test_tune_with_nothing_left_to_search_is_an_error(lab):
    step = registry.resolve_step("step5")
    held = " ".join(f"{name}={values[0]}" for name, values in step.tune.items())
    fails(lab("tune", "step5", "--set", held), "nothing left to tune", *step.tune)


def test_tune_keeps_nothing_slower_than_what_was_kept(tuned, monkeypatch):
    step = registry.resolve_step("step5")
    problem = step.op.shapes["bench"][0]
    last = dict(step.config(problem)) | dict(BK=4)  # not among the values that are searched
    results.save_tuned(step, Played.device.name, problem, last, 1e-3)
    assert tuned(Stand(lambda c: 1e-3 if c.BK == 4 else 2e-3))[1] == last
    assert tuned(Stand(lambda c: 1e-3 if c.BK == 4 else 2e-3), "--set", "BK=8")[1]["BK"] == 8
    results.save_tuned(step, Played.device.name, problem, last, 1e-3)
    timed = []

    def time_of(config):
        if config.BK == 4 or len(timed) == 3:
            raise KeyboardInterrupt  # before the last one was timed
        timed.append(config)
        return 2e-3
    result, kept = tuned(Stand(time_of))
    assert result.exit_code == 130 and kept == last and "kept in" not in result.stderr


@pytest.mark.parametrize("words, drawn", [((), DRAWN), (("--sample", "0"), None), (("--sample", "7"), 7), (("--set", "LEAD=0"), None)])
def test_tune_draws_from_a_large_space_and_says_so(lab, monkeypatch, words, drawn):
    total, tried = tune.size(registry.resolve_step("step12"), {"LEAD": 0} if "LEAD=0" in words else {}), []
    assert "--set" in words or total > LARGE

    def run(search, place, plans, *, seed, progress):
        tried.append(len(plans))
    monkeypatch.setattr(gpu, "backend", lambda name=None, **emulated: Played())
    monkeypatch.setattr(tune.Search, "run", run)
    result = works(lab("tune", "step12", *words))
    assert tried[0] - (drawn or total) in (0, 1)  # the default is always tried
    assert (f"{total} combinations, {DRAWN} of them are drawn" in result.stderr) == (not words)
    assert "0: all" in lab("tune", "--help").stdout


def test_tune_holds_what_was_set(tuned):
    _, kept = tuned(Stand(lambda c: c.BM * 1e-6), "--set", "BM=128")
    assert kept["BM"] == 128
