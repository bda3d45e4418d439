// When and where a block worked: cycles and nanoseconds, read in the kernel.
#pragma once

// Cycles of this multiprocessor.
__device__ __forceinline__ unsigned long long cycles_now() {
    unsigned long long count;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(count)::"memory");
    return count;
}

// Nanoseconds of the device's timer, which may tick only every microsecond.
__device__ __forceinline__ unsigned long long nanoseconds_now() {
    unsigned long long count;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(count)::"memory");
    return count;
}

// The multiprocessor that runs this block.
__device__ __forceinline__ unsigned multiprocessor() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

struct Stamp {
    unsigned long long cycles, nanoseconds;
};

__device__ __forceinline__ Stamp stamp_now() { return {cycles_now(), nanoseconds_now()}; }

// A block's row of `stamps`: multiprocessor, cycles at start and end, nanoseconds at start and end.
__device__ __forceinline__ void store_stamps(unsigned long long* stamps, Stamp start, Stamp end) {
    unsigned long long* row = stamps + blockIdx.x * 5ull;
    row[0] = multiprocessor();
    row[1] = start.cycles, row[2] = end.cycles;
    row[3] = start.nanoseconds, row[4] = end.nanoseconds;
}
