// Loads and stores of data that is used once, so that the caches keep what is used again.
// Hint: 0 none; 1 evict first (.cs); 2 no place in L1.
#pragma once

#include "types.cuh"

template <int Hint, int Count, typename Type>
__device__ __forceinline__ Pack<Type, Count> read(const Type* memory) {
    static_assert(Hint >= 0 && Hint <= 2, "HINT is 0, 1 or 2");
    if constexpr (sizeof(Pack<Type, Count>) < 16 || Hint == 0) {
        return *reinterpret_cast<const Pack<Type, Count>*>(memory);
    } else {
        Pack<Type, Count> pack;
        unsigned* w = reinterpret_cast<unsigned*>(&pack);
        if constexpr (Hint == 1)
            asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(memory));
        else
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(memory));
        return pack;
    }
}

template <int Hint, typename Type, int Count>
__device__ __forceinline__ void write(Type* memory, const Pack<Type, Count>& pack) {
    if constexpr (sizeof(Pack<Type, Count>) < 16 || Hint == 0) {
        *reinterpret_cast<Pack<Type, Count>*>(memory) = pack;
    } else {
        const unsigned* w = reinterpret_cast<const unsigned*>(&pack);
        asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(memory), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
    }
}

// As many elements -infinity.
template <int Count>
__device__ __forceinline__ Pack<element, Count> lowest() {
    Pack<element, Count> pack;
#pragma unroll
    for (int i = 0; i < Count; ++i) pack.at[i] = convert<element>(minus_infinity());
    return pack;
}

// As many zeros.
template <int Count>
__device__ __forceinline__ Pack<element, Count> zeros() {
    Pack<element, Count> pack;
#pragma unroll
    for (int i = 0; i < Count; ++i) pack.at[i] = convert<element>(0.0f);
    return pack;
}

// The larger of each two elements; NaN beside a number is ignored.
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b, bf16) {
    unsigned c;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b, f16) {
    unsigned c;
    asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b, float) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
}

// The same of packs of 4 bytes or a multiple: two elements of 16 bits by one instruction, without unpacking them.
template <int Count>
__device__ __forceinline__ Pack<element, Count> larger(Pack<element, Count> a, Pack<element, Count> b) {
    static_assert(sizeof(a) % 4 == 0, "whole words");
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(a)) / 4; ++i)
        reinterpret_cast<unsigned*>(&a)[i] = larger(reinterpret_cast<unsigned*>(&a)[i], reinterpret_cast<unsigned*>(&b)[i], element{});
    return a;
}

// To the compiler the packs may be others now: it unpacks them again where they are used next, instead of keeping twice the registers in
// floats.
template <int Packs, int Count>
__device__ __forceinline__ void forget(Pack<element, Count> (&packs)[Packs]) {
    if constexpr (sizeof(element) == 2 && Count % 2 == 0) {
#pragma unroll
        for (int p = 0; p < Packs; ++p) {
            unsigned* words = reinterpret_cast<unsigned*>(&packs[p]);
#pragma unroll
            for (int i = 0; i < Count / 2; ++i) asm volatile("" : "+r"(words[i]));
        }
    }
}
