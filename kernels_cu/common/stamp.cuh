// When and where a block worked: cycles and nanoseconds, read in the kernel.
#pragma once

#include "probe.cuh"

// Nanoseconds of the device's timer, which may tick only every microsecond.
__device__ __forceinline__ unsigned long long nanoseconds_now() {
    unsigned long long count;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(count)::"memory");
    return count;
}

struct Stamp {
    long long cycles;
    unsigned long long nanoseconds;
};

__device__ __forceinline__ Stamp stamp_now() { return {cycle_count(), nanoseconds_now()}; }

// A block's row of `stamps`: multiprocessor, cycles at start and end, nanoseconds at start and end.
__device__ __forceinline__ void store_stamps(unsigned long long* stamps, Stamp start, Stamp end) {
    unsigned long long* row = stamps + blockIdx.x * 5ull;
    row[0] = multiprocessor();
    row[1] = start.cycles, row[2] = end.cycles;
    row[3] = start.nanoseconds, row[4] = end.nanoseconds;
}
