"""Hopper on the emulator: mbarrier, bulk and tensor copies, clusters, distributed shared memory; what it says of wrong kernels."""

import numpy as np
import pytest

import toy
from cudalab.emulator import Deadlock, Emulator, KernelFault, PtxError
from cudalab.errors import BadLaunch
from cudalab.spec import TensorMap, i32
from emulated import compile_cuda
from hopper import BOTH, PRELUDE, run, swizzle

RNG = np.random.default_rng(0)


def words(count=64):
    return np.zeros(count, np.uint32)


# -- mbarrier


def test_a_barrier_counts_arrivals_phase_by_phase():
    out, = run("""
    __shared__ u64 b;
    if (t == 0) {
        init(&b, 3);
        out[0] = test_parity(&b, 1); out[1] = test_parity(&b, 0);                  // fresh: phase 0 is current, parity 1 counts as over
        u64 s = arrive(&b);
        u32 n; asm("{.reg .b64 q; mov.b64 q, %1; mbarrier.pending_count.b64 %0, q;}" : "=r"(n) : "l"(s));
        out[2] = n;                                                             // the state before the arrival
        u64 s2; asm volatile("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %0, [%1], 1;" : "=l"(s2) : "r"(shared(&b)));
        asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(n) : "l"(s2));
        out[3] = n; out[4] = test(&b, s); out[5] = test_parity(&b, 0);
        arrive(&b);
        out[6] = test(&b, s); out[7] = test_parity(&b, 0); out[8] = test_parity(&b, 1);
        asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" :: "r"(shared(&b)));
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" :: "r"(shared(&b)));
        out[9] = test_parity(&b, 1);
        arrive(&b); out[10] = test_parity(&b, 0); arrive(&b); out[11] = test_parity(&b, 0);   // two are left of three
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(shared(&b)));
        init(&b, 1); out[12] = test_parity(&b, 1);
    }""", 1, 32, words())
    assert out[:13].tolist() == [1, 0, 3, 2, 0, 0, 1, 1, 0, 1, 0, 1, 1]


def test_bytes_hold_a_phase_open_and_may_come_first():
    out, = run("""
    __shared__ u64 b;
    if (t == 0) {
        init(&b, 1);
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 48;" :: "r"(shared(&b)));
        expect(&b, 64); out[0] = test_parity(&b, 0);
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" :: "r"(shared(&b))); out[1] = test_parity(&b, 0);
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 32;" :: "r"(shared(&b)));
        arrive(&b); out[2] = test_parity(&b, 1);
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 32;" :: "r"(shared(&b))); out[3] = test_parity(&b, 1);
    }""", 1, 1, words())
    assert out[:4].tolist() == [0, 1, 0, 1]


def test_lanes_that_arrive_together_arrive_one_after_the_other():
    out, = run("""
    __shared__ u64 b;
    if (t == 0) init(&b, 2);
    __syncwarp();
    u64 s = arrive(&b);
    u32 n; asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(n) : "l"(s));
    out[t] = n;
    wait(&b, 1);
    if (t == 0) out[32] = test_parity(&b, 1);""", 1, 32, words())
    assert out[:32].tolist() == [2, 1] * 16 and out[32] == 1  # sixteen phases are over: the current one is even


@BOTH
def test_every_instruction_under_a_guard(delivery):
    source = np.arange(64, dtype="u4")
    _, out = run("""
    __shared__ __align__(128) u32 tile[64]; __shared__ u64 b;
    u64 s = 77; u32 ok;
    asm volatile("{.reg .pred p; setp.eq.u32 p, %0, 3; @p mbarrier.init.shared::cta.b64 [%1], 2;}" :: "r"(t), "r"(shared(&b)) : "memory");
    if (t == 3) fence_init();
    __syncwarp();
    asm volatile("{.reg .pred p; setp.eq.u32 p, %0, 5;"
                 "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], 256;"
                 "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%2], [%3], 256, [%1];}"
                 :: "r"(t), "r"(shared(&b)), "r"(shared(tile)), "l"(in) : "memory");
    asm volatile("{.reg .pred p; setp.eq.u32 p, %1, 6; @p mbarrier.arrive.shared::cta.b64 %0, [%2];}"
                 : "+l"(s) : "r"(t), "r"(shared(&b)) : "memory");
    asm volatile("{.reg .pred p, q; setp.lt.u32 p, %1, 16; setp.ne.u32 q, 0, 0;"
                 "@p mbarrier.try_wait.parity.shared::cta.b64 q, [%2], 0; selp.u32 %0, 1, 0, q;}"
                 : "=r"(ok) : "r"(t), "r"(shared(&b)) : "memory");
    if (t >= 16) wait(&b, 0);
    out[t] = tile[t] + 1000 * ok + (s != 77) * 100000;""", 1, 32, source, words(32), parameters="const u32* in, u32* out",
                 delivery=delivery)
    lane = np.arange(32)
    assert (out == lane + 1000 * (lane < 16) + 100000 * (lane == 6)).all()


@BOTH
@pytest.mark.parametrize("noinc, expected", [(".noinc", 128), ("", 1)])
def test_arrivals_behind_cp_async(noinc, expected, delivery):
    source = RNG.integers(0, 1 << 30, 128).astype("u4")
    _, out = run(f"""
    __shared__ u64 b; __shared__ u32 tile[128];
    if (t == 0) init(&b, {expected});
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(shared(tile + t)), "l"(in + t) : "memory");
    asm volatile("cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [%0];" :: "r"(shared(&b)) : "memory");
    if ({expected} == 1) {{ __syncthreads(); if (t == 0) arrive(&b); }}
    wait(&b, 0);
    out[t] = tile[127 - t];""", 1, 128, source, words(128), parameters="const u32* in, u32* out", delivery=delivery)
    assert (out == source[::-1]).all()


WRONG = {
    "uninitialised": ("__shared__ u64 b; arrive(&b);", "the mbarrier at shared address 0 of block .0, 0, 0. has been used before anybody"),
    "written over": ("__shared__ u64 b; init(&b, 1); *(volatile u64*)&b = 5; arrive(&b);", "has been written over"),
    "twice": ("__shared__ u64 b; init(&b, 1); init(&b, 1);", "initialised where there is one already"),
    "zero": (  # a literal 0 crashes the assembler within NVRTC
        "__shared__ u64 b; init(&b, t);", "an mbarrier for 0 arrivals"),
    "over": ("__shared__ u64 b; init(&b, 1); expect(&b, 16); arrive(&b);",
             r"an arrival more than .* still expects|phase 0: 0 of 1 arrivals outstanding, 16 bytes"),
    "misaligned": ("__shared__ u64 b[2]; init((u64*)((u8*)b + 4), 1);", "not aligned to 8"),
    "parity 2": ("__shared__ u64 b; init(&b, 1); wait(&b, 2);", "a wait for parity 2"),
    "completes": ("__shared__ u64 b; init(&b, 1); u64 s;"
                  'asm volatile("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %0, [%1], 1;" : "=l"(s) : "r"(shared(&b)));',
                  "noComplete completes the phase"),
}


@pytest.mark.parametrize("body, message", WRONG.values(), ids=WRONG)
def test_wrong_uses_of_a_barrier(body, message):
    with pytest.raises(KernelFault, match=message) as error:
        run(body, 1, 1, words())
    assert "kernel.cu:" in str(error.value) and "thread (0, 0, 0)" in str(error.value)


def test_a_deadlock_names_the_barrier_and_its_state():
    with pytest.raises(Deadlock, match=r"1 threads \(first: block \(0, 0, 0\), thread \(3, 0, 0\)\) waits for parity 0 of the mbarrier at "
                                       r"shared address 0 of block \(0, 0, 0\) \(phase 0: 2 of 2 arrivals outstanding, 0 bytes\)"):
        run("__shared__ u64 b; if (t == 0) init(&b, 2); __syncwarp(); if (t == 3) wait(&b, 0);", 1, 32, words())


# -- bulk copies


@BOTH
def test_bulk_copies_there_and_back(delivery):
    source = RNG.integers(0, 1 << 30, 1024).astype("u4")
    _, out = run("""
    __shared__ __align__(128) u32 tile[1024]; __shared__ u64 b;
    if (t == 0) {
        init(&b, 1); fence_init();
        expect(&b, 4096);
        bulk_load(tile, in, 1024, &b); bulk_load(tile + 256, in + 256, 3072, &b);
    }
    __syncthreads();
    wait(&b, 0);
    for (int i = t; i < 1024; i += 32) tile[i] += 1;
    fence_async();
    __syncwarp();
    if (t < 2) {
        bulk_store(out + 512 * t, tile + 512 * t, 2048);
        bulk_commit(); bulk_wait_read<0>();
        tile[512 * t] = 7;       // read already
        bulk_wait<0>();
    }""", 1, 32, source, words(1024), parameters="const u32* in, u32* out", delivery=delivery)
    assert (out == source + 1).all()


def test_lazy_copies_show_who_does_not_wait():
    """What is read before the wait is old, what is overwritten before it has been read is new: lazily, which eagerly nobody sees."""
    source = np.arange(64, dtype="u4")
    body = """
    __shared__ __align__(16) u32 tile[64]; __shared__ u64 b;
    tile[t] = 99; tile[t + 32] = 99;
    if (t == 0) { init(&b, 1); fence_init(); expect(&b, 256); bulk_load(tile, in, 256, &b); }
    __syncwarp();
    u32 early = tile[t];
    wait(&b, 0);
    out[t] = early; out[t + 32] = tile[t];
    __syncwarp();
    if (t == 0) { fence_async(); bulk_store(out + 64, tile, 128); bulk_commit(); tile[0] = 1234; bulk_wait<0>(); }"""
    _, lazy = run(body, 1, 32, source, words(96), parameters="const u32* in, u32* out", sanitize=False)
    _, eager = run(body, 1, 32, source, words(96), parameters="const u32* in, u32* out", sanitize=False, delivery="eager")
    assert (lazy[:32] == 99).all() and (eager[:32] == source[:32]).all()
    assert (lazy[32:64] == source[:32]).all() and lazy[64] == 1234 and eager[64] == 0


@BOTH
@pytest.mark.parametrize("operation, kind, dtype, oracle", [
    ("add", "u32", "u4", np.add), ("min", "s32", "i4", np.minimum), ("max", "u32", "u4", np.maximum), ("xor", "b32", "u4", np.bitwise_xor),
    ("add", "f32", "f4", np.add), ("add", "u64", "u8", np.add), ("add.noftz", "f16", "f2", np.add)])
def test_bulk_reductions(operation, kind, dtype, oracle, delivery):
    old, new = (RNG.integers(-50 if np.dtype(dtype).kind != "u" else 0, 50, 64).astype(dtype) for _ in range(2))
    _, out = run(f"""
    __shared__ __align__(16) u8 tile[512];
    for (int i = 0; i < {new.nbytes}; i++) tile[i] = in[i];
    fence_async();
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}.{kind} [%0], [%1], {new.nbytes};"
                 :: "l"(out), "r"(shared(tile)) : "memory");
    bulk_commit(); bulk_wait<0>();""", 1, 1, new, old, parameters="const u8* in, u8* out", delivery=delivery)
    assert (out == oracle(old, new)).all()


@pytest.mark.parametrize("body, message", [
    ("expect(&b, 24); bulk_load(tile, in, 24, &b);", "a bulk copy of 24 bytes; it must be a multiple of 16"),
    ("expect(&b, 32); bulk_load(tile, in + 2, 32, &b);", "not aligned to 16"),
    ("expect(&b, 512); bulk_load(tile, in, 512, &b);", "a bulk copy reads 512 bytes at byte 0 of argument 1 .256 bytes., out of bounds"),
    ("expect(&b, 256); bulk_load(tile + 48, in, 256, &b);", "a bulk copy writes 256 bytes at shared address 192"),
    ("bulk_store(in, tile, 256); bulk_commit();", "a block ends while a copy has yet to read its shared memory"),
    ("expect(&b, 256); bulk_load(tile, in, 256, &b);", "a block ends while a copy has yet to write its shared memory"),
])
def test_wrong_bulk_copies(body, message):
    with pytest.raises(KernelFault, match=message):
        run("__shared__ __align__(16) u32 tile[64]; __shared__ u64 b; init(&b, 1);" + body, 1, 1, np.zeros(64, "u4"), parameters="u32* in",
            sanitize=False)


# -- tensors


TENSOR = """extern "C" __global__ void k(const __grid_constant__ Map m, u8* out, int x, int y, int z, int bytes) {
    extern __shared__ __align__(1024) u8 tile[];
    __shared__ u64 b;
    int t = threadIdx.x;
    if (t == 0) {
        init(&b, 1); fence_init();
        asm volatile("prefetch.tensormap [%0];" :: "l"(&m));
        expect(&b, bytes);
        LOAD;
    }
    __syncwarp();
    wait(&b, 0);
    for (int i = t; i < bytes; i += 32) out[i] = tile[i];
}"""


def tensor_case(tensor, box, start, *, dtype, width=0, fill="zero", steps=None, delivery="lazy", whole=None):
    """What a load leaves in shared memory, and what it should."""
    rank, size = tensor.ndim, tensor.itemsize
    load = {1: "load_1d(tile, &m, &b, x)", 2: "load_2d(tile, &m, &b, x, y)", 3: "load_3d(tile, &m, &b, x, y, z)"}[rank]
    steps = steps or (1,) * rank
    counts = [-(-b // s) for b, s in zip(box, steps)]
    total = int(np.prod(counts)) * size
    m = TensorMap("T", dtype, tensor.shape[::-1], box, tensor.strides[::-1][1:], steps, width, fill)
    ptx = compile_cuda(PRELUDE + TENSOR.replace("LOAD", load))
    args = m, np.zeros(total, "u1"), *map(i32, (*start, 0, 0)[:3]), i32(total)
    out = Emulator(delivery=delivery, sanitize=True).run_ptx(ptx, "k", 1, 32, args, smem=-(-total // 128) * 128,
                                                             buffers=dict(T=tensor if whole is None else whole))[0]
    expected = np.zeros(total, "u1")
    outside = np.zeros((), tensor.dtype)[()] if fill == "zero" else np.array(2 ** (8 * size - 1) - 1, tensor.dtype)[()]
    for number, place in enumerate(np.ndindex(*counts[::-1])):
        at = [s + p * step for s, p, step in zip(start[::-1], place, steps[::-1])]
        inside = all(0 <= a < n for a, n in zip(at, tensor.shape))
        value = tensor[tuple(at)] if inside else outside
        for byte, datum in enumerate(value.tobytes()):
            expected[swizzle(number * size + byte, width)] = datum
    return out, expected


@BOTH
@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("start", [(0, 0), (8, 3), (-3, -2), (61, 17), (64, 0)])
def test_boxes_of_two_dimensions_by_every_swizzle(width, start, delivery):
    tensor = RNG.integers(0, 1 << 16, (20, 64)).astype("u2")
    out, expected = tensor_case(tensor, ((width or 128) // 2, 16), start, dtype="bf16", width=width, delivery=delivery)
    assert (out == expected).all()


@pytest.mark.parametrize("shape, box, start, dtype, kind, more", [
    ((1000,), (64,), (980,), "u1", "u8", {}),
    ((96,), (32,), (-7,), "f4", "f32", {}),
    ((5, 6, 32), (16, 4, 3), (24, 4, 3), "u2", "f16", dict(width=32)),
    ((5, 6, 32), (32, 4, 3), (0, -1, -1), "f4", "f32", dict(width=128)),
    ((4, 4, 16), (8, 2, 2), (1, 1, 1), "u8", "u64", dict(width=64)),
    ((9, 32), (32, 8), (4, 2), "u2", "bf16", dict(fill="nan")),
    ((20, 32), (16, 12), (0, -2), "u2", "u16", dict(steps=(1, 3))),
])
def test_boxes_of_other_shapes(shape, box, start, dtype, kind, more):
    tensor = RNG.integers(0, 200, shape).astype(dtype)
    out, expected = tensor_case(tensor, box, start, dtype=kind, **more)
    assert (out == expected).all()


def test_rows_further_apart_than_they_are_long():
    tensor = RNG.integers(0, 1 << 16, (20, 64)).astype("u2")
    out, expected = tensor_case(tensor[:, :24], (16, 8), (16, 4), dtype="u16", whole=tensor)
    assert (out == expected).all()


STORE = """extern "C" __global__ void k(const __grid_constant__ Map m, const __grid_constant__ Map from, int x, int y) {
    extern __shared__ __align__(1024) u8 tile[];
    __shared__ u64 b;
    if (threadIdx.x == 0) {
        init(&b, 1); fence_init();
        expect(&b, 2048); load_2d(tile, &from, &b, 0, 0); wait(&b, 0);
        STORE
        bulk_commit(); bulk_wait<0>();
    }
}"""


@BOTH
@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("start", [(0, 0), (-2, 5), (30, -3), (27, 9)])
def test_boxes_stored_and_clipped(width, start, delivery):
    columns = (width or 64) // 2
    box, source = (columns, 1024 // columns), RNG.integers(0, 1 << 16, (1024 // columns, columns)).astype("u2")
    target = np.zeros((16, 64), "u2")
    maps = [TensorMap(name, "u16", array.shape[::-1], (box[0], min(box[1], 256)), swizzle=width)
            for name, array in (("T", target), ("S", source))]
    ptx = compile_cuda(PRELUDE + STORE.replace("STORE", "store_2d(&m, tile, x, y);"))
    out = Emulator(delivery=delivery, sanitize=True).run_ptx(ptx, "k", 1, 1, (*maps, *map(i32, start)), smem=2048,
                                                             buffers=dict(T=target, S=source))[0]
    expected = target.copy()
    for row, column in np.ndindex(*source.shape):
        x, y = start[0] + column, start[1] + row
        if 0 <= x < 64 and 0 <= y < 16:
            expected[y, x] = source[row, column]
    assert (out == expected).all()


@BOTH
def test_boxes_added_to_a_tensor(delivery):
    source, target = (RNG.integers(-9, 9, (32, 16)).astype("f4") for _ in range(2))
    maps = [TensorMap(name, "f32", (16, 32), (16, 32), swizzle=64) for name in "TS"]
    reduce = ('asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" '
              ':: "l"(&m), "r"(shared(tile)), "r"(x), "r"(y) : "memory");')
    ptx = compile_cuda(PRELUDE + STORE.replace("STORE", reduce))
    out = Emulator(delivery=delivery, sanitize=True).run_ptx(ptx, "k", 1, 1, (*maps, i32(0), i32(-4)), smem=2048,
                                                             buffers=dict(T=target, S=source))[0]
    expected = target.copy()
    expected[:28] += source[4:]
    assert (out == expected).all()


def test_a_plan_with_tensor_maps(tmp_path, monkeypatch):
    """The seam of both backends: compiled, verified and run as a step is."""
    monkeypatch.setenv("CUDALAB_DUMPS", str(tmp_path / "dumps"))
    text = PRELUDE + """extern "C" __global__ void copy(const __grid_constant__ Map a, const __grid_constant__ Map c, int N) {
    __shared__ __align__(128) u8 tile[1024]; __shared__ u64 b;
    if (threadIdx.x == 0) {
        init(&b, 1); fence_init();
        for (int x = blockIdx.x * 256, i = 0; x < N; x += gridDim.x * 256, i++) {
            expect(&b, 1024); load_1d(tile, &a, &b, x); wait(&b, i & 1);
            asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];"
                         :: "l"(&c), "r"(shared(tile)), "r"(x) : "memory");
            bulk_commit(); bulk_wait_read<0>();
        }
        bulk_wait<0>();
    }
}"""
    plan = toy.plan(tmp_path, text, args=(TensorMap("A", "f32", (1000,), (256,)), TensorMap("C", "f32", (1000,), (256,)), "N"))
    a = RNG.random(1000, dtype="f4")
    assert (Emulator(sanitize=True).run(plan, dict(A=a))["C"] == a).all()
    with pytest.raises(BadLaunch, match="none of the tensors A C"):
        toy.plan(tmp_path, text, args=(TensorMap("B", "f32", (1000,), (256,)),))
    with pytest.raises(BadLaunch, match="parameter 2 is bytes of 128 bytes; the launch passes the address of C"):
        Emulator().run(toy.plan(tmp_path, text, args=(TensorMap("A", "f32", (1000,), (256,)), "C", "N")), dict(A=a))


@pytest.mark.parametrize("changes, message", [
    (dict(dtype="f99"), "no elements of type f99"), (dict(box=(16,)), "1 of the box"), (dict(box=(300, 4)), "the box 1 to 256"),
    (dict(strides=(40,)), "multiple of 16"), (dict(box=(4, 4)), "a box of 8 bytes along the innermost"),
    (dict(box=(64, 4), swizzle=64), "swizzle 64 with a box of 128 bytes"), (dict(swizzle=48), "swizzle 48"),
    (dict(element_strides=(2, 1)), "element strides"), (dict(fill="one"), "fill one"), (dict(offset=8), "multiple of 16")])
def test_a_tensor_map_that_the_driver_would_refuse(changes, message):
    with pytest.raises(BadLaunch, match=message):
        TensorMap(**dict(dict(name="T", dtype="bf16", dims=(64, 8), box=(16, 4)), **changes))


def test_wrong_tensor_copies():
    tensor = np.zeros((8, 64), "u2")
    with pytest.raises(BadLaunch, match="rows of 32 bytes swizzled by 64"):
        tensor_case(tensor, (16, 4), (0, 0), dtype="u16", width=64)
    ptx = compile_cuda(PRELUDE + TENSOR.replace("LOAD", "load_1d(tile, &m, &b, x)"))
    m = TensorMap("T", "u16", (64, 8), (16, 4))
    args = (m, np.zeros(128, "u1"), i32(0), i32(0), i32(0), i32(128))
    with pytest.raises(KernelFault, match="a copy of 1 dimensions by a tensor map of 2"):
        Emulator().run_ptx(ptx, "k", 1, 32, args, smem=128, buffers=dict(T=tensor))
    with pytest.raises(KernelFault, match="what is no tensor map"):
        Emulator().run_ptx(ptx, "k", 1, 32, (bytes(128), *args[1:]), smem=128)
    larger = TensorMap("T", "u16", (64, 9), (16, 4))
    ptx = compile_cuda(PRELUDE + TENSOR.replace("LOAD", "load_2d(tile, &m, &b, x, y)"))
    with pytest.raises(KernelFault, match="a tensor copy reads .* out of bounds"):
        Emulator().run_ptx(ptx, "k", 1, 32, (larger, *args[1:3], i32(6), *args[4:]), smem=128, buffers=dict(T=tensor))
    with pytest.raises(KernelFault, match="a tensor copy writes 128 bytes at shared address .*out of bounds"):
        Emulator().run_ptx(ptx, "k", 1, 32, (m, *args[1:]), smem=64, buffers=dict(T=tensor))


# -- clusters


def test_blocks_of_a_cluster_know_where_they_are():
    out, = run("""
    u32 v[8];
    asm("mov.u32 %0, %%clusterid.x; mov.u32 %1, %%clusterid.y; mov.u32 %2, %%cluster_ctaid.x; mov.u32 %3, %%cluster_ctaid.y; "
        "mov.u32 %4, %%cluster_ctarank; mov.u32 %5, %%cluster_nctarank; mov.u32 %6, %%nclusterid.x; mov.u32 %7, %%cluster_nctaid.y;"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]));
    for (int i = 0; i < 8; i++) out[(blockIdx.y * 6 + blockIdx.x) * 8 + i] = v[i];""", (6, 4), 1, words(192), cluster=(3, 2))
    for y, x in np.ndindex(4, 6):
        assert out[(y * 6 + x) * 8:][:8].tolist() == [x // 3, y // 2, x % 3, y % 2, x % 3 + 3 * (y % 2), 6, 2, 2]


@pytest.mark.parametrize("lanes", [16384, 64])
@pytest.mark.parametrize("cluster", [(4, 1, 1), (2, 2, 1), (1, 4, 1)])
def test_distributed_shared_memory(cluster, lanes):
    """Sums over a cluster: remote loads, stores and atomics, by cluster and by generic addresses; blocks of a cluster in one chunk."""
    text = PRELUDE + """extern "C" __global__ void k(u32* out, const u32* in) {
    __shared__ u32 own, sum, box[4];
    int t = threadIdx.x, block = blockIdx.y * gridDim.x + blockIdx.x;
    if (t == 0) { own = in[block]; sum = 0; }
    cluster_sync();
    if (t < 4) {
        u32 there; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(there) : "r"(mapa(shared(&own), t)));
        asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" :: "r"(mapa(shared(&sum), t)), "r"(there) : "memory");
        u64 far; asm("mapa.u64 %0, %1, %2;" : "=l"(far) : "l"(&box[rank()]), "r"(t));
        *(volatile u32*)far = own + 100 * t;
        u32 who; asm("getctarank.u64 %0, %1;" : "=r"(who) : "l"(far));
        u32 own_block; asm("{.reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(own_block) : "l"(far));
        if (who != t || own_block != (rank() == t)) out[0] = 0xdead;
    }
    cluster_sync();
    if (t == 0) { out[block * 5] = sum; for (int i = 0; i < 4; i++) out[block * 5 + 1 + i] = box[i]; }
}"""
    values = np.arange(1, 33).astype("u4")
    out, _ = Emulator(lanes=lanes, sanitize=True).run_ptx(compile_cuda(text), "k", (4, 8), 32, (words(160), values), cluster=cluster)
    out = out.reshape(32, 5)
    for y, x in np.ndindex(8, 4):
        first = [x // cluster[0] * cluster[0], y // cluster[1] * cluster[1]]
        members = [int(values[(first[1] + j) * 4 + first[0] + i]) for j in range(cluster[1]) for i in range(cluster[0])]
        own = (x - first[0]) + cluster[0] * (y - first[1])
        # every thread t adds block t's value to block t's sum: once a block
        assert out[y * 4 + x].tolist() == [4 * members[own], *(m + 100 * own for m in members)]


@BOTH
def test_stores_that_arrive_at_a_remote_barrier(delivery):
    out, = run("""
    __shared__ u64 b; __shared__ __align__(16) u32 box[8]; __shared__ u32 total;
    if (t == 0) { init(&b, 1); total = 1; expect(&b, 16 + 8 + 4 + 4); fence_init(); }
    cluster_sync();
    if (t == 0) {
        u32 other = rank() ^ 1, to = mapa(shared(box), other), at = mapa(shared(&b), other);
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %1, %1, %2}, [%3];"
                     :: "r"(to), "r"(rank() + 5), "r"(9), "r"(at) : "memory");
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];"
                     :: "r"(to + 16), "l"(0x100000002ull), "r"(at) : "memory");
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                     :: "r"(to + 24), "f"(1.5f), "r"(at) : "memory");
        asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
                     :: "r"(mapa(shared(&total), other)), "r"(41), "r"(at) : "memory");
    }
    wait(&b, 0);
    if (t < 7) out[blockIdx.x * 8 + t] = box[t];
    if (t == 7) out[blockIdx.x * 8 + 7] = total;
    cluster_sync();""", 2, 32, words(16), cluster=2, delivery=delivery)
    for block in range(2):
        who = 5 + (block ^ 1)
        assert out[block * 8:][:8].tolist() == [who, who, who, 9, 2, 1, 0x3FC00000, 42]


@BOTH
def test_a_copy_to_several_blocks_and_one_between_blocks(delivery):
    source = RNG.integers(0, 1 << 30, (4, 32)).astype("u4")
    _, out = run("""
    __shared__ __align__(128) u32 tile[64], other[64]; __shared__ u64 b, c;
    tile[t] = 0; fence_async();
    if (t == 0) { init(&b, 1); init(&c, 1); fence_init(); expect(&b, 256); expect(&c, 128); }
    cluster_sync();
    if (t == 0 && rank() % 2 == 0)  // blocks 0 and 2 each send a half to blocks 0, 1 and 3
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, [%2], %3;"
            :: "r"(shared(tile + 16 * rank())), "l"(in + 32 * rank()), "r"(shared(&b)), "h"((u16)0xB) : "memory");
    if (rank() != 2) wait(&b, 0);
    cluster_sync();
    if (t == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
            :: "r"(mapa(shared(other), (rank() + 1) % 4)), "r"(shared(tile)), "r"(mapa(shared(&c), (rank() + 1) % 4)) : "memory");
    wait(&c, 0);
    out[blockIdx.x * 64 + t] = tile[t]; out[blockIdx.x * 64 + 32 + t] = other[t];
    cluster_sync();""", 4, 32, source, words(256), parameters="const u32* in, u32* out", cluster=4, delivery=delivery)
    out = out.reshape(4, 2, 32)
    for block in (0, 1, 3):
        assert (out[block, 0] == source[0]).all()
        assert block == 3 or (out[(block + 1) % 4, 1] == source[0]).all()


@pytest.mark.parametrize("body, cluster, message", [
    ("cluster_arrive(); cluster_arrive();", 2, "arrives at the cluster's barrier twice"),
    ("cluster_wait();", 2, "waits for the cluster's barrier without having arrived"),
    ('asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(out[0]) : "r"(mapa(shared(&x), 2)));', 2, "read of 4 bytes at shared address "
                                                                                                    "16777216.*"),
    ('asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(out[0]) : "r"(mapa(shared(&x), rank() ^ 1)));', 2, "out of bounds"),
    ("cluster_sync(); if (rank()) { for (int i = 0; i < 4000; i++) __nanosleep(1);"
     'u32 v; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(mapa(shared(&x), 0))); out[0] = v; }', 2,
     "read of 4 bytes at shared address 0 of a block of the cluster that has ended"),
    ("if (rank() == 0) cluster_sync(); else { __shared__ u64 b; init(&b, 1); wait(&b, 0); }", 2,
     "waits for the other threads of the cluster at its barrier"),
])
def test_wrong_uses_of_a_cluster(body, cluster, message):
    with pytest.raises(KernelFault, match=message):
        run("__shared__ u32 x; x = 1;" + body, 2, 1, words(), cluster=cluster)


def test_a_cluster_that_the_kernel_asks_for():
    text = PRELUDE + 'extern "C" __global__ void __cluster_dims__(2, 1, 1) k(u32* out) { out[blockIdx.x] = rank(); }'
    assert Emulator().run_ptx(compile_cuda(text), "k", 4, 1, (words(4),))[0].tolist() == [0, 1, 0, 1]
    with pytest.raises(BadLaunch, match="do not divide the grid"):
        Emulator().run_ptx(compile_cuda(text), "k", 3, 1, (words(4),))
    with pytest.raises(BadLaunch, match="compiled for clusters of"):
        Emulator().run_ptx(compile_cuda(text), "k", 4, 1, (words(4),), cluster=4)


def test_threads_that_end_do_not_hold_the_cluster_up():
    out, = run("if (t >= 32 && rank() == 1) return; cluster_sync(); out[blockIdx.x * 64 + t] = 1;", 2, 64, words(128), cluster=2)
    assert out.sum() == 96


# -- small things


def test_elect_and_what_changes_no_value():
    out, = run("""
    u32 leader, chosen;
    asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %1, 1, 0, p;}" : "=r"(leader), "=r"(chosen));
    out[t] = leader + 100 * chosen;
    if (t % 32 >= 5) {
        asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffe0; selp.u32 %1, 1, 0, p;}" : "=r"(leader), "=r"(chosen));
        out[t] += 1000 * leader + 100000 * chosen;
    }
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    asm volatile("fence.proxy.async;\\nfence.proxy.async.global;\\nfence.proxy.alias;\\nfence.acq_rel.cluster;\\nfence.sc.cluster;");
    asm volatile("griddepcontrol.wait;\\ngriddepcontrol.launch_dependents;\\nnanosleep.u32 20;");""", 1, 128, words(128))
    lane = np.arange(128) % 32
    assert (out == (lane == 0) * 100 + (lane >= 5) * 5000 + (lane == 5) * 100000).all()


def test_setmaxnreg_needs_a_warpgroup():
    with pytest.raises(KernelFault, match="not all of its 128 threads"):
        run('asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");', 1, 64, words())
    ptx = compile_cuda(PRELUDE + 'extern "C" __global__ void k() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }')
    with pytest.raises(PtxError, match="registers that is not one of"):
        Emulator().run_ptx(ptx.replace("u32 24", "u32 20"), "k", 1, 128, ())
