"""Hopper on the emulator: mbarrier, bulk and tensor copies; and what it says when a kernel is wrong."""

import numpy as np
import pytest

import toy
from cudalab.emulator import Deadlock, Emulator, KernelFault
from cudalab.errors import BadLaunch
from cudalab.spec import TensorMap, i32
from emulated import compile_cuda
from hopper import BOTH, PRELUDE, run, swizzle, words

RNG = np.random.default_rng(0)


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


@BOTH
def test_a_stage_is_used_again_behind_its_barrier(delivery):
    """What one lane's copies read and wrote is passed on to its warp by the mbarrier alone: no race with what the others do after it."""
    source = RNG.integers(0, 1 << 30, 96).astype("u4")
    _, out = run("""
    __shared__ __align__(128) u32 tile[32]; __shared__ u64 b;
    if (t == 0) { init(&b, 1); fence_init(); expect(&b, 128); bulk_load(tile, in, 128, &b); }
    __syncthreads();
    for (int n = 0; n < 3; ++n) {
        wait(&b, n & 1);
        tile[t] += 1;
        fence_async();
        __syncthreads();
        if (t == 0) {
            bulk_store(out + 32 * n, tile, 128);
            bulk_commit(); bulk_wait_read<0>();
            if (n < 2) { expect(&b, 128); bulk_load(tile, in + 32 * (n + 1), 128, &b); }
        }
    }
    if (t == 0) bulk_wait<0>();""", 1, 32, source, words(96), parameters="const u32* in, u32* out", delivery=delivery)
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
