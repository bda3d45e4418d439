"""Hopper on the emulator: mbarrier and bulk copies; and what it says when a kernel is wrong."""

import numpy as np
import pytest

from cudalab.emulator import Deadlock, KernelFault
from hopper import BOTH, run, words

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
