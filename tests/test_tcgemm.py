"""Part 6: what the shapes of the ladders' own tests do not reach: blocks that stay, turns, clusters, pieces of K, empty pieces; bank
conflicts; planted bugs; what refuses a shape; which step matmul takes."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from cudalab import counted, products, registry
from cudalab.build import build, verify
from cudalab.check import check_step, draw, generator
from cudalab.emulator import Emulator, KernelFault
from cudalab.emulator.sanitizer import EndedBlock, MissingProxyFence, Race
from cudalab.errors import BadConfig, BadShape, LabError, UnknownName
from cudalab.expressions import cdiv
from cudalab.parts.p06_tcgemm import tcgemm
from cudalab.spec import KERNELS
from planted import planted

FOUR_TILES = dict(M=264, N=72, K=144)


def config(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (word.split("=") for word in text.split())}


# more tiles than workers, more slices than two rounds of the stages
@pytest.mark.parametrize("step, kind, tunables, delivery", [
    ("tcgemm/10", "bf16 nt", "BN=64 STAGES=3 WORKERS=4 RASTER=1", "eager"),
    ("tcgemm/11", "f16 nt", "BN=64 STAGES=3 WORKERS=2 CLUSTER_N=2 CLUSTER_M=1 SKEW=2 RASTER=2", "lazy"),
    ("tcgemm/11", "tf32 nt", "BN=64 STAGES=3 WORKERS=2 CLUSTER_M=2 PINGPONG=1 STORES=1", "lazy"),
    ("tcgemm/11", "bf16 nn", "BN=128 STAGES=3 WORKERS=2 CLUSTER_M=2", "eager"),
    ("tcgemm/12", "bf16 nt", "BM=64 BN=32 CONSUMERS=1 SPLIT=4 STAGES=2", "eager"),
    ("tcgemm/13", "bf16 nn", "BM=64 BN=256 STAGES=2 WORKERS=2", "lazy"),
    ("fp8gemm/1", "fp8_e4m3 fast", "BN=64 STAGES=3 WORKERS=1 PINGPONG=1", "lazy"),
    ("fp8gemm/3", "fp8_e4m3 block", "BM=256 BN=64 STAGES=2 WORKERS=2 CLUSTER_M=2", "lazy")])
def test_blocks_that_stay_and_share(step, kind, tunables, delivery):
    step = registry.resolve_step(step)
    sizes = dict(M=72, N=24, K=1040) if "SPLIT" in tunables else FOUR_TILES | (dict(M=263, K=272) if kind.startswith("fp8") else {})
    problem = step.op.problem(sizes, *kind.split())
    for verdict in check_step(step, problem, Emulator(sanitize=True, delivery=delivery), overrides=config(tunables)):
        assert verdict, verdict.reason


# what the shapes of the steps' own tests leave out: of fp8, whose slices are few, and of pieces of K
@pytest.mark.parametrize("step, kind, tunables, delivery", [
    *((f"tcgemm/{number}", "fp8_e4m3 nt", tunables, "eager" if number % 2 else "lazy") for number, tunables in (
        (4, "BM=64 BN=64 WM=32"), (6, "BN=64"), (7, "BN=64"), (8, "BN=64"), (9, "BN=64 CLUSTER_N=2"), (10, "BN=64"), (11, "BN=64"),
        (12, "BM=64 BN=32 CONSUMERS=1 SPLIT=2"))),
    ("tcgemm/12", "bf16 nn", "BM=64 BN=64 CONSUMERS=1 SPLIT=2", "eager"),
    ("fp8gemm/2", "fp8_e4m3 fast", "BM=64 BN=32 CONSUMERS=1 SPLIT=2", "eager"),
    ("fp8gemm/2", "fp8_e4m3 fast", "BM=128 BN=24 CONSUMERS=2 SPLIT=1", "lazy"),
    ("fp8gemm/3", "fp8_e4m3 block", "BM=128 BN=64", "eager"),
    ("fp8gemm/3", "fp8_e4m3 promoted", "BM=128 BN=64 CLUSTER_N=2", "lazy")])
def test_stages_are_filled_a_third_time(step, kind, tunables, delivery):
    step, overrides = registry.resolve_step(step), config(tunables) | dict(STAGES=2)
    depth = 128 if kind.startswith("fp8") else 64  # of a slice
    pieces = overrides.get("SPLIT", 1)
    problem = step.op.problem(dict(M=72, N=24, K=depth * (5 * pieces - 1) + 16), *kind.split())
    assert cdiv(problem.K, depth) // pieces > 2 * overrides["STAGES"]
    for verdict in check_step(step, problem, Emulator(sanitize=True, delivery=delivery), overrides=overrides):
        assert verdict, verdict.reason


def test_scales_past_the_last_row_are_not_read():
    """The second block of a cluster has no row of its own, and M is no multiple of the four scales that a copy begins at."""
    step = registry.resolve_step("fp8gemm/3")
    problem = step.op.problem(dict(M=67, N=8, K=384), "fp8_e4m3", "block")
    assert all(check_step(step, problem, Emulator(sanitize=True), overrides=dict(CLUSTER_M=2)))


@pytest.mark.parametrize("step, kind", [("tcgemm/12", "bf16 nt"), ("fp8gemm/2", "fp8_e4m3 fast")])
def test_a_piece_of_k_may_be_empty(step, kind):
    """One slice of K, two blocks: one has nothing to multiply, and adds up its columns all the same."""
    step = registry.resolve_step(step)
    problem = step.op.problem(dict(M=8, N=24, K=16), *kind.split())
    assert all(check_step(step, problem, Emulator(sanitize=True), overrides=dict(SPLIT=2)))


@pytest.mark.parametrize("step, kind, columns", [("tcgemm/12", "f16 nt", 72), ("tcgemm/12", "tf32 nt", 88),
                                                 ("fp8gemm/2", "fp8_e4m3 fast", 104), ("tcgemm/12", "bf16 nt", 120)])
def test_tiles_of_any_eight_columns(step, kind, columns):
    """Widths that fill the multiprocessors at some N; groups of columns that four lanes turn, and groups left over."""
    step = registry.resolve_step(step)
    problem = step.op.problem(dict(M=72, N=columns + 8, K=144), *kind.split())
    overrides = dict(BM=64, SPLIT=1, CONSUMERS=1, BN=columns, STAGES=2)
    assert all(check_step(step, problem, Emulator(sanitize=True), overrides=overrides))


def test_the_widths_of_small_products_have_an_instruction():
    widths = {int(n) for n in re.findall(r"^WGMMA\((\d+),", (KERNELS / "common" / "wgmma.cuh").read_text(), re.MULTILINE)}
    split_k = registry.resolve_step("tcgemm/12")
    for M in (64, 128):
        for N in range(8, 20000, 8):
            assert split_k.config(tcgemm.problem(dict(M=M, N=N, K=64))).BN in widths


@pytest.mark.parametrize("step, kind, conflicts", [
    ("tcgemm/2", "bf16 nt", True), ("tcgemm/3", "bf16 nt", False), ("tcgemm/4", "bf16 nn", False), ("tcgemm/5", "tf32 nt", False),
    ("tcgemm/11", "bf16 nt", False), ("tcgemm/11", "tf32 nt", False), ("fp8gemm/3", "fp8_e4m3 block", False)])
def test_bank_conflicts(step, kind, conflicts):
    """The obvious layout has them, every one since has none, neither in what ldmatrix reads nor in what stmatrix writes."""
    step = registry.resolve_step(step)
    total = counted.count_plan(step.plan(step.op.problem(dict(M=40, N=72, K=80), *kind.split())), Emulator())
    excess = sum(total[f"shared_{way}_wavefronts"] - total[f"shared_{way}_ideal"] for way in ("load", "store"))
    assert total["shared_store_requests"] > 0 and (excess > 0) == conflicts


PLANTED = [
    ("no proxy fence before TMA reads C", "tcgemm/11", "                    fence_proxy_async();\n", "",
     MissingProxyFence, "without fence"),
    ("a chunk that its store still reads", "tcgemm/11", "tma_wait_read<STORES - 1>();", "tma_wait_read<4>();",
     KernelFault, "still to read"),
    ("a chunk that is not complete", "tcgemm/11", "named_barrier_wait(4 + consumer, 128);  // the chunk is complete for TMA", "",
     KernelFault, "race|uninitialised"),
    ("no proxy fence between copies and wgmma", "tcgemm/6", "        fence_proxy_async();  // what", "        // what",
     MissingProxyFence, "without fence"),
    ("a stage filled before it was read", "tcgemm/7", "        __syncthreads();  // everyone's products", "        // everyone's products",
     KernelFault, "race|still to read"),
    ("a stage released while its products run", "tcgemm/8", "wgmma_wait<1>();", "wgmma_wait<2>();", KernelFault, "race|still to read"),
    ("an empty barrier that counts too few", "tcgemm/9", "mbarrier_init(empty(stage), CONSUMERS * (CLUSTER_M + CLUSTER_N - 1));",
     "mbarrier_init(empty(stage), CONSUMERS);", KernelFault, "race|still to read|arriv"),
    ("a signal to a barrier that may not be made yet", "tcgemm/9", "cluster_arrive(), cluster_wait();  // no block",
     "__syncthreads();  // no block", Race, "race"),
    ("sums added before they have come", "tcgemm/12", "            mbarrier_wait_cluster(arrived, 0);", "            ",
     KernelFault, "race|uninitialised|still"),
    ("no proxy fence between zeros and copies", "fp8gemm/3", "    fence_proxy_async();  // copies write there\n", "",
     MissingProxyFence, "TMA writes to .* without fence"),
    ("no proxy fence between a scale by hand and copies", "fp8gemm/3", "fence_proxy_async();  // later", ";  // later",
     MissingProxyFence, "TMA writes to .* without fence"),
    *(("sums sent to a barrier that may not be made yet", step, "            cluster_wait();  // the others", "            // the others",
       Race, "use of an mbarrier and the write by .*mbarrier.init.* a barrier of the cluster between")
      for step in ("tcgemm/12", "fp8gemm/2")),
    *(("blocks that end while others signal them", step, "cluster_arrive(), cluster_wait();  // nobody's barriers go", ";  // barriers go",
       EndedBlock, "too early: block .*mbarrier.arrive.*; a barrier of the cluster, or")
      for step in ("tcgemm/9", "tcgemm/10", "tcgemm/11", "fp8gemm/1", "fp8gemm/3"))]


@pytest.mark.parametrize("name, old, new, fault, says", [p[1:] for p in PLANTED],
                         ids=[f"{p[1]}-{p[0]}".replace("/", "_").replace(" ", "_") for p in PLANTED])
def test_planted_bugs_are_found(name, old, new, fault, says, tmp_path):
    step = planted(name, old, new, tmp_path)
    overrides = {"tcgemm/11": "BN=128 STAGES=3 STORES=1 WORKERS=2 CLUSTER_M=2", "tcgemm/12": "BM=64 CONSUMERS=1 BN=32 SPLIT=2 STAGES=3",
                 "fp8gemm/1": "STAGES=2 CLUSTER_M=2", "fp8gemm/2": "BM=64 CONSUMERS=1 BN=32 SPLIT=2 STAGES=3",
                 "fp8gemm/3": "BM=64 STAGES=2 WORKERS=2 CLUSTER_M=2"}
    shape, kind = (dict(M=71, N=136, K=272), ("fp8_e4m3", "block")) if name == "fp8gemm/3" else (dict(M=72, N=136, K=400), ())
    problem = step.op.problem(shape, *kind)
    plan = step.plan(problem, step.config(problem, config(overrides.get(name, "STAGES=2"))))
    with pytest.raises(fault, match=says):
        Emulator(sanitize=True).run(plan, draw(step.op, problem, "normal", generator(0)))


@pytest.mark.parametrize("name", [*(f"tcgemm/{n}" for n in range(6, 14)), *(f"fp8gemm/{n}" for n in (1, 2, 3))])
def test_a_single_stage_is_refused(name):
    """Its consumers would wait for a slice that has nowhere to land, on a device for ever."""
    step = registry.resolve_step(name)
    problem = step.op.problem(dict(M=64, N=64, K=400), *step.kinds()[0])
    with pytest.raises(BadConfig, match="STAGES.*at least 2"):
        verify(build(plan := step.plan(problem, step.config(problem, dict(STAGES=1))), "sm_90a"), plan)


@pytest.mark.parametrize("sizes, kind, says", [(dict(M=8, N=8, K=12), ("bf16", "nt"), "K=12: .*pad K to a multiple of 8"),
                                               (dict(M=8, N=12, K=16), ("f16", "nn"), "N=12: .*pad N to a multiple of 8"),
                                               (dict(M=8, N=8, K=24), ("fp8_e4m3", "nt"), "K=24: .*pad K to a multiple of 16"),
                                               (dict(M=8, N=8, K=16), ("tf32", "nn"), "take --variant nt")])
def test_shapes_that_do_not_fit_are_refused(sizes, kind, says):
    for step in (step for step in tcgemm.steps if step.kinds(kind[:1])):
        with pytest.raises(BadShape, match=says):
            step.plan(tcgemm.problem(sizes, *kind))


def test_a_type_that_is_not_there():
    with pytest.raises(UnknownName, match="int8"):
        tcgemm.problem(dict(M=8, N=8, K=16), "int8")


# -- matmul

LARGE, NARROW, SIZES = (4096, 4096, 4096), (64, 4096, 7168), (200, 136, 272)


@pytest.mark.parametrize("name, sizes, kind, sm, step", [
    ("tcgemm", LARGE, ("bf16", "nt"), 90, "tcgemm/11_overlapped"), ("tcgemm", NARROW, ("bf16", "nt"), 90, "tcgemm/12_split_k"),
    ("tcgemm", LARGE, ("f16", "nn"), 89, "tcgemm/05_fragments_ahead"), ("sgemm", LARGE, ("f32", None), 80, "sgemm/12_stream_k"),
    ("fp8gemm", LARGE, ("fp8_e4m3", "fast"), 90, "fp8gemm/01_fast"),
    ("fp8gemm", NARROW, ("fp8_e4m3", "fast"), 90, "fp8gemm/02_fast_split_k"),
    ("fp8gemm", NARROW, ("fp8_e4m3", "block"), 90, "fp8gemm/03_promoted")])
def test_matmul_takes_the_step_for_the_shape(name, sizes, kind, sm, step):
    problem = registry.ops()[name].problem(dict(zip("MNK", sizes)), *kind)
    assert products.choose(problem, name, sm).path == step


def test_matmul_says_what_no_step_takes():
    with pytest.raises(LabError, match="needs compute capability 9.0"):
        products.choose(registry.ops()["fp8gemm"].problem(dict(M=8, N=8, K=16), None, "block"), "fp8gemm", 100)
    with pytest.raises(LabError, match="needs compute capability 8.9"):
        products.choose(tcgemm.problem(dict(M=8, N=8, K=16), "fp8_e4m3"), "tcgemm", 80)


@pytest.mark.parametrize("dtype, turned, scales, accumulate, found", [
    ("f32", False, None, "promoted", ("sgemm", None)), ("bf16", False, None, "promoted", ("tcgemm", "nn")),
    ("bf16", True, None, "promoted", ("tcgemm", "nt")), ("tf32", False, None, "promoted", ("tcgemm", "nt")),
    ("fp8_e4m3", True, ((1,), (1,)), "fast", ("fp8gemm", "fast")), ("fp8_e4m3", True, ((1,), (1,)), "promoted", ("fp8gemm", "promoted")),
    ("fp8_e4m3", True, ((3, 200), (2, 3)), "promoted", ("fp8gemm", "block"))])
def test_matmul_reads_the_kind_from_its_arrays(dtype, turned, scales, accumulate, found):
    b = np.zeros((136, 272), "f4").T if turned else np.zeros((272, 136), "f4")
    scales = scales and tuple(np.ones(shape, "f4") for shape in scales)
    assert products.kind(dtype, b, scales, accumulate, SIZES) == found


@pytest.mark.parametrize("scales", [(), (np.ones(1, "f4"),), (np.ones(1, "f4"),) * 3, np.ones(1, "f4"), (np.ones(1, "f4"), 1.0), 2.0],
                         ids=str)
def test_matmul_refuses_scales_that_are_no_pair(scales):
    with pytest.raises(LabError, match="a pair of arrays"):
        products.kind("fp8_e4m3", np.zeros((16, 16), "u1"), scales, "fast", (16, 16, 16))


@pytest.mark.parametrize("dtype, scales, accumulate, says", [
    ("bf16", ((1,), (1,)), "promoted", "scales are for fp8"), ("fp8_e4m3", None, "promoted", "needs scales"),
    ("fp8_e4m3", ((2, 200), (2, 3)), "promoted", re.escape("(3, 200) and (2, 3)")),
    *((dtype, scales, "slow", "'fast' or 'promoted', not 'slow'") for dtype, scales in (
        ("fp8_e4m3", ((1,), (1,))), ("fp8_e4m3", ((3, 200), (2, 3))), ("fp8_e4m3", None), ("bf16", None), ("f32", None)))])
def test_matmul_refuses_scales_that_do_not_fit(dtype, scales, accumulate, says):
    with pytest.raises(LabError, match=says):
        products.kind(dtype, np.zeros((272, 136), "f4"), scales and tuple(np.ones(shape, "f4") for shape in scales), accumulate, SIZES)


def test_a_prepared_launch_encodes_a_tensor_map_once_an_address():
    """Arguments are filled for every call; a map is encoded when its address is new."""
    import ctypes
    pytest.importorskip("cuda.bindings.driver")
    from cudalab.prepared import Prepared
    encoded, launched = [], []
    step = registry.resolve_step("tcgemm/12")
    launch, = step.plan(tcgemm.problem(dict(M=64, N=64, K=64))).launches

    def encode(tensor_map, array, label):
        encoded.append((tensor_map.name, array.data.ptr))
        return ctypes.create_string_buffer(array.data.ptr.to_bytes(8, "little"), 128)

    def run(config, function, addresses, extra):
        pointers = ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p))
        launched.append([ctypes.c_uint64.from_address(pointers[i]).value for i in range(3)])
        assert ctypes.c_int32.from_address(pointers[5]).value == 64  # K
        return (0,)
    gpu = SimpleNamespace(_configured=lambda *_: (SimpleNamespace(), None), _encode=encode, _check=lambda status, label: None,
                          _driver=SimpleNamespace(CUstream=int, cuLaunchKernelEx=run))
    prepared = Prepared(gpu, None, None, launch, "tcgemm/12")
    for a in (1 << 20, 2 << 20, 1 << 20):
        prepared.enqueue(7, dict(A=a, B=3 << 20, C=4 << 20))
    assert launched == [[a << 20, 3 << 20, 4 << 20] for a in (1, 2, 1)]
    assert encoded == [("A", 1 << 20), ("B", 3 << 20), ("A", 2 << 20)]
