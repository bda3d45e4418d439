"""Counters: kernels whose sectors, wavefronts, branches and operations can be worked out by hand, and a slow count of the rules beside the
fast one."""

import types
from pathlib import Path

import numpy as np
import pytest
from emulated import HEADER, compile_cuda, cuda, line_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cudalab import registry
from cudalab.check import draw, generator
from cudalab.emulator import Emulator
from cudalab.emulator.counters import Counters, class_of, derived, in_pairs, sectors_asked, wavefronts
from cudalab.emulator.memory import Place
from cudalab.emulator.program import Instruction, parts_of
from cudalab.spec import TensorMap

LANE = np.arange(32)


def counted(text: str, grid, block, *args, **options):
    """The counters of a kernel k."""
    counters = Counters()
    cuda(text, grid, block, *args, emulator=Emulator(observers=(counters,)), **options)
    return counters


# Global memory

GATHER = """
extern "C" __global__ void k(const TYPE* from, TYPE* to, int stride, int shift) {
    to[threadIdx.x] = from[threadIdx.x * stride + shift];
}"""


@pytest.mark.parametrize("kind, size, stride, shift, threads, requests, sectors", [
    ("float", 4, 1, 0, 32, 1, 4),
    ("float", 4, 1, 1, 32, 1, 5),  # begins in the middle of a sector
    ("float", 4, 2, 0, 32, 1, 8),
    ("float", 4, 8, 0, 32, 1, 32),
    ("float", 4, 64, 0, 32, 1, 32),
    ("float", 4, 0, 5, 64, 2, 2),  # all read the same
    ("float", 4, 1, 0, 10, 1, 2),
    ("float", 4, 1, 0, 48, 2, 6),  # a warp and a half
    ("unsigned char", 1, 1, 0, 32, 1, 1),
    ("double", 8, 1, 0, 32, 1, 8),
    ("float4", 16, 1, 0, 32, 1, 16),
    ("float4", 16, 2, 0, 32, 1, 32),
])
def test_sectors_a_request(kind, size, stride, shift, threads, requests, sectors):
    source, target = np.zeros(size * 5000, np.uint8), np.zeros(size * 64, np.uint8)
    total = counted(GATHER.replace("TYPE", kind), 1, threads, source, target, np.int32(stride), np.int32(shift)).total()
    assert (total["global_load_requests"], total["global_load_sectors"]) == (requests, sectors)
    assert total["global_load_bytes"] == threads * size == total["global_store_bytes"]
    assert total["global_store_sectors"] == -(-threads * size // 32)


def test_bytes_of_dram_count_every_sector_once():
    text = """
extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x ^ 1] + x[threadIdx.x / 8]; }"""
    counters = counted(text, 4, 64, np.zeros(64, np.float32), np.zeros(64, np.float32))
    total = counters.total()
    assert total["dram_bytes"] == 64 * 4 * 2  # four blocks read and write the same
    assert total["global_load_sectors"] == 4 * (8 + 8 + 2)
    assert derived(total)["flops"] == 4 * 64 * 2 and derived(total)["intensity_dram"] == 1.0
    counters.reset()
    assert counters.total()["dram_bytes"] == 0 == counters.total()["warp_instructions"]


# Shared memory

SHARED = """
__shared__ __align__(16) unsigned char s[65536 / 2];
extern "C" __global__ void k(const int* where, unsigned* out) {
    TYPE* p = reinterpret_cast<TYPE*>(s);
    int at = where[threadIdx.x];
    TYPE zero = {};
    p[at] = zero;
    __syncthreads();
    TYPE got = *reinterpret_cast<volatile TYPE*>(p + at);
    out[threadIdx.x] = (unsigned)got;
}"""
VECTOR = SHARED.replace("TYPE got = *reinterpret_cast<volatile TYPE*>(p + at);", "TYPE got = p[at];").replace(
    "(unsigned)got", "(unsigned)got.x + (unsigned)got.y")


@pytest.mark.parametrize("kind, where, load, store", [
    # (wavefronts, ideal) worked out by hand; `where` counts elements of the type
    ("unsigned", LANE, (1, 1), (1, 1)),
    ("unsigned", 0 * LANE, (1, 1), (1, 1)),
    ("unsigned", 2 * LANE, (2, 1), (2, 1)),
    ("unsigned", 32 * LANE, (32, 1), (32, 1)),
    ("unsigned", 33 * LANE, (1, 1), (1, 1)),
    ("unsigned", LANE // 4 * 32, (8, 1), (8, 1)),  # eight words of one bank, each read by four lanes
    ("unsigned char", LANE, (1, 1), (1, 1)),
    ("uint2", LANE, (2, 2), (2, 2)),
    ("uint2", 2 * LANE, (4, 2), (4, 2)),
    ("uint2", 16 * LANE, (32, 2), (32, 2)),
    ("uint2", LANE // 2, (1, 1), (2, 2)),  # pairs read the same: the halves go together; stores never do
    ("uint2", LANE % 16, (2, 2), (2, 2)),
    ("uint4", LANE, (4, 4), (4, 4)),
    ("uint4", 8 * LANE, (32, 4), (32, 4)),  # the 32 wavefronts that ncu shows for such a layout, 28 of them conflicts
    ("uint4", LANE % 8, (4, 4), (4, 4)),  # rows of eight lanes: 4 on an H200
    ("uint4", LANE // 8, (2, 2), (4, 4)),  # the other operand of such rows: lanes i and i^1 read the same
    ("uint4", LANE // 16 * 4 + LANE % 2 + LANE % 16 // 4 % 2 * 2, (2, 2), (4, 4)),  # i and i^2 read the same: 2 on an H200
    ("uint4", 0 * LANE, (2, 2), (4, 4)),
])
def test_wavefronts(kind, where, load, store):
    text = (VECTOR if kind.startswith("uint") and kind != "unsigned" else SHARED).replace("TYPE", kind)
    total = counted(text, 1, 32, where.astype(np.int32), np.zeros(32, np.uint32)).total()
    assert (total["shared_load_requests"], total["shared_store_requests"]) == (1, 1)
    assert (total["shared_load_wavefronts"], total["shared_load_ideal"]) == load
    assert (total["shared_store_wavefronts"], total["shared_store_ideal"]) == store
    assert derived(total)["shared_excess"] == load[0] - load[1] + store[0] - store[1]


def by_hand(units, size, load):
    """Passes and wavefronts of one warp, lane by lane.  units: the unit of `size` bytes that each lane wants, None for none."""
    def paired(step):
        return all(units[i] is None or units[i ^ step] in (None, units[i]) for i in range(32))
    groups = {4: 1, 8: 2, 16: 4}[size]
    if load and groups > 1 and (paired(1) or paired(2)):
        groups //= 2
    passes = waves = 0
    for group in range(groups):
        banks = {}
        for unit in units[group * 32 // groups:(group + 1) * 32 // groups]:
            if unit is not None:
                for word in range(unit * size // 4, (unit + 1) * size // 4):
                    banks.setdefault(word % 32, set()).add(word)
        passes += bool(banks)
        waves += max(map(len, banks.values()), default=0)
    return passes, waves


@settings(max_examples=200, deadline=None)
@given(st.sampled_from((4, 8, 16)), st.booleans(), st.sampled_from((1, 2, 4)),
       st.lists(st.one_of(st.none(), st.integers(0, 200)), min_size=64, max_size=64))
def test_the_fast_count_is_the_slow_one(size, load, repeat, wanted):
    wanted = [wanted[i // repeat] for i in range(64)]  # runs of equal addresses make pairs
    lanes = np.array([i for i, unit in enumerate(wanted) if unit is not None])
    if not len(lanes):
        return
    chunk = types.SimpleNamespace(count=64, warps=2)
    place = Place("shared", np.array([u * size for u in wanted if u is not None]), 0, None if len(lanes) == 64 else lanes)
    there = [w for w in (wanted[:32], wanted[32:]) if any(u is not None for u in w)]
    expected = np.sum([by_hand(w, size, load) for w in there], axis=0)
    assert wavefronts(chunk, place, 0, size, load) == (len(there), *expected)
    sectors = sum(len({u * size // 32 for u in w if u is not None}) for w in there)
    assert sectors_asked(chunk, place, 0, size) == (len(there), sectors)


def test_pairs_are_judged_by_active_lanes():
    row = LANE // 2
    assert in_pairs(row[None])[0] and not in_pairs(LANE[None])[0]
    assert in_pairs(np.where(LANE % 2, -1, LANE)[None])[0], "partners that are not there do not count"


# Instructions, branches, barriers, atomics

BRANCHES = """
extern "C" __global__ void k(unsigned* out) {
    __shared__ unsigned s;
    unsigned v = threadIdx.x;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    atomicAdd(&s, 1u);
    if (blockIdx.x & 1) out[threadIdx.x] = 3;
    atomicMax(&out[64 + v / 4], v);
    __syncthreads();
    out[v] = s;
}"""


def test_branches_barriers_and_atomics():
    total = counted(BRANCHES, 2, 64, np.zeros(128, np.uint32)).total()
    assert total["barriers"] == 2 * 2 * 2 and total["barrier_openings"] == 2 * 2
    assert total["atomics"] == 2 * (64 + 64)
    assert total["atomic_collisions"] == 2 * 2 * (31 + 24)
    assert total["branches"] >= 2 * 2 and total["divergent_branches"] <= 2, "only the first warp of a block can part"


DIVERGED = HEADER.format(target="sm_90a") + """
.visible .entry k(.param .u64 p) {
    .reg .b64 %a; .reg .b32 %t, %b; .reg .pred %p; .reg .f32 %f;
    ld.param.u64 %a, [p];
    mov.u32 %t, %tid.x;
    and.b32 %b, %t, 1;
    setp.eq.u32 %p, %b, 0;
    mov.f32 %f, 0f3F800000;
    @%p bra EVEN;
    add.f32 %f, %f, %f;
    add.f32 %f, %f, %f;
EVEN:
    @%p fma.rn.f32 %f, %f, %f, %f;
    mad.wide.u32 %a, %t, 4, %a;
    st.global.f32 [%a], %f;
    ret;
}"""


def test_divergence_and_guards_are_counted_by_lane():
    counters = Counters()
    (out,) = Emulator(observers=(counters,)).run_ptx(DIVERGED, "k", 1, 48, (np.zeros(48, np.float32),))
    assert np.array_equal(out, np.where(np.arange(48) % 2, 4, 2))
    total = counters.total()
    assert (total["branches"], total["divergent_branches"]) == (2, 2)
    assert total["flops_f32"] == 2 * 24 + 2 * 24  # two additions in odd lanes, a multiply-add in even ones
    assert counters.mix()["FP32"] == dict(threads=2 * 24 + 24, warps=2 * 2 + 2)
    lines = counters.lines(by_ptx=True)
    fma = lines["", line_of(DIVERGED, "fma")]
    assert (fma["thread_instructions"], fma["warp_instructions"], fma["flops_f32"]) == (24, 2, 48)
    assert lines["", line_of(DIVERGED, "bra EVEN")]["divergent_branches"] == 2
    assert sum(line["thread_instructions"] for line in lines.values()) == total["thread_instructions"]


def test_counts_stand_at_the_line_of_the_source():
    text = """
__device__ float twice(const float* x) { return 2 * *x; }
extern "C" __global__ void k(const float* x, float* y) {
    int i = threadIdx.x * 2;
    float v = twice(x + i);
    y[threadIdx.x] = v;
}"""
    counters = counted(text, 1, 32, np.zeros(64, np.float32), np.zeros(32, np.float32))
    lines = {line: counts for (file, line), counts in counters.lines().items() if file.endswith("kernel.cu")}
    assert lines[line_of(text, r"twice\(x \+ i\)")]["global_load_sectors"] == 8, "what was inlined counts where it was called"
    assert lines[line_of(text, r"= v;")]["global_store_sectors"] == 4
    total = counters.total()
    for name in ("warp_instructions", "global_load_requests", "flops_f32"):
        assert sum(counts[name] for counts in counters.lines().values()) == total[name]


@pytest.mark.parametrize("mnemonic, expected", [
    ("ld.global.nc.v4.f32", "load global"), ("st.shared::cta.b32", "store shared"), ("ld.f32", "load generic"), ("fma.rn.f32", "FP32"),
    ("mul.wide.u32", "integer"), ("add.f16x2", "FP16"), ("fma.rn.f64", "FP64"), ("setp.lt.s32", "compare, select"), ("bar.sync", "barrier"),
    ("mbarrier.try_wait.parity.shared.b64", "barrier"), ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", "tensor core"),
    ("cp.async.cg.shared.global", "asynchronous copy"), ("ex2.approx.ftz.f32", "special function"), ("div.s32", "integer"),
    ("red.global.add.u32", "atomic"), ("prmt.b32", "logic")])
def test_classes(mnemonic, expected):
    parts, kinds = parts_of(mnemonic)
    assert class_of(Instruction(mnemonic, (), None, False, 1, None, mnemonic, parts, kinds)) == expected


# Steps

@pytest.mark.parametrize("number", (2, 5, 9))
def test_a_step_of_the_ladder(number):
    """At whole tiles a product is 2 M N K operations, and watching it changes no bit of the result."""
    step = registry.resolve_step(f"step{number}")
    problem = step.op.problem(dict(M=128, N=128, K=32))
    plan, inputs = step.plan(problem, step.config(problem)), draw(step.op, problem, "normal", generator(1))
    counters = Counters()
    watched = Emulator(observers=(counters,)).run(plan, inputs)
    assert np.array_equal(watched["C"], Emulator().run(plan, inputs)["C"])
    total = counters.total()
    assert total["flops_f32"] == step.op.flops(problem)
    assert total["dram_bytes"] == step.op.bytes(problem)
    assert total["global_store_bytes"] == 4 * problem.M * problem.N
    if number == 2:  # a warp has 32 columns of one row: a word of A, four sectors of B, for each of its K steps
        warps = problem.M * problem.N // 32
        assert total["global_load_requests"] == 2 * problem.K * warps
        assert total["global_load_sectors"] == (1 + 4) * problem.K * warps
    if number == 9:  # no bank conflicts; A's 4-byte copies bring eight floats of four rows to a warp, three lines beyond the first
        assert total["shared_load_wavefronts"] == total["shared_load_ideal"]
        assert derived(total)["shared_excess"] == 3 * problem.M * problem.K // 32


def test_progress_is_told_block_by_block():
    ticks = []
    emulator = Emulator(lanes=64)
    emulator.progress = lambda *what: ticks.append(what)
    emulator.run_ptx(compile_cuda('extern "C" __global__ void k(float* x) { x[blockIdx.x] = 1; }'), "k", 5, 32, (np.zeros(5, np.float32),))
    assert ticks == [(0, 5, "k"), (2, 5, "k"), (4, 5, "k"), (5, 5, "k")]


# Tensor cores

def test_a_tensor_core_kernel():
    """mma_tile.cu says that ldmatrix meets no bank twice; at whole tiles its products are 2 M N K operations."""
    text = (Path(__file__).with_name("kernels") / "mma_tile.cu").read_text()
    m, n, k = 64, 128, 96
    args = np.zeros((m, k), np.uint16), np.zeros((k, n), np.uint16), np.zeros((m, n), np.float32), *map(np.int32, (m, n, k))
    tangled = text.replace("(unit ^ (units == 8 ? row & 7 : row >> 1 & 3))", "unit")
    assert tangled != text
    excess = []
    for source in (text, tangled):
        counters = counted(source, (n // 64, m // 64), 128, *args)
        total = counters.total()
        assert total["flops_tensor"] == 2 * m * n * k and total["flops_f32"] == 0
        lines = [counts for counts in counters.lines().values() if counts["shared_load_requests"]]
        excess.append(sum(counts["shared_load_wavefronts"] - counts["shared_load_ideal"] for counts in lines))
        assert all(counts["shared_load_ideal"] == 4 * counts["shared_load_requests"] for counts in lines), "four matrices each"
        assert total["global_load_bytes"] == 2 * (m * k * 2 + k * n), "A is read by both blocks, columns of B by one each"
    assert excess[0] == 0 < excess[1]


def test_a_kernel_of_tma_and_wgmma():
    """What no warp requests is counted by the bytes that move: tiles by TMA, operands by wgmma."""
    folder = Path(__file__).with_name("kernels")
    m, n, k = 128, 128, 192
    maps = TensorMap("A", "bf16", (k, m), (64, 128), swizzle=128), TensorMap("B", "bf16", (k, n), (64, 64), swizzle=128)
    operands = dict(A=np.zeros((m, k), np.uint16), B=np.zeros((n, k), np.uint16))
    counters = Counters()
    Emulator(observers=(counters,)).run_ptx(
        compile_cuda((folder / "hopper.cuh").read_text() + (folder / "hopper_tile.cu").read_text()), "k", (n // 64, m // 128), 384,
        (*maps, np.zeros((m, n), np.float32), *map(np.int32, (m, n, k))), smem=3 * (128 + 64) * 64 * 2, buffers=operands)
    total = counters.total()
    products = 2 * m * n * k // (2 * 64 * 64 * 16)  # m64n64k16
    moved = 2 * (m * k * (n // 64) + n * k * (m // 128))
    assert total["flops_tensor"] == 2 * m * n * k
    assert total["async_global_bytes"] == moved == 32 * total["async_global_sectors"]
    assert total["async_shared_bytes"] == moved + products * 2 * (64 * 16 + 64 * 16)
    assert total["dram_bytes"] == 2 * (m * k + n * k) + 4 * m * n
