"""The sanitizer: planted bugs of every kind, each found and named; the kernels they were planted in clean."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import toy

from cudalab import counted, registry
from cudalab.check import check_step, compare, draw, generator
from cudalab.emulator import Emulator, KernelFault
from cudalab.emulator.sanitizer import ChangedInput
from cudalab.errors import WrongResult
from cudalab.spec import TensorMap
from emulated import compile_cuda
from kinds import few
from mutants import HOPPER, LADDER, SMALL
from planted import planted

FOLDER = Path(__file__).parent / "mutants"
KERNELS = Path(__file__).parent / "kernels"


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def run_reduce(launch):
    x = floats(300)
    sums = launch(3, 128, (x, np.zeros(3, "f4"), np.int32(300)), unset=(2,))[1]
    padded = np.pad(x, (0, 84)).reshape(3, 128)
    np.testing.assert_allclose(sums, padded.sum(axis=1), rtol=1e-4)


def run_histogram(launch):
    x = np.random.default_rng(2).integers(0, 200, 2000).astype("u1")
    np.testing.assert_array_equal(launch(3, 128, (x, np.zeros(256, "u4"), np.int32(2000)))[1], np.bincount(x, minlength=256))


def run_softmax(launch):
    x = floats(3, 500)
    y = launch(3, 128, (x, np.zeros_like(x), np.int32(500)), unset=(2,))[1]
    expected = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, expected / expected.sum(axis=1, keepdims=True), rtol=1e-4)


def run_last_block(launch):
    x = floats(5 * 64)
    total = launch(5, 64, (x, np.zeros(5, "f4"), np.zeros(1, "u4"), np.zeros(1, "f4")), unset=(2, 4))[3]
    np.testing.assert_allclose(total[0], x.sum(), rtol=1e-4, atol=1e-5)


def run_handoff(launch):
    x = floats(6, 64)
    sums = launch(6, 64, (x, np.zeros_like(x), np.zeros(6, "i4")), unset=(2,))[1]
    np.testing.assert_allclose(sums, x.cumsum(axis=0), rtol=1e-4, atol=1e-5)


def run_named_barriers(launch):
    x = floats(7, 64)
    np.testing.assert_array_equal(launch(2, 128, (x, np.zeros_like(x), np.int32(7)), unset=(2,))[1], x[:, ::-1])


def run_stencil(launch):
    x = np.random.default_rng(3).integers(0, 256, 150).astype("u1")
    y = launch(3, 64, (x, np.zeros(150, "u2"), np.arange(7, dtype="i4")[::-1].copy(), np.int32(150)), unset=(2,))[1]
    np.testing.assert_array_equal(y, np.convolve(x.astype("u2"), np.ones(7, "u2"), "same"))


RUNS = dict(reduce=run_reduce, histogram=run_histogram, softmax=run_softmax, last_block=run_last_block, handoff=run_handoff,
            named_barriers=run_named_barriers, stencil=run_stencil)


def change(text: str, mutant) -> str:
    assert text.count(mutant.old) == 1, f"{mutant.id}: the text to change occurs {text.count(mutant.old)} times"
    return text.replace(mutant.old, mutant.new)


def run_small(name: str, text: str) -> None:
    ptx = compile_cuda(text).replace("kernel.cu", f"{name}.cu")

    def launch(grid, block, args, unset=()):
        return Emulator(sanitize=True).run_ptx(ptx, "k", grid, block, args, unset=unset)
    RUNS[name](launch)


def small_text(name: str) -> str:
    return (FOLDER / f"{name}.cu").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_small_kernels_are_clean(name):
    run_small(name, small_text(name))


@pytest.mark.parametrize("mutant", SMALL, ids=lambda mutant: mutant.id)
def test_bugs_in_small_kernels_are_found(mutant):
    with pytest.raises(mutant.fault, match=mutant.says) as found:
        run_small(mutant.kernel, change(small_text(mutant.kernel), mutant))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("step", registry.steps(), ids=lambda step: step.path)
def test_the_ladder_is_right_and_clean(step):
    """Every emulate shape once under the sanitizer, with one kind of input and then the other; the first without an observer, too."""
    kinds, problems = step.op.kinds, few(step, "emulate")
    work = [(problems[0], len(kinds) - 1, False), *((problem, number % len(kinds), True) for number, problem in enumerate(problems))]
    for problem, seed, sanitize in work:
        inputs = draw(step.op, problem, kinds[seed], generator(seed))
        outputs = Emulator(sanitize=sanitize).run(step.plan(problem), inputs)
        verdict = compare(step.op, problem, inputs, outputs, exact=kinds[seed] == "integers")
        assert verdict, f"{problem}: {verdict.reason}"


def planted_at(step):
    """The problem that the planted bugs are made for: their tunables fit it, and each shows there."""
    return step.op.problem(dict(M=257, N=130, K=70))


def test_stream_k_is_clean_where_blocks_wait_for_each_other():
    mutant = next(m for m in LADDER if m.kernel == "sgemm/12")
    step = registry.resolve_step("sgemm/12")
    for verdict in check_step(step, planted_at(step), Emulator(sanitize=True), overrides=dict(mutant.tunables)):
        assert verdict, verdict.reason


@pytest.mark.parametrize("mutant", LADDER, ids=lambda mutant: mutant.id)
def test_bugs_in_the_ladder_are_found(mutant, tmp_path):
    step = planted(mutant.kernel, mutant.old, mutant.new, tmp_path)
    problem = planted_at(step)
    plan = step.plan(problem, step.config(problem, dict(mutant.tunables)))
    with pytest.raises(mutant.fault, match=mutant.says) as found:
        Emulator(sanitize=True).run(plan, draw(step.op, problem, "normal", generator(0)))
    assert re.search(rf"{step.source.name}:\d+", str(found.value)) and "\n" not in str(found.value)


BULK = """__shared__ float4 s[256]; s[threadIdx.x] = make_float4(0, 0, 0, 0); asm volatile("fence.proxy.async;\\n"
    "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;\\n cp.async.bulk.commit_group;\\n cp.async.bulk.wait_group 0;"
    :: "l"(A), "r"((unsigned)__cvta_generic_to_shared(s + threadIdx.x)) : "memory")"""


@pytest.mark.parametrize("write", ["A[i] = 0", "atomicAdd(&A[i], 0.0f)", "if (i == 600) ((volatile float*)A)[i] = A[i]", BULK])
def test_a_write_into_an_input_is_found(write, tmp_path):
    """Whether it changes anything or not; without the sanitizer a change is."""
    text = toy.COPY.replace("const float* A", "float* A").replace("C[i] = A[i];", f"{{ C[i] = A[i];\n {write}; }}")
    plan, inputs = toy.plan(tmp_path, text), dict(A=floats(1000))
    with pytest.raises(ChangedInput, match=r"write to the input at byte \d+ of A .*; block .*, thread .*kernel.cu:[456]"):
        Emulator(sanitize=True).run(plan, inputs)
    if write in ("A[i] = 0", BULK):
        with pytest.raises(WrongResult, match="toy/kernel writes to its input A"):
            Emulator().run(plan, inputs)
        verdict = counted.verdict_of(plan, inputs, Emulator(), "normal")
        assert not verdict and "input A" in verdict.reason
    else:
        assert (Emulator().run(plan, inputs)["C"] == inputs["A"]).all()


# -- Hopper


def run_hopper_tile(text: str, m: int, n: int, k: int, cluster: int, delivery: str) -> None:
    """m x n x k of the warp-specialised tile kernel, exact on small integers."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    maps = (TensorMap("A", "bf16", (k, m), (64, 128 // cluster), swizzle=128), TensorMap("B", "bf16", (k, n), (64, 64), swizzle=128))
    ptx = compile_cuda((KERNELS / "hopper.cuh").read_text() + text, "sm_90a", f"-DCLUSTER={cluster}")
    c = Emulator(delivery=delivery, sanitize=True).run_ptx(
        ptx, "k", (-(-n // 64), -(-m // 128)), 384, (*maps, np.zeros((m, n), "f4"), *map(np.int32, (m, n, k))), unset=(3,),
        smem=3 * (128 + 64) * 64 * 2, cluster=(cluster, 1, 1) if cluster > 1 else None, buffers=dict(A=a.view("u2"), B=b.view("u2")))[0]
    np.testing.assert_array_equal(c, a.astype("f4") @ b.astype("f4").T)


def run_tma_store(text: str, delivery: str) -> None:
    x = floats(2, 5, 128)
    ptx = compile_cuda((KERNELS / "hopper.cuh").read_text() + text, "sm_90a")
    y = Emulator(delivery=delivery, sanitize=True).run_ptx(ptx, "k", 2, 128, (x, np.zeros_like(x), np.int32(5)), unset=(2,))[1]
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize("delivery", ["lazy", "eager"])
def test_hopper_tiles_are_clean(delivery):
    """Where the planted bugs show; at other sizes and in clusters, in test_emulator_wgmma."""
    run_hopper_tile((KERNELS / "hopper_tile.cu").read_text(), 100, 60, 504, 1, delivery)


@pytest.mark.parametrize("delivery", ["lazy", "eager"])
def test_a_tma_store_is_clean(delivery):
    run_tma_store(small_text("tma_store"), delivery)


@pytest.mark.parametrize("delivery", ["lazy", "eager"])
@pytest.mark.parametrize("mutant", HOPPER, ids=lambda mutant: mutant.id)
def test_bugs_in_hopper_kernels_are_found(mutant, delivery):
    with pytest.raises(mutant.fault, match=mutant.says) as found:
        if mutant.kernel == "tma_store":
            run_tma_store(change(small_text("tma_store"), mutant), delivery)
        else:
            text = change((KERNELS / "hopper_tile.cu").read_text(), mutant)
            run_hopper_tile(text, 100, 60, 128 if "accumulators" in mutant.name else 504, 1, delivery)
    assert "\n" not in str(found.value)


# -- what is no bug


@pytest.mark.parametrize("body, bad", [
    ("s[0] = 7; __syncthreads(); x[t] = s[0];", None),
    ("s[0] = t; __syncthreads(); x[t] = s[0];", "race on"),
    ("volatile int* v = s; v[t] = t; v[t ^ 1] = 3; __syncthreads(); x[t] = s[t] * 0;", None),
    ("s[t] = t; s[t ^ 1] = 3; __syncthreads(); x[t] = s[t];", "race on"),
    ("s[t] = t; __syncwarp(); x[t] = s[t ^ 1]; __syncwarp(); s[t] = 1; __syncthreads();", None),
    ("s[t] = t; __syncwarp(); x[t] = s[t ^ 33]; __syncthreads();", "race on|uninitialised"),
    ("atomicAdd(x, 1); atomicMax(x, 2);", None),
    ("if (t % 32 < 16) { s[t] = 1; __syncwarp(0xFFFF); x[t] = s[t ^ 1]; }", None),
    ("s[t] = 1; if (t % 32 < 16) { __syncwarp(0xFFFF); x[t] = s[t ^ 16]; }", "race on"),
], ids=lambda value: None if value is None else value[:40])
def test_what_is_a_race_and_what_is_not(body, bad):
    text = f'extern "C" __global__ void k(int* x) {{ __shared__ int s[64]; int t = threadIdx.x; {body} }}'

    def run():
        Emulator(sanitize=True).run_ptx(compile_cuda(text), "k", 1, 64, (np.zeros(64, "i4"),))
    if bad is None:
        run()
    else:
        with pytest.raises(KernelFault, match=bad):
            run()


def test_a_block_that_has_ended_is_no_part_of_anothers_barrier():
    kernel = """extern "C" __global__ void k(int* n) {
        if (blockIdx.x == 1) return;
        for (int i = 0; i < 200; ++i) __syncthreads();  // long enough for the other block to end
        n[threadIdx.x] = threadIdx.x;
    }"""
    program = compile_cuda(kernel)
    (n,) = Emulator("sm_90a", sanitize=True).run_ptx(program, "k", 2, 64, (np.zeros(64, "i4"),))
    np.testing.assert_array_equal(n, np.arange(64))
