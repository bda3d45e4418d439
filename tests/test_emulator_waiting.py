"""Threads that wait for each other on the emulator: barriers, locks, flags; and those that wait in vain."""

import time

import numpy as np
import pytest

from cudalab.emulator import Deadlock, Emulator
from emulated import cuda, kernel, line_of


def test_named_barriers_between_producers_and_consumers():
    text = kernel("""    __shared__ int s[32];
    for (int r = 0; r < 4; ++r) {
        if (threadIdx.x < 32) {
            asm volatile("bar.sync 2, 64;" ::: "memory");
            s[threadIdx.x] = r * 100 + threadIdx.x;
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        } else {
            asm volatile("bar.arrive 2, 64;" ::: "memory");
            asm volatile("bar.sync 1, 64;" ::: "memory");
            x[r * 32 + threadIdx.x - 32] = s[63 - threadIdx.x];
        }
    }""", "int* x")
    (got,) = cuda(text, 1, 64, np.zeros(128, np.int32))
    assert got.tolist() == [r * 100 + 31 - lane for r in range(4) for lane in range(32)]


def test_barriers_that_reduce():
    text = kernel("""    x[3 * i] = __syncthreads_count(i % 3 == 0);
    x[3 * i + 1] = __syncthreads_and(i < 70);
    x[3 * i + 2] = __syncthreads_or(i == 69);""", "int* x")
    (got,) = cuda(text, 2, 70, np.zeros(3 * 140, np.int32))
    got = got.reshape(2, 70, 3)
    assert (got[0] == [24, 1, 1]).all() and (got[1, :, 1:] == 0).all() and (got[1, :, 0] == 23).all()


def test_locks_that_spin_between_threads_and_blocks_end():
    text = kernel("""    for (bool done = false; !done;) {
        if (atomicCAS(lock, 0, 1) == 0) {
            __threadfence();
            *(volatile int*)x = *(volatile int*)x + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }""", "int* x, int* lock")
    assert cuda(text, 3, 40, np.zeros(1, np.int32), np.zeros(1, np.int32))[0][0] == 120


@pytest.mark.parametrize("space, wait, sanitize", [("", "", True), ("__shared__", "", False),
                                                   ("__shared__", "__nanosleep(n); n = n < 64 ? 2 * n : n;", False)])
def test_many_threads_on_one_lock_take_turns(space, wait, sanitize):
    """Those who wait are parked, so that a turn costs a few steps; what they count while they wait makes them run on for a while."""
    lock = "__shared__ int s; int* lock = &s; if (threadIdx.x == 0) s = 0; __syncthreads();" if space else "int* lock = y;"
    text = kernel(f"""    {lock} unsigned n = 1;
    while (atomicCAS(lock, 0, 1) != 0) {{ {wait} }}
    __threadfence();
    x[blockIdx.x] = 2 * x[blockIdx.x] % 1009 + 1;
    __threadfence();
    atomicExch(lock, 0);""", "int* x, int* y")
    started, expected = time.perf_counter(), 0
    threads = 96 if sanitize else 256
    got = cuda(text, 1, threads, np.zeros(2, np.int32), np.zeros(1, np.int32), emulator=Emulator(sanitize=sanitize))[0]
    for _ in range(threads):
        expected = 2 * expected % 1009 + 1
    assert got[0] == expected and time.perf_counter() - started < 30


def test_a_lock_that_nobody_gives_back_is_a_deadlock():
    text = kernel("    while (atomicCAS(x, 0, 1) != 0) {}  // here\n    x[1] = i;", "int* x")
    with pytest.raises(Deadlock, match=f"spins.*63 threads .*wait for a change of memory at kernel.cu:{line_of(text, '// here')}"):
        cuda(text, 1, 64, np.zeros(2, np.int32))


def test_lanes_that_spin_see_what_others_make_of_registers_alone():
    """Nothing in memory changes while one lane counts: those who ask it by shuffles, or wait for a clock, are not taken for spinning."""
    text = kernel("""    int n = 0, seen = 0;
    for (; seen < 300; seen = __shfl_sync(~0u, n, 5)) { n += threadIdx.x == 5; if (*(volatile int*)x == 1) break; }
    for (long long t = clock64() + 6000; clock64() < t && *(volatile int*)x == 0;) {}
    y[i] = seen;""", "int* x, int* y")
    assert (cuda(text, 1, 32, np.zeros(1, np.int32), np.zeros(32, np.int32))[1] == 300).all()


def test_values_are_handed_from_block_to_block():
    text = kernel("""    if (threadIdx.x == 0) {
        while (atomicAdd(flag, 0) != blockIdx.x) {}
        x[blockIdx.x + 1] = x[blockIdx.x] + 1;
        __threadfence();
        atomicAdd(flag, 1);
    }""", "volatile int* x, int* flag")
    assert cuda(text, 20, 32, np.zeros(21, np.int32), np.zeros(1, np.int32))[0].tolist() == list(range(21))


def test_deadlocks_say_who_waits_for_what():
    text = kernel("""    if (threadIdx.x < 32) __syncthreads();
    else asm volatile("bar.sync 3, 96;" ::: "memory");
    x[i] = 1;""", "int* x")
    first = r"32 threads \(first: block \(0, 0, 0\), thread \(0, 0, 0\)\) wait for barrier 0 at kernel.cu:4"
    with pytest.raises(Deadlock, match=f"{first}.*barrier 3 at kernel.cu:5"):
        cuda(text, 1, 64, np.zeros(64, np.int32))


def test_spinning_in_vain_is_found_out():
    text = kernel("    if (threadIdx.x == 0) while (atomicAdd(flag, 0) != 7) {}  // here\n    x[i] = 1;", "int* x, int* flag")
    with pytest.raises(Deadlock, match=f"spins on something that nobody is left to change.*kernel.cu:{line_of(text, '// here')}"):
        cuda(text, 1, 64, np.zeros(64, np.int32), np.zeros(1, np.int32))
