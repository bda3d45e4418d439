"""The command through click's runner: every verb, every error a person can make, exit codes, JSON, stdout and stderr apart."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import types

import pytest
from command import fails, works
from mutants import STREAM

import cli
from cudalab import build, gpu, parts, registry, results, userfile
from cudalab.errors import UnusableDevice
from cudalab.spec import KERNELS, Op

VERBS = ("list", "show", "check", "bench", "dump", "diff", "profile", "tune", "study", "fragments", "roofline", "run", "trace", "results",
         "doctor")
SMALL = ("--shape", "64")


# The shape of the command

def test_every_verb_has_help_with_an_example(lab):
    assert set(cli.main.commands) == set(VERBS)
    for verb in VERBS:
        text = works(lab(verb, "--help")).stdout
        assert f"Example: python cli.py {verb}" in text and "--json" in text
    assert "Example: python cli.py results merge" in works(lab("results", "merge", "--help")).stdout


@pytest.mark.parametrize("words", [("list",), ("list", "sgemm"), ("show", "step1"), ("bench", "step1", *SMALL), ("dump", "step1"),
                                   ("diff", "step1", "step2"), ("diff", "step1", "step2", "--ptx", "--sass"), ("results",), ("doctor",)])
def test_json_is_all_there_is_on_stdout(lab, results_folder, words):
    results_folder.mkdir()
    json.loads(works(lab(*words, "--json")).stdout)


def test_listing_imports_nothing_slow():
    """`list` stays fast because NumPy, CuPy, CUDA and matplotlib are imported only where they are used."""
    code = "import sys, cli; cli.main(['list'], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent, capture_output=True, text=True, check=True)
    loaded = set(ran.stderr.split())
    assert "cudalab.spec" in loaded
    assert not loaded & {"numpy", "cupy", "cuda.bindings", "cuda.core", "cuda.pathfinder", "matplotlib", "pynvml", "nvmath"}


# Verbs that describe

def test_list_shows_every_step_with_its_latest_figure(lab, results_folder, row):
    results.append(results_folder / "nvidia_h200.jsonl", [
        row(), row(peer="cublaslt", peer_time_s=2e-3), row(step="01_naive", shape=dict(M=8, N=8, K=8))])
    text = works(lab("list")).stdout
    for step in registry.steps():
        assert step.id in text and step.header[0] in text
    assert re.search(r"^05_blocktile_2d .* 34\.4 +0\.750 +cublas$", text, re.MULTILINE) and "Measured at 4096³ on NVIDIA H200" in text
    assert text.count("34.4") == 1 and text.count("cublas") == 1, "other shapes are not the headline"
    results.append(results_folder / "rtx.jsonl", [row(device="RTX", step="02_coalesced")])
    assert re.search(r"^02_coalesced .* cublas +RTX$", works(lab("list")).stdout, re.MULTILINE)


def test_list_takes_an_op_only(lab):
    fails(lab("list", "sgem"), "no step or op is called 'sgem'", "sgemm")
    fails(lab("list", "step5"), "is a step, not an op")


def test_show_tells_what_the_compiler_made(lab):
    step = registry.resolve_step("step5")
    text = works(lab("show", "step5", "--arch", "sm_89", "--shape", "100x200x300")).stdout
    for words in (step.header[0], "M=100 N=200 K=300", "sm_89", "registers", "limited by", "FFMA", "BM=128"):
        assert words in text
    report = json.loads(works(lab("show", "step5", "--json")).stdout)
    launch = report["actions"][0]
    assert launch["spill_stores"] == 0 and launch["occupancy"]["blocks"] >= 1 and launch["mix"]["FFMA"] >= 64
    assert launch["register_banks"]["conflicts"] < launch["register_banks"]["multiply_adds"] <= launch["mix"]["FFMA"]
    assert "prose" in report and report["prose"] in step.source.read_text().replace("// ", "").replace("//", "")


@pytest.mark.parametrize("words", [("list",), ("show", "step5"), ("doctor",)])
def test_tables_and_prose_fit_a_narrow_terminal(lab, monkeypatch, results_folder, row, words):
    results.append(results_folder / "nvidia_h200.jsonl", [row()])
    monkeypatch.setenv("COLUMNS", "80")
    lines = works(lab(*words)).stdout.partition("What gets")[0].splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith(("folder", "sgemm/"))] == []


def test_show_names_the_buffers_a_step_adds_and_every_launch(lab):
    text = works(lab("show", "step12", "--shape", "4095x4097x4093")).stdout
    assert re.search(r"^scratch    partial 132x128x256 f32, 17301504 bytes$", text, re.MULTILINE)
    assert re.search(r"^state      flags 132 i32, 528 bytes$", text, re.MULTILINE)
    assert text.count("launch     sgemm") == 3


def test_zero_is_a_value_where_it_has_a_meaning(lab):
    small = [word for name, value in STREAM if name != "WORKERS" for word in ("--set", f"{name}={value}")]
    for words in (("--set", "WORKERS=0", "--set", "FRINGE=0"), ("--set", "WORKERS=24")):
        works(lab("show", "step12", "--shape", "257x130x70", *small, *words))
    fails(lab("show", "step12", "--set", "WORKERS=-1"), "WORKERS=-1 is not legal")
    fails(lab("show", "step12", "--set", "RAGGED=0", "--shape", "1000"), "RAGGED=0", "set RAGGED=1")


def test_show_takes_one_step(lab):
    fails(lab("show", "sgemm"), "is a whole ladder", "sgemm/01_naive")


def test_dump_names_a_folder_that_holds_everything(lab, tmp_path):
    words = ("--dumps", tmp_path, "dump", "step1", "--arch", "sm_80", "--arch", "sm_90a", "--json")
    assert not any("kernel.sass" in f["files"] for f in json.loads(works(lab(*words, "--no-sass")).stdout))
    found = json.loads(works(lab(*words)).stdout)
    assert [f["target"] for f in found] == ["sm_80", "sm_90a"]
    for f in found:
        assert f["folder"].startswith(str(tmp_path))
        assert {"kernel.cu", "kernel.ptx", "kernel.cubin", "kernel.sass", "kernel.json"} <= set(f["files"])


def test_dump_prints_one_code(lab):
    assert ".visible .entry sgemm" in works(lab("dump", "step1", "--ptx", "--arch", "sm_80")).stdout
    assert "FFMA" in works(lab("dump", "step1", "--sass")).stdout
    fails(lab("dump", "step1", "--sass", "--arch", "all"), "prints one kernel's code")
    fails(lab("dump"), "name a step", lines=None, code=2)
    for both in (("--ptx", "--sass"), ("--ptx", "--json"), ("--sass", "--json")):
        fails(lab("dump", "step1", *both), "exclude each other", lines=None, code=2)


def test_diff_says_what_changed(lab):
    text = works(lab("diff", "step2", "step3", "--sass")).stdout
    for words in ("--- sgemm/02_coalesced", "+++ sgemm/03_shared_tile", "registers", "instructions",
                  "SASS, 02_coalesced on the left", " | "):
        assert words in text
    found = json.loads(works(lab("diff", "step1", "step1", "--ptx", "--json")).stdout)
    assert found["source"] == [] and {mark for _, mark, _ in found["ptx"]} == {" "}
    fails(lab("diff", "step1", "step2", "--set", "NOPE=3"), "neither", "NOPE")


def test_doctor_always_succeeds(lab, monkeypatch):
    from cudalab import doctor
    text = works(lab("doctor")).stdout
    for what in ("driver", "NVRTC", "nvdisasm", "CuPy", "cuBLAS", "ncu", "compute-sanitizer"):
        assert what in text
    monkeypatch.setattr(doctor, "versions", lambda: {"nvidia-cuda-nvrtc": "13.0", "nvidia-cuda-nvrtc-cu12": "12.9"})
    monkeypatch.setattr(doctor, "_nvrtc", lambda: 1 / 0)
    result = works(lab("doctor"))
    assert "Warning: two NVRTC majors" in result.stderr and "ZeroDivisionError" in result.stdout


# What needs a GPU: the rest runs on the emulator without one, see test_emulator_cli.py

def test_a_gpu_that_cannot_be_used_is_not_taken_for_none(lab, monkeypatch):
    def too_old(ordinal):
        raise UnusableDevice("the driver supports CUDA 11.8 and the installed packages are for CUDA 12: update the driver")
    monkeypatch.setattr(gpu, "_open_driver", too_old)
    for verb in ("bench", "check"):
        fails(lab(verb, "step1"), "update the driver")


def test_what_needs_a_gpu_says_so(lab, tmp_path):
    for words in (("check", "step1", "--backend", "gpu"), ("tune", "step5"), ("bench", "step1", "--backend", "gpu")):
        fails(lab(*words), "there is no NVIDIA driver here")
    fails(lab("bench", "step1", "--save", tmp_path / "rows.jsonl"), "--save needs a measurement")
    fails(lab("bench", "step1", "--against", "--fail-below", "0.97"), "--against needs a measurement")
    assert not (tmp_path / "rows.jsonl").exists()


# Bad input

@pytest.mark.parametrize("words, expected", [
    (("bench", "stp5"), ("no step or op is called 'stp5'", "nearest: step5")),
    (("bench", "step5", "--shape", "0"), ("M=0", "at least 1")),
    (("bench", "step5", "--shape", "16x0x16"), ("N=0",)),
    (("bench", "step5", "--shape", "16x16"), ("'16x16' has 2 sizes; MxNxK needs 3",)),
    (("bench", "step5", "--shape", "big"), ("'big' is not a shape",)),
    (("bench", "step5", "--shape", "100000x100000x1"), ("C of M=100000", "32 bits", "take a smaller shape")),
    (("bench", "step5", "--set", "BM"), ("write NAME=INTEGER",)),
    (("bench", "step5", "--set", "BQ=3"), ("has no tunable BQ; it has BM",)),
    (("bench", "step5", "--set", "BM=0"), ("BM=0 is not legal: it is 128 by default; 'tune' tries 64 128",)),
    (("bench", "step5", "--set", "BK=-8"), ("BK=-8 is not legal",)),
    (("bench", "step5", "--set", "BM=7"), ("this configuration is not legal", "block (0, 1, 1)", "BM=7: it is 128 by default")),
    (("bench", "step5", "--set", "BM=65"), ("this configuration is not legal: BM: a multiple of TM",)),
    (("bench", "step5", "--set", "BM=1048576"), ("block", "outside 1..", "BM=1048576")),
    (("bench", "step5", "--peer", "nope"), ("no peer is called 'nope'", "cublas")),
    (("bench", "step5", "--peer", "gone.py:mm"), ("there is no file 'gone.py'",)),
    (("bench", "step5", "--arch", "sm_12345"), ("'sm_12345' is not a target",)),
    (("bench", "step5", "--arch", "sm_99"), ("does not know the target 'sm_99'",)),
    (("bench", "step5", "--backend", "nope"), ("no backend is called 'nope'", "'auto'")),
    (("bench", "tcgemm/6", "--arch", "sm_89"), ("tcgemm/06_wgmma needs compute capability 9.0, which sm_89 does not have",)),
    (("roofline", "tcgemm/6", "--device", "RTX 4060"), ("tcgemm/06_wgmma needs compute capability 9.0",)),
    (("check", "fp8gemm", "--arch", "sm_80"), ("fp8gemm/01_fast needs compute capability 9.0", "another op, --arch or --device")),
    (("check", "tcgemm", "--dtype", "fp8_e4m3", "--variant", "nn"), ("takes none of the op's shapes", "take --variant nt")),
    (("profile", "step1", "--shape", "64 128"), ("profile works on one thing: give one shape and one kind, not 2",)),
    (("roofline", "vecadd", "--plot", "gone/x.svg"), ("there is no folder gone; make it",)),
    (("bench", "step5", "--set", "BM=7", "--set", "T=3"), ("has no tunable T",)),
    (("bench", "step5", "--like", "step1"), ("--like: only for an own .cu or .ptx file",)),
    (("bench", "gone.cu", "--like", "step5"), ("there is no file gone.cu",)),
    (("bench", "step5", "--shape", " "), ("names no shape",)),
    (("tune", "sgemm"), ("is a whole ladder",)),
    (("tune", "mine.cu"), ("bench mine.cu --set NAME=VALUE",)),
    (("show", "step123"), ("no step or op is called 'step123'; nearest: step12",)),
    (("show", "step8", "--set", "STAGES=99"), ("811008 bytes of shared memory", "fewer stages")),
    (("tune", "step5", "--set", "BQ=1"), ("has no tunable BQ",)),
    (("results", "merge", "gone.jsonl"), ("there is no file gone.jsonl",)),
    (("results", "--step", "nope"), ("no step or op is called 'nope'",)),
    (("results", "--plot"), ("nothing measured",)),
])
def test_bad_input_is_one_line_that_names_the_cure(lab, results_folder, words, expected):
    results_folder.mkdir()
    fails(lab(*words), *expected)


def test_an_ambiguous_name_lists_the_candidates(lab, monkeypatch):
    model = registry.ops()["sgemm"]
    other = Op(**{f.name: getattr(model, f.name) for f in dataclasses.fields(Op)} | dict(name="other", steps=[]))
    other.step(1)(model.steps[0].make_actions)
    monkeypatch.setattr(parts, "PARTS", (*parts.PARTS, types.SimpleNamespace(ops=(other,))))
    fails(lab("show", model.steps[0].name), "is ambiguous", "sgemm/01_naive, other/01_naive")


def test_a_folder_that_cannot_be_written_is_an_error(lab, tmp_path):
    (tmp_path / "file").write_text("")
    fails(lab("--dumps", tmp_path / "file" / "below", "dump", "step1"), "cannot be written", "'cli.py --dumps DIR COMMAND'")


def test_a_full_disk_under_the_output_is_an_error():
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "cli.py", "list"], cwd=KERNELS.parent, stdout=full, stderr=subprocess.PIPE, text=True,
                             env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"})
    assert ran.returncode == 1 and ran.stderr == "Error: the disk is full, the output is not complete: make room\n"


def test_what_a_driver_prints_is_not_among_the_data():
    """printf of device code comes from C, on file descriptor 1."""
    code = "import cli, os; cli.keep_stdout_for_data(); os.write(1, b'from a kernel'); print('data')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent, capture_output=True, text=True, check=True)
    assert ran.stdout == "data\n" and ran.stderr == "from a kernel"


def test_results_say_where_they_come_from(lab, tmp_path, results_folder, row, monkeypatch):
    fails(lab("results"), f"there is no folder {results_folder}: ", "'results merge FILE'")
    fails(lab("--results", tmp_path / "gone", "results", "--json"), f"there is no folder {tmp_path / 'gone'}")
    monkeypatch.setenv("CUDALAB_RESULTS", str(results_folder))  # --results had set it
    results_folder.mkdir()
    assert "no rows" in works(lab("results")).stderr
    results.append(tmp_path / "rows.jsonl", [row(), row(step="01_naive")])
    assert "2 new rows" in works(lab("results", "merge", tmp_path / "rows.jsonl")).stdout
    assert "0.750" in works(lab("results")).stdout
    assert len(json.loads(works(lab("results", "--step", "step5", "--json")).stdout)) == 1
    fails(lab("results", "--device", "a100"), "no device with rows has 'a100' in its name; there are: NVIDIA H200")
    assert "no rows of what was asked for" in works(lab("results", "--step", "step2")).stderr
    readme = tmp_path / "README.md"
    readme.write_text("<!-- results:begin -->\n<!-- results:end -->\n")
    assert works(lab("results", "--readme", readme)).stdout.strip() == str(readme)
    assert "| `05_blocktile_2d` |" in readme.read_text()
    (results_folder / "nvidia_h200.jsonl").open("a").write("{broken\n")
    for verb in ("list", "results"):
        fails(lab(verb), "nvidia_h200.jsonl:3: not JSON")


def test_rows_of_what_the_lab_does_not_have_are_kept_and_named(lab, tmp_path, row):
    foreign = [row(op="nosuch"), row(step="my"), dict(study="memory/nosuch", device="X", date=results.now()), row()]
    results.append(tmp_path / "rows.jsonl", foreign)
    assert works(lab("results", "merge", tmp_path / "rows.jsonl")).stderr.endswith(
        "which only 'results' shows: nosuch/05_blocktile_2d, sgemm/my, memory/nosuch\n")
    works(lab("list"))
    assert "nosuch/05_blocktile_2d" in works(lab("results")).stdout


# A user's own file

GOOD = """// Mine.
template <int T, typename F>
__global__ void __launch_bounds__(T * T) mm(int M, int N, int K, float alpha, const F* A, const F* B, float beta, F* C) {
    const int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
    C[row * N + col] = alpha * sum + (beta != 0 ? beta * C[row * N + col] : 0);
}
#ifndef __CUDACC_RTC__
int main() {}
#endif
"""
OWN = ("--op", "sgemm", "--entry", "mm<16, float>", "--grid", "cdiv(N, 16), cdiv(M, 16)", "--block", "16, 16")


@pytest.fixture
def own(tmp_path):
    """Writes an own .cu; returns its path."""
    def write(text=GOOD, name="own.cu"):
        (tmp_path / name).write_text(text)
        return tmp_path / name
    return write


def test_a_template_instance_of_an_own_file(lab, own):
    text = works(lab("show", own(), *OWN, "--args", "M N K 1.0 A B 0.0 C")).stdout
    assert "sgemm/own: Mine" in text and "launch     mm<16, float>(4096, 4096, 4096, 1.0, A, B, 0.0, C)" in text


def test_an_own_file_like_a_step(lab, own):
    copy = own(registry.resolve_step("step4").source.read_text())
    works(lab("show", copy, "--like", "step4", "--set", "BK=8"))
    works(lab("dump", copy, "--like", "step4"))
    assert "the sources are the same" in works(lab("diff", "step4", copy, "--like", "step4")).stdout


def test_headers_of_the_step_that_an_own_file_is_like(lab, own, tmp_path):
    model = registry.resolve_step("step12")
    copy = own(model.source.read_text())
    step = userfile.step(copy, like="step12")
    problem = step.op.problem(dict(M=65, N=130, K=40))
    built = build.build(step.plan(problem), "sm_90a")
    assert any("edges.cuh" in path for path, _ in json.loads((built.folder / "kernel.json").read_text())["headers"])
    assert results.source_digest(step) == results.source_digest(model)


@pytest.mark.parametrize("text, more, expected, lines", [
    (GOOD, ("--args", "M N K A B C"), ("takes 8 parameters", "passes 6"), 1),
    (GOOD, ("--args", "M N K 1 A B 0.0 C"), ("parameter 4", "1 as i32"), 1),
    (GOOD, ("--args", "M N K 1.0 A B 0.0 D"), ("argument 'D' is neither a tensor",), 1),
    (GOOD, (), ("needs --args",), 1),
    (GOOD, ("--args", "M N K 1.0 A B 0.0 C", "--block", "32, 32"), ("1024 threads", "allow 256"), 1),
    (GOOD, ("--args", "M N K 1.0 A B 0.0 C", "--entry", "nope"), ("has no kernel 'nope'",), 1),
    (GOOD, ("--args", "M N K 1.0 A B 0.0 C", "--entry", "mm"), ("'mm' is a template", "such as --entry 'mm<128>'"), 1),
    (GOOD, ("--args", "M N K 1.0 A B 0.0 C", "--set", "T=16"), ("the name T is one that NVRTC's own headers use", "T_SIZE"), 1),
    (GOOD, ("--args", "M N 99999999999 1.0 A B 0.0 C"), ("argument 99999999999 does not fit i32",), 1),
    (GOOD, ("--args", "M N K 1.0 A B 0.0 C", "--smem", "999999"), ("999999 bytes of shared memory",), 1),
    ("__global__ void mm(float* C) {\n    C[0] = x;\n}\n", ("--args", "C", "--entry", "mm"),
     ("own.cu(2): error:", '"x" is undefined'), None),
    ("#include <iostream>\nint main() { return 0; }\n", ("--args", "C", "--entry", "mm"),
     ("device code only", "line 1 (#include <iostream>)"), 1),
])
def test_what_an_own_file_does_wrong_is_named(lab, own, text, more, expected, lines):
    fails(lab("bench", own(text), *OWN, *more), *expected, lines=lines)
