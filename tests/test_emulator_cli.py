"""The command without a GPU: check, bench, profile and diff on the emulator."""

import json
import re

import click.testing
import pytest

import cli
from cudalab import gpu, registry
from cudalab.emulator import Emulator
from cudalab.errors import NoDevice

SMALL = ("--shape", "33x17x9")

WRONG = """// Wrong in its last column.
extern "C" __global__ void __launch_bounds__(256) mm(const float* A, const float* B, float* C, int M, int N, int K) {
    const int i = blockIdx.x * 256 + threadIdx.x, row = i / N, col = i % N;
    if (row >= M) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
    C[i] = sum * (col == N - 1 ? 0.98f : 1.0f);
}
"""
OUTSIDE = WRONG.replace("if (row >= M) return;", "").replace(" * (col == N - 1 ? 0.98f : 1.0f)", "")
RIGHT = WRONG.replace(" * (col == N - 1 ? 0.98f : 1.0f)", "")
RACE = """// Warps read what other warps write, and nothing waits.
extern "C" __global__ void __launch_bounds__(256) mm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float s[256];
    const int i = blockIdx.x * 256 + threadIdx.x, row = i / N, col = i % N;
    float sum = 0;
    if (row < M) {
        for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
    }
    s[threadIdx.x] = sum;
    const int other = i ^ 32;
    const float moved = s[threadIdx.x ^ 32];
    if (other < M * N) C[other] = moved;
}
"""
SPILLING = """extern "C" __global__ void __launch_bounds__(1024, 2) vecadd(const float* A, const float* B, float* C, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float r[64], s = 0;
    #pragma unroll
    for (int j = 0; j < 64; ++j) r[j] = A[(i + j) % N];
    __syncthreads();
    #pragma unroll
    for (int j = 0; j < 64; ++j) s += 0.f * r[j] * r[63 - j];
    if (i < N) C[i] = A[i] + B[i] + s;
}
"""
DYNAMIC = """extern "C" __global__ void __launch_bounds__(256) vecadd(const float* A, const float* B, float* C, int N) {
    extern __shared__ float s[];
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= N) return;
    s[threadIdx.x] = A[i];
    C[i] = s[threadIdx.x] + B[i];
}
"""
OWN = ("--op", "sgemm", "--entry", "mm", "--grid", "cdiv(M * N, 256)", "--block", "256", "--args", "A B C M N K")


@pytest.fixture
def lab(monkeypatch):
    """Runs the command on a machine without a GPU; returns click's result."""
    def none(ordinal):
        raise NoDevice("there is no NVIDIA driver here")
    monkeypatch.setattr(gpu, "_open_driver", none)
    return lambda *words: click.testing.CliRunner().invoke(cli.main, [str(word) for word in words])


@pytest.fixture
def own(tmp_path):
    def write(text, name="own.cu"):
        (tmp_path / name).write_text(text)
        return tmp_path / name
    return write


@pytest.fixture
def ptx(own):
    """The PTX of the naive step, as a file from anywhere."""
    text = click.testing.CliRunner().invoke(cli.main, ["dump", "step1", "--ptx"]).stdout
    assert ".entry sgemm" in text
    return own(text.replace(".entry sgemm", ".entry from_elsewhere").replace("sgemm_param", "some_param"), "anything.ptx")


def works(result):
    assert result.exit_code == 0, result.output
    return result


def test_what_takes_long_is_said_before_it_starts(lab, monkeypatch):
    def stop(self, plan, inputs):
        raise KeyboardInterrupt
    monkeypatch.setattr(Emulator, "run", stop)
    for verb in ("bench", "check"):
        result = lab(verb, "sgemm", "--shape", "1024 1000x1000x1000")
        assert result.exit_code == 130 and re.match(r"this is much for the emulator: 48 runs, the largest at .*1024.* order of \d+ minutes",
                                                    result.stderr)
        assert lab(verb, "step5", *SMALL).stderr == "interrupted\n"


def test_what_a_kernel_prints_goes_to_stderr(lab, own):
    file = own('extern "C" __global__ void __launch_bounds__(256) vecadd(const float* A, const float* B, float* C, int N) {\n'
               '    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i == 7) printf("A[%d]\\n", i);\n'
               '    if (i < N) C[i] = A[i] + B[i];\n}\n', "prints.cu")
    result = works(lab("check", file, "--like", "vecadd/2", "--shape", 100, "--json"))
    assert len(json.loads(result.stdout)) == 2 and result.stderr.count("A[7]\n") == 2


def fails(result, *words, code=1):
    assert result.exit_code == code, result.output
    error = result.stderr[result.stderr.index("Error: "):]
    assert len(error.splitlines()) == 1
    for word in words:
        assert word in error
    return result


def keys(value):
    """Every key at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


# bench

def test_bench_says_right_counts_and_roofline_but_no_time(lab):
    result = works(lab("bench", "step2", *SMALL))
    for words in ("right on normal inputs", "right on integer inputs, bit for bit", "at the level of PTX", "sectors", "NVIDIA H200",
                  "of the busiest", "intensity"):
        assert words in result.stdout
    assert not re.search(r"\d ?(ms|µs|us|s)\b", result.stdout), "the emulator has no time to tell"
    (row,) = json.loads(works(lab("bench", "step2", *SMALL, "--json")).stdout)
    assert row["passed"] and row["backend"] == "emulator" and row["level"] == "PTX" and row["counters"]["flops_f32"] == 2 * 33 * 17 * 9
    assert not [key for key in keys(row) if "time" in key]
    assert row["roofline"]["limits"][0]["share"] == 1.0


def test_bench_runs_the_shapes_for_the_emulator_unless_told_otherwise(lab):
    rows = json.loads(works(lab("bench", "step2", "--json")).stdout)
    assert [r["shape"] for r in rows] == [dict(p) for p in registry.ops()["sgemm"].shapes["emulate"]]


def test_the_device_named_gives_target_and_roofline(lab):
    (row,) = json.loads(works(lab("bench", "step1", *SMALL, "--device", "RTX 4060", "--json")).stdout)
    assert row["target"] == "sm_89" and row["roofline"]["device"] == "NVIDIA GeForce RTX 4060"
    (row,) = json.loads(works(lab("bench", "step1", *SMALL, "--arch", "sm_80", "--json")).stdout)
    assert row["target"] == "sm_80" and "A100" in row["roofline"]["device"]
    fails(lab("bench", "step1", *SMALL, "--device", "4061"), "no device is called '4061'")
    for verb in ("bench", "check", "profile"):
        fails(lab(verb, "step1", *SMALL, "--arch", "fast"), "'fast' is not a target")


def test_bench_fails_by_correctness(lab, own):
    result = fails(lab("bench", own(WRONG), *OWN, *SMALL, "--json"), "2 of 2 checks failed", "sgemm/own")
    (row,) = json.loads(result.stdout)
    assert not row["passed"] and row["checks"][0]["reason"] and row["counters"]["flops_f32"]
    assert "WRONG on normal inputs" in lab("bench", own(WRONG), *OWN, *SMALL).stdout
    works(lab("bench", own(RIGHT), *OWN, *SMALL))


def test_a_fault_names_the_line_and_fails(lab, own):
    line = OUTSIDE.splitlines().index(next(code for code in OUTSIDE.splitlines() if "A[row" in code)) + 1
    for verb in ("bench", "check"):
        fails(lab(verb, own(OUTSIDE), *OWN, *SMALL), "out of bounds", f".cu:{line}", "thread (")


@pytest.fixture
def short_ladder():
    """The first three steps of sgemm only."""
    steps = registry.ops()["sgemm"].steps
    kept = steps[:]
    steps[3:] = []
    yield
    steps[:] = kept


def test_one_step_that_cannot_run_does_not_lose_the_others(lab, monkeypatch, short_ladder):
    real = Emulator.run

    def run(self, plan, inputs):
        if plan.step.number == 1:
            raise NoDevice("this one does not run")
        return real(self, plan, inputs)
    monkeypatch.setattr(Emulator, "run", run)
    for verb in ("bench", "check"):
        result = fails(lab(verb, "sgemm", *SMALL), "1 of 3 did not run", "this one does not run")
        assert "sgemm/02_coalesced" in result.stdout and "sgemm/03_shared_tile" in result.stdout and "01_naive" not in result.stdout


def test_where_nothing_ran_an_error_stands_alone(lab, monkeypatch, short_ladder):
    def run(self, plan, inputs):
        raise NoDevice("this one does not run")
    monkeypatch.setattr(Emulator, "run", run)
    for verb in ("bench", "check"):
        for target in ("step1", "sgemm"):
            assert fails(lab(verb, target, *SMALL, "--json"), "this one does not run").stdout == ""


def test_ctrl_c_shows_what_was_found(lab, monkeypatch):
    real, runs = Emulator.run, []

    def run(self, plan, inputs):
        runs.append(plan.step.number)
        if runs.count(2):
            raise KeyboardInterrupt
        return real(self, plan, inputs)
    monkeypatch.setattr(Emulator, "run", run)
    result = lab("bench", "sgemm", *SMALL, "--json")
    assert result.exit_code == 130 and result.stderr.rstrip().endswith("interrupted") and "Traceback" not in result.output
    assert [row["step"] for row in json.loads(result.stdout)] == ["01_naive"]


def test_what_only_a_measurement_can_give_is_refused(lab, tmp_path):
    for words in (("--save", tmp_path / "rows.jsonl"), ("--against",), ("--sustained",), ("--peer", "cublas")):
        fails(lab("bench", "step1", *words), f"{words[0]} needs a measurement", "the emulator times nothing")
    fails(lab("bench", "step1", "--all-shapes"), "too large for the emulator")
    assert not (tmp_path / "rows.jsonl").exists()


def test_the_sanitizer_is_on_unless_told_otherwise(lab, own):
    for verb in ("bench", "check"):
        fails(lab(verb, own(RACE), *OWN, *SMALL), "2 of 2 checks failed", "race", ".cu:11")
        works(lab(verb, own(RACE), *OWN, *SMALL, "--no-sanitize"))


# check

def test_check_runs_without_a_gpu(lab):
    found = json.loads(works(lab("check", "step1", "--json")).stdout)
    shapes = [dict(p) for p in registry.ops()["sgemm"].shapes["emulate"] for _ in range(2)]
    assert [f["shape"] for f in found] == shapes and all(f["passed"] for f in found)
    assert [f["inputs"] for f in found[:2]] == ["normal", "integers"]
    assert "right" in works(lab("check", "step1", *SMALL, "--backend", "emulator", "--arch", "sm_80")).stdout


@pytest.mark.parametrize("named, right, said", [((), 6, "2 of the kinds"), (("--dtype", "tf32"), 1, "1 of the kinds"),
                                                (("--dtype", "tf32", "--variant", "nn"), 0, "turn elements of 16 bits only")])
def test_of_a_shape_check_takes_the_kinds_that_have_it_but_those_that_were_named(lab, named, right, said):
    result = lab("check", "tcgemm/11", "--shape", "16", *named, "--json")
    assert said in result.stderr and (result.exit_code == 0) == (right > 0)
    assert not right or len({(one["dtype"], one["variant"]) for one in json.loads(result.stdout)}) == right


def test_check_fails_on_a_wrong_result(lab, own):
    result = fails(lab("check", own(WRONG), *OWN, *SMALL), "2 of 2 checks failed")
    assert "2 of 2 WRONG" in result.stdout and "normal" in result.stdout and "integers" in result.stdout


# profile

def test_profile_puts_counters_beside_the_source(lab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    step = registry.resolve_step("step3")
    lines = works(lab("profile", "step3", *SMALL)).stdout.split("\n\nsgemm/")[0].splitlines()  # a legend and a head of four lines
    assert max(map(len, lines)) <= 120
    source = step.source.read_text().splitlines()
    assert [int(line[:4]) for line in lines[4:4 + len(source)]] == list(range(1, len(source) + 1))
    barrier = next(number for number, code in enumerate(source, 1) if "__syncthreads" in code)
    assert int(lines[3 + barrier].split()[1]) > 0 and "__syncthreads" in lines[3 + barrier]
    found = json.loads(works(lab("profile", "step3", *SMALL, "--json")).stdout)
    for name in ("warp_instructions", "shared_load_wavefronts", "global_load_sectors", "barriers"):
        assert sum(line[name] for line in found["lines"]) == found["counters"][name] > 0
    assert next(line for line in found["lines"] if line["line"] == barrier)["barriers"] > 0


def test_profile_of_a_wrong_kernel_is_shown_and_fails(lab, own):
    result = fails(lab("profile", own(WRONG), *OWN, *SMALL), "1 of 1 checks failed")
    assert "float sum = 0;" in result.stdout


# diff

def test_diff_compares_counters(lab):
    text = works(lab("diff", "step1", "step2", "--count-at", "32")).stdout
    assert re.search(r"^global load sectors +[\d,]+ +[\d,]+ +x 0\.\d+$", text, re.MULTILINE) and "counted on the emulator at 32³" in text
    found = json.loads(works(lab("diff", "step1", "step2", "--count-at", "32", "--json")).stdout)
    one, other = found["counters"]["counters"]
    assert one["flops_f32"] == other["flops_f32"] == 2 * 32**3 and one["global_load_sectors"] > other["global_load_sectors"]
    assert "counted on the emulator" not in works(lab("diff", "step1", "step2", "--no-counters")).stdout


# PTX from anywhere

def test_a_ptx_file_runs_like_a_step(lab, ptx):
    (row,) = json.loads(works(lab("bench", ptx, "--like", "step1", "--entry", "from_elsewhere", *SMALL, "--json")).stdout)
    assert row["passed"] and row["step"] == "anything" and row["target"] == "sm_90a" and row["counters"]["flops_f32"] == 2 * 33 * 17 * 9
    ptx.write_text(ptx.read_text().replace(".target sm_90a", ".target sm_89"))
    (row,) = json.loads(works(lab("bench", ptx, "--like", "step1", "--entry", "from_elsewhere", *SMALL, "--json")).stdout)
    assert row["target"] == "sm_89" and "4060" in row["roofline"]["device"]
    works(lab("check", ptx, *OWN[:2], "--entry", "from_elsewhere", "--grid", "cdiv(M, 32) * cdiv(N, 32)", "--block", "1024", "--args",
              "A B C M N K", *SMALL))
    profile = works(lab("profile", ptx, "--like", "step1", "--entry", "from_elsewhere", *SMALL)).stdout
    assert re.search(r"^ *\d+ +\d\S* +\d+ +\d+\.\d .*fma\.rn\.f32", profile, re.MULTILINE)


def test_what_a_ptx_file_cannot_do_is_said(lab, ptx, own):
    like = ("--like", "step1", *SMALL)
    fails(lab("bench", ptx, *like), "has no kernel sgemm; it has: from_elsewhere")
    fails(lab("bench", ptx, *like, "--entry", "mm<3>"), "PTX has no templates")
    fails(lab("check", ptx, *like, "--backend", "gpu"), "a PTX file runs on the emulator only")
    fails(lab("dump", ptx, "--like", "step1"), "is PTX already")
    fails(lab("bench", ptx, *like, "--entry", "from_elsewhere", "--args", "A B C"), "takes 6 parameters")
    fails(lab("bench", own("nonsense", "bad.ptx"), *like), "PTX")


# What not every device runs, and own files

@pytest.mark.parametrize("words", [("check", "--arch", "sm_80"), ("bench", "--arch", "sm_80"),
                                   ("roofline", "--device", "RTX 4060", "--no-counters")])
def test_steps_that_a_device_does_not_run_are_left_out_of_an_op(lab, words):
    verb, *more = words
    taken = () if verb == "roofline" else ("--shape", "16", "--dtype", "bf16", "--variant", "nt")
    result = works(lab(verb, "tcgemm", *taken, *more))
    assert "left out, as sm_8" in result.stderr and "tcgemm/06_wgmma" in result.stderr
    assert "tcgemm/05" in result.stdout and "06_wgmma" not in result.stdout


def test_an_own_file_that_spills_is_warned_of(lab, own):
    result = works(lab("check", own(SPILLING), "--like", "vecadd/2", "--shape", "70"))
    assert "Warning: vecadd/own: vecadd spills" in result.stderr and result.stderr.count("Warning") == 1


def test_shared_memory_that_was_not_asked_for_is_named(lab, own):
    fails(lab("bench", own(DYNAMIC), "--like", "vecadd/2", "--shape", "70"), "give --smem BYTES")
    works(lab("bench", own(DYNAMIC), "--like", "vecadd/2", "--shape", "70", "--smem", "1024"))


def test_a_profile_in_a_pipe_is_not_cut(lab, own):
    long = RIGHT.replace("if (row >= M) return;", "if (row >= M) return;" + " " * 100 + "// the end of a long line")
    assert "the end of a long line" in works(lab("profile", own(long), *OWN, *SMALL)).stdout
