"""Kernels that serve the measurement itself: one holds the stream while calls are queued, one reads the SM clock."""

import numpy as np

from cudalab.errors import LabError

SOURCE = r"""
__device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// Waits until flags[0] reaches the ticket; after limit_ns it gives up and says so in flags[1], so that nothing can hang the device.
extern "C" __global__ void __launch_bounds__(1) hold(volatile unsigned* flags, unsigned ticket, unsigned long long limit_ns) {
    const unsigned long long start = now_ns();
    while (flags[0] != ticket) {
        if (now_ns() - start > limit_ns) {
            flags[1] = ticket;
            __threadfence_system();
            return;
        }
        __nanosleep(200);
    }
}

// Cycles and nanoseconds between two ticks of the global timer (it may tick only every microsecond), about 100 us apart.
extern "C" __global__ void __launch_bounds__(1) clocks(unsigned long long* out) {
    unsigned long long before = now_ns(), start, end;
    do { start = now_ns(); } while (start == before);
    const long long first = clock64();
    do { before = end = now_ns(); } while (end - start < 100000);
    do { end = now_ns(); } while (end == before);
    out[0] = clock64() - first;
    out[1] = end - start;
    __threadfence_system();
}
"""


class Hold:
    """`with hold:` keeps CuPy's current stream's later work waiting until the block is left, by Ctrl-C too.

    A kernel of one thread spins on a word of pinned host memory; it gives up by itself after `limit_s`.
    """

    def __init__(self, gpu, limit_s: float = 5.0):
        import cupy
        with gpu.stream:
            module = cupy.RawModule(code=SOURCE, options=("-std=c++17",))
            self._hold, self._clocks = module.get_function("hold"), module.get_function("clocks")
        self.limit_s, self._ticket = limit_s, 0
        self._memory = cupy.cuda.alloc_pinned_memory(32)  # mapped: with unified addressing the device reads it by the same address
        self._flags = np.frombuffer(self._memory, np.uint32, 2)
        self._counts = np.frombuffer(self._memory, np.uint64, 2, offset=16)
        self._flags[:] = 0
        with gpu.stream:  # once without waiting: a kernel that the driver first loads behind a held stream would wait for it for ever
            self._hold((1,), (1,), (np.uint64(self._memory.ptr), np.uint32(0), np.uint64(0)))
            self.queue_clocks()
            gpu.synchronize("measure")

    def __enter__(self):
        self._ticket += 1
        self._flags[1] = 0
        self._hold((1,), (1,), (np.uint64(self._memory.ptr), np.uint32(self._ticket), np.uint64(self.limit_s * 1e9)))
        return self

    def __exit__(self, *_):
        self._flags[0] = self._ticket

    def confirm(self) -> None:
        """After the stream was waited for: raise LabError if the hold gave up before everything was queued."""
        if self._flags[1] == self._ticket:
            raise LabError(f"queueing one batch took longer than {self.limit_s} s, so its time would be the host's, not the device's: "
                           f"a peer that waits for the device, or a host too busy to measure on")

    def queue_clocks(self) -> None:
        self._clocks((1,), (1,), (np.uint64(self._memory.ptr + 16),))

    def sm_clock_mhz(self) -> float:
        """The SM clock that the last `queue_clocks` saw; the stream must have been waited for."""
        cycles, nanoseconds = self._counts
        return float(cycles) / float(nanoseconds) * 1e3
