// A warpgroup's matrix instructions (sm_90a), one a function.  PTX ISA, "Asynchronous warpgroup level matrix instructions".
#pragma once

#include "operands.cuh"

// Before the first wgmma, and whenever its registers were written by anything else.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Close a group: the wgmma this warpgroup has started since the last group.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most PENDING of the newest groups still run; what older ones summed may be read, what they read may be overwritten.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// To the compiler these registers change here: no copy of a sum lives across a wait, and no use of it moves to before the wait.
template <int COUNT>
__device__ __forceinline__ void pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int COUNT>
__device__ __forceinline__ void pin(unsigned (&a)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
template <int COUNT>
__device__ __forceinline__ void pin(int (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Make plain writes of this thread to shared memory visible to TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Let every thread of this warpgroup have COUNT registers: more (what others gave up) or fewer.
template <int COUNT>
__device__ __forceinline__ void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Where an operand lies in shared memory, for the row pitch SWIZZLE (32, 64 or 128 bytes; 0: cores of 8 rows of 16 bytes, unswizzled).
// Operands along K: `stride` bytes from 8 rows to the next 8 rows; `leading`, without a swizzle, from 16 bytes of K to the next 16.
// A swizzled tile starts at a multiple of 8 * SWIZZLE bytes; along K one steps by adding bytes to `shared` (PTX ISA, "Matrix Descriptor").
template <int SWIZZLE>
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned shared, int leading, int stride) {
    static_assert(SWIZZLE == 0 || SWIZZLE == 32 || SWIZZLE == 64 || SWIZZLE == 128, "a swizzle is 0, 32, 64 or 128 bytes");
    constexpr unsigned long long mode = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : SWIZZLE == 32 ? 3 : 0;
    return (shared & 0x3FFFF) >> 4 | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | mode << 62;
}

// What wgmma takes behind its operands: signs (both plus), and for 16-bit types which operands run along M or N instead of K.
template <int IMMEDIATES, int TRANS_A, int TRANS_B>
struct WgmmaTail;
template <> struct WgmmaTail<0, 0, 0> { static constexpr char shared[] = "", registers[] = ""; };
template <> struct WgmmaTail<1, 0, 0> { static constexpr char shared[] = ", 1, 1", registers[] = ", 1, 1"; };
template <> struct WgmmaTail<2, 0, 0> { static constexpr char shared[] = ", 1, 1, 0, 0", registers[] = ", 1, 1, 0"; };
template <> struct WgmmaTail<2, 0, 1> { static constexpr char shared[] = ", 1, 1, 0, 1", registers[] = ", 1, 1, 1"; };
template <> struct WgmmaTail<2, 1, 0> { static constexpr char shared[] = ", 1, 1, 1, 0"; };
template <> struct WgmmaTail<2, 1, 1> { static constexpr char shared[] = ", 1, 1, 1, 1"; };

// The names of the first N / 2 operands, which are the sums, and the sums themselves.
#define WGMMA_NAMES_8 "%0, %1, %2, %3"
#define WGMMA_NAMES_16 WGMMA_NAMES_8 ", %4, %5, %6, %7"
#define WGMMA_NAMES_24 WGMMA_NAMES_16 ", %8, %9, %10, %11"
#define WGMMA_NAMES_32 WGMMA_NAMES_24 ", %12, %13, %14, %15"
#define WGMMA_NAMES_40 WGMMA_NAMES_32 ", %16, %17, %18, %19"
#define WGMMA_NAMES_48 WGMMA_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_NAMES_56 WGMMA_NAMES_48 ", %24, %25, %26, %27"
#define WGMMA_NAMES_64 WGMMA_NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_72 WGMMA_NAMES_64 ", %32, %33, %34, %35"
#define WGMMA_NAMES_80 WGMMA_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_NAMES_88 WGMMA_NAMES_80 ", %40, %41, %42, %43"
#define WGMMA_NAMES_96 WGMMA_NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_104 WGMMA_NAMES_96 ", %48, %49, %50, %51"
#define WGMMA_NAMES_112 WGMMA_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_NAMES_120 WGMMA_NAMES_112 ", %56, %57, %58, %59"
#define WGMMA_NAMES_128 WGMMA_NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_144 WGMMA_NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_NAMES_160 WGMMA_NAMES_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_NAMES_176 WGMMA_NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_NAMES_192 WGMMA_NAMES_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_208 WGMMA_NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_NAMES_224 WGMMA_NAMES_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_NAMES_240 WGMMA_NAMES_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_NAMES_256 WGMMA_NAMES_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_FOUR(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define WGMMA_SUMS_8(C) WGMMA_FOUR(C, 0)
#define WGMMA_SUMS_16(C) WGMMA_SUMS_8(C), WGMMA_FOUR(C, 4)
#define WGMMA_SUMS_24(C) WGMMA_SUMS_16(C), WGMMA_FOUR(C, 8)
#define WGMMA_SUMS_32(C) WGMMA_SUMS_24(C), WGMMA_FOUR(C, 12)
#define WGMMA_SUMS_40(C) WGMMA_SUMS_32(C), WGMMA_FOUR(C, 16)
#define WGMMA_SUMS_48(C) WGMMA_SUMS_32(C), WGMMA_FOUR(C, 16), WGMMA_FOUR(C, 20)
#define WGMMA_SUMS_56(C) WGMMA_SUMS_48(C), WGMMA_FOUR(C, 24)
#define WGMMA_SUMS_64(C) WGMMA_SUMS_48(C), WGMMA_FOUR(C, 24), WGMMA_FOUR(C, 28)
#define WGMMA_SUMS_72(C) WGMMA_SUMS_64(C), WGMMA_FOUR(C, 32)
#define WGMMA_SUMS_80(C) WGMMA_SUMS_64(C), WGMMA_FOUR(C, 32), WGMMA_FOUR(C, 36)
#define WGMMA_SUMS_88(C) WGMMA_SUMS_80(C), WGMMA_FOUR(C, 40)
#define WGMMA_SUMS_96(C) WGMMA_SUMS_80(C), WGMMA_FOUR(C, 40), WGMMA_FOUR(C, 44)
#define WGMMA_SUMS_104(C) WGMMA_SUMS_96(C), WGMMA_FOUR(C, 48)
#define WGMMA_SUMS_112(C) WGMMA_SUMS_96(C), WGMMA_FOUR(C, 48), WGMMA_FOUR(C, 52)
#define WGMMA_SUMS_120(C) WGMMA_SUMS_112(C), WGMMA_FOUR(C, 56)
#define WGMMA_SUMS_128(C) WGMMA_SUMS_112(C), WGMMA_FOUR(C, 56), WGMMA_FOUR(C, 60)
#define WGMMA_SUMS_144(C) WGMMA_SUMS_128(C), WGMMA_FOUR(C, 64), WGMMA_FOUR(C, 68)
#define WGMMA_SUMS_160(C) WGMMA_SUMS_144(C), WGMMA_FOUR(C, 72), WGMMA_FOUR(C, 76)
#define WGMMA_SUMS_176(C) WGMMA_SUMS_160(C), WGMMA_FOUR(C, 80), WGMMA_FOUR(C, 84)
#define WGMMA_SUMS_192(C) WGMMA_SUMS_176(C), WGMMA_FOUR(C, 88), WGMMA_FOUR(C, 92)
#define WGMMA_SUMS_208(C) WGMMA_SUMS_192(C), WGMMA_FOUR(C, 96), WGMMA_FOUR(C, 100)
#define WGMMA_SUMS_224(C) WGMMA_SUMS_208(C), WGMMA_FOUR(C, 104), WGMMA_FOUR(C, 108)
#define WGMMA_SUMS_240(C) WGMMA_SUMS_224(C), WGMMA_FOUR(C, 112), WGMMA_FOUR(C, 116)
#define WGMMA_SUMS_256(C) WGMMA_SUMS_240(C), WGMMA_FOUR(C, 120), WGMMA_FOUR(C, 124)

// wgmma<T>(d, a, b, accumulate): d (+)= a * b, 64 x N sums of T::depth products each, N / 2 of them in the registers of a thread.
// a, b: descriptors; or a: the 64 rows of A, in four registers a thread.  accumulate: 0 where what d holds does not count.
// TRANS_A, TRANS_B: 1 where the rows of that operand run along M or N (16-bit types, in shared memory).  It runs on: see wgmma_wait.
#define WGMMA_FUNCTIONS(SUM, C, N, R0, R1, R2, R3, R4, R5, R6, R7)                                                                         \
template <class T, int TRANS_A = 0, int TRANS_B = 0>                                                                                       \
__device__ __forceinline__ void wgmma(SUM (&d)[N / 2], unsigned long long a, unsigned long long b, int accumulate) {                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R2 ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "%" #R3 " {" WGMMA_NAMES_##N "}, %" #R0 ", %" #R1 ", p%" #R4 ";\n}"                \
                 : WGMMA_SUMS_##N(C)                                                                                                       \
                 : "l"(a), "l"(b), "r"(accumulate), "C"(T::wgmma), "C"(WgmmaTail<T::immediates, TRANS_A, TRANS_B>::shared));               \
}                                                                                                                                          \
template <class T, int TRANS_B = 0>                                                                                                        \
__device__ __forceinline__ void wgmma(SUM (&d)[N / 2], const unsigned (&a)[4], unsigned long long b, int accumulate) {                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #R5 ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "%" #R6 " {" WGMMA_NAMES_##N "}, {%" #R0 ", %" #R1 ", %" #R2 ", %" #R3 "}, "       \
                 "%" #R4 ", p%" #R7 ";\n}"                                                                                                 \
                 : WGMMA_SUMS_##N(C)                                                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "C"(T::wgmma),                                     \
                   "C"(WgmmaTail<T::immediates, 0, TRANS_B>::registers));                                                                  \
}
#define WGMMA(N, ...) WGMMA_FUNCTIONS(float, "+f", N, __VA_ARGS__) WGMMA_FUNCTIONS(int, "+r", N, __VA_ARGS__)
WGMMA(8, 4, 5, 6, 7, 8, 9, 10, 11)
WGMMA(16, 8, 9, 10, 11, 12, 13, 14, 15)
WGMMA(24, 12, 13, 14, 15, 16, 17, 18, 19)
WGMMA(32, 16, 17, 18, 19, 20, 21, 22, 23)
WGMMA(40, 20, 21, 22, 23, 24, 25, 26, 27)
WGMMA(48, 24, 25, 26, 27, 28, 29, 30, 31)
WGMMA(56, 28, 29, 30, 31, 32, 33, 34, 35)
WGMMA(64, 32, 33, 34, 35, 36, 37, 38, 39)
WGMMA(72, 36, 37, 38, 39, 40, 41, 42, 43)
WGMMA(80, 40, 41, 42, 43, 44, 45, 46, 47)
WGMMA(88, 44, 45, 46, 47, 48, 49, 50, 51)
WGMMA(96, 48, 49, 50, 51, 52, 53, 54, 55)
WGMMA(104, 52, 53, 54, 55, 56, 57, 58, 59)
WGMMA(112, 56, 57, 58, 59, 60, 61, 62, 63)
WGMMA(120, 60, 61, 62, 63, 64, 65, 66, 67)
WGMMA(128, 64, 65, 66, 67, 68, 69, 70, 71)
WGMMA(144, 72, 73, 74, 75, 76, 77, 78, 79)
WGMMA(160, 80, 81, 82, 83, 84, 85, 86, 87)
WGMMA(176, 88, 89, 90, 91, 92, 93, 94, 95)
WGMMA(192, 96, 97, 98, 99, 100, 101, 102, 103)
WGMMA(208, 104, 105, 106, 107, 108, 109, 110, 111)
WGMMA(224, 112, 113, 114, 115, 116, 117, 118, 119)
WGMMA(240, 120, 121, 122, 123, 124, 125, 126, 127)
WGMMA(256, 128, 129, 130, 131, 132, 133, 134, 135)
