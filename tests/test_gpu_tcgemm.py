"""On a device: part 6 where its own shapes do not lead: the tiles of large products, matmul over CuPy arrays, fragments as the emulator has
them.  Run with `python -m pytest -m gpu`."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cudalab import check, fragments, registry
from cudalab.dtypes import encode
from cudalab.emulator import Emulator
from cudalab.errors import LabError

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    gpu = Gpu()
    if gpu.device.sm != 90:
        pytest.skip("wgmma needs compute capability 9.0")
    return gpu


def on_device(dtype, values):
    """A CuPy array of a type from float32 values on the host."""
    import cupy
    from cudalab.dtypes import bits, device_dtype
    return cupy.asarray(bits(encode(values, dtype))).view(device_dtype(dtype))


@pytest.mark.parametrize("step, sizes, kind", [
    ("tcgemm/11", (4104, 4232, 264), "bf16 nt"), ("tcgemm/11", (4104, 4232, 2184), "bf16 nn"), ("tcgemm/11", (4104, 4232, 2184), "tf32 nt"),
    ("fp8gemm/1", (4104, 4232, 4240), "fp8_e4m3 fast"), ("fp8gemm/3", (4103, 4232, 400), "fp8_e4m3 block"),
    ("fp8gemm/3", (4104, 4232, 400), "fp8_e4m3 promoted")])
def test_the_tiles_of_large_products(gpu, step, sizes, kind):
    """More tiles than multiprocessors: clusters, turns, blocks that stay."""
    step = registry.resolve_step(step)
    problem = step.op.problem(dict(zip("MNK", sizes)), *kind.split())
    for verdict in check.check_step(step, problem, gpu):
        assert verdict, verdict.reason


@pytest.mark.parametrize("dtype, turned", [("f32", False), ("tf32", True), ("tf32", False), ("f16", False), ("bf16", True),
                                           ("bf16", False)])
@pytest.mark.parametrize("sizes", [(64, 512, 1024), (2056, 1288, 264)])
def test_matmul(gpu, dtype, turned, sizes):
    """Small integers: exact, whichever way b lies, on a stream of the caller's, into an array of the caller's."""
    import cupy

    import cudalab
    M, N, K = sizes
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (M, K)).astype("f4"), rng.integers(-3, 4, (K, N)).astype("f4")
    x = on_device(dtype, a)
    y = on_device(dtype, np.ascontiguousarray(b.T)).T if turned else on_device(dtype, b)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for out in (None, cupy.empty((M, N), "f4") if dtype in ("f32", "tf32") else None):
            c = cudalab.matmul(x, y, out, dtype=dtype if dtype == "tf32" else None)
            stream.synchronize()
            got = c.get() if dtype != "bf16" else c.view(cupy.uint16).get()
            wanted = encode(a @ b, dtype if dtype in ("f16", "bf16") else "f32")
            np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), wanted.view(f"u{got.itemsize}"))


@pytest.mark.parametrize("accumulate", ["fast", "promoted", "block"])
def test_matmul_of_fp8(gpu, accumulate):
    import cupy

    import cudalab
    M, N, K = 200, 136, 272
    rng = np.random.default_rng(0)
    a, b = rng.integers(-2, 3, (M, K)).astype("f4"), rng.integers(-2, 3, (N, K)).astype("f4")
    shapes = ((3, M), (2, 3)) if accumulate == "block" else ((1,), (1,))
    scales = tuple(cupy.full(shape, value, "f4") for shape, value in zip(shapes, (2.0, 0.5)))
    c = cudalab.matmul(on_device("fp8_e4m3", a), on_device("fp8_e4m3", b).T, scales=scales, **({} if accumulate == "block" else
                                                                                             dict(accumulate=accumulate)))
    np.testing.assert_array_equal(c.view(cupy.uint16).get(), encode(a @ b.T, "bf16").view("u2"))
    with pytest.raises(LabError, match="needs scales"):
        cudalab.matmul(on_device("fp8_e4m3", a), on_device("fp8_e4m3", b).T)


def test_matmul_refuses_an_output_that_is_not_aligned(gpu):
    import cupy

    import cudalab
    x = cupy.ones((64, 64), "f4")
    with pytest.raises(LabError, match="multiple of 16 bytes on"):
        cudalab.matmul(x, x, cupy.empty(1 + 64 * 64, "f4")[1:].reshape(64, 64))


@pytest.mark.parametrize("what", ["m16n8k16", "m16n8k8", "m16n8k32", "m64n24k16", "ldmatrix", "ldmatrix.trans", "swizzle128", "swizzle64",
                                  "swizzle32"])
def test_the_emulator_has_the_fragments_of_the_device(gpu, what):
    assert fragments.layouts(what, None, gpu) == fragments.layouts(what, None, Emulator("sm_90a"))


@pytest.mark.parametrize("variant", ["block", "promoted"])
def test_how_additions_follow_one_another_changes_no_result(gpu, variant):
    import cupy
    step = registry.resolve_step("fp8gemm/3")
    problem = step.op.problem(dict(M=520, N=392, K=1552), "fp8_e4m3", variant)
    results = []
    for pace in (0, 21, 12, 9):
        plan = step.plan(problem, step.config(problem, dict(PACE=pace)))
        with gpu.stream:
            arrays = gpu.allocate(plan.tensors.values(), "operands")
            for name, values in check.draw(step.op, problem, "normal", check.generator(0, cupy)).items():
                arrays[name][...] = values
            gpu.prepare(plan, arrays)()
            results.append(arrays["C"].get())
    assert results[0].any() and all(np.array_equal(results[0], other) for other in results[1:])


def test_a_launch_that_starts_early_waits_for_what_it_reads(gpu):
    """Products in a chain, each reading what the one before wrote, many times over: the bits of one at a time."""
    import cupy

    import cudalab
    rng = np.random.default_rng(0)
    x = on_device("bf16", rng.standard_normal((512, 512), dtype="f4"))
    w = on_device("bf16", rng.standard_normal((512, 512), dtype="f4") / 512**0.5)

    def chain(wait):
        h = x
        for _ in range(40):
            h = cudalab.matmul(h, w.T)
            if wait:
                cupy.cuda.get_current_stream().synchronize()
        return h.view(cupy.uint16).get()
    np.testing.assert_array_equal(chain(False), chain(True))


# -- bank conflicts, by ncu: of ldmatrix and stmatrix by instruction, of wgmma by its reads, of cp.async by its wavefronts, four a warp.
# Rows of 64 bytes, step 5's default, take cp.async more, for each goes as far as a line of L2 does (docs/notes/tcgemm.md): here they have
# 128.

UNSWIZZLED = ("tcgemm/02_ldmatrix", "bf16", "nt")
WHOLE_LINES = {"tcgemm/05_fragments_ahead": dict(LINE=128, STAGES=3)}
SWIZZLED = [*((f"tcgemm/{n}", "bf16", "nt") for n in (
                "03_swizzled", "04_multistage", "05_fragments_ahead", "06_wgmma", "07_tma", "08_specialised", "09_multicast",
                "10_persistent", "11_overlapped", "12_split_k", "13_mma_by_tma")),
            ("tcgemm/05_fragments_ahead", "tf32", "nt"), ("tcgemm/05_fragments_ahead", "bf16", "nn"),
            ("tcgemm/11_overlapped", "tf32", "nt"), ("tcgemm/11_overlapped", "bf16", "nn"), ("fp8gemm/01_fast", "fp8_e4m3", "fast"),
            ("fp8gemm/02_fast_split_k", "fp8_e4m3", "fast"), ("fp8gemm/03_promoted", "fp8_e4m3", "block")]
CONFLICTS = [f"smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ldsm", "stsm")]
CONFLICTS.append("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_gmma.sum")
COPIES = ["smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum", "smsp__inst_executed_op_ldgsts.sum"]
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
CHILD = """
import json, sys
from cudalab import registry
from cudalab.check import draw, generator
from cudalab.gpu import Gpu
gpu = Gpu()
cases, sets = json.loads(sys.argv[1])
for name, dtype, variant in cases:
    step = registry.resolve_step(name)
    problem = step.op.problem(dict(M=512, N=512, K=512), dtype, variant)
    gpu.run(step.plan(problem, step.config(problem, sets.get(name, {}))), draw(step.op, problem, "integers", generator(0)))
"""


def profiled(cases):
    """For each case, wavefronts that conflicts of each kind cost, those beyond four a cp.async, and all, in one run of ncu."""
    run = subprocess.run(["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
                          "--metrics", ",".join([*CONFLICTS, *COPIES, WAVEFRONTS]), "--kernel-name", "regex:^(tc|fp8)gemm$",
                          sys.executable, "-c", CHILD, json.dumps([cases, WHOLE_LINES])],
                         cwd=Path(__file__).resolve().parent.parent, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith('"')]
    assert lines, run.stdout + run.stderr
    header, _, *rows = csv.reader(lines)
    # a kernel a case, in their order: a row beside the wrong case would hide what it shows
    assert [row[header.index("Kernel Name")] for row in rows] == [name.split("/")[0] for name, *_ in cases], run.stdout + run.stderr
    counts = [[float(row[header.index(name)].replace(",", "")) for name in (*CONFLICTS, *COPIES, WAVEFRONTS)] for row in rows]
    return [([*conflicts, copied - 4 * copies], wavefronts) for *conflicts, copied, copies, wavefronts in counts]


def test_swizzled_steps_have_no_bank_conflicts_on_the_device(gpu):
    """One test for all, since ncu takes long to start.  A step that TMA feeds and that stores from registers may have no wavefronts."""
    if not shutil.which("ncu"):
        pytest.skip("ncu is not installed")
    (control, wavefronts), *counts = profiled([UNSWIZZLED, *SWIZZLED])
    assert wavefronts > 0 and control[0] > wavefronts / 2, f"{' '.join(UNSWIZZLED)}: {control} of {wavefronts} wavefronts"
    found = {" ".join(case): conflicts for case, (conflicts, _) in zip(SWIZZLED, counts, strict=True) if any(conflicts)}
    assert not found, f"conflicts of ldmatrix, stmatrix and wgmma, and wavefronts of cp.async beyond its own: {found}"
