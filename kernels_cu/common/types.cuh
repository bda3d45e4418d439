// The problem's type of elements (the build defines DTYPE_BF16 and its like): `element` as it lies in memory, conversions, vectors.
// Written without CUDA's own headers, which would double the time that a kernel takes to compile.
#pragma once

struct bf16 {
    unsigned short bits;
};
struct f16 {
    unsigned short bits;
};
struct fp8_e4m3 {
    unsigned char bits;
};
struct fp8_e5m2 {
    unsigned char bits;
};

#if DTYPE_F32 || DTYPE_TF32
using element = float;
#elif DTYPE_BF16
using element = bf16;
#elif DTYPE_F16
using element = f16;
#elif DTYPE_FP8_E4M3
using element = fp8_e4m3;
#elif DTYPE_FP8_E5M2
using element = fp8_e5m2;
#elif DTYPE_INT8
using element = signed char;
#endif

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(signed char x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ __forceinline__ float to_float(f16 x) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
    return f;
}

// A 32-bit word of two elements as floats, the lower first.
__device__ __forceinline__ void unpack(float* pair, unsigned word, bf16) {
    pair[0] = __uint_as_float(word << 16);
    pair[1] = __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ void unpack(float* pair, unsigned word, f16) {
    pair[0] = to_float(f16{static_cast<unsigned short>(word)});
    pair[1] = to_float(f16{static_cast<unsigned short>(word >> 16)});
}

// Rounded to nearest, ties to even.
__device__ __forceinline__ void from_float(float& to, float x) { to = x; }
__device__ __forceinline__ void from_float(bf16& to, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
__device__ __forceinline__ void from_float(f16& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }

// Two floats as a 32-bit word of two elements, the first below.
__device__ __forceinline__ unsigned pack(float low, float high, bf16) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
__device__ __forceinline__ unsigned pack(float low, float high, f16) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

#if __CUDA_ARCH__ >= 890  // the conversions of fp8 came with it
__device__ __forceinline__ float to_float(fp8_e4m3 x) {
    unsigned halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(x.bits)));
    return to_float(f16{static_cast<unsigned short>(halves)});
}
__device__ __forceinline__ float to_float(fp8_e5m2 x) {
    return to_float(f16{static_cast<unsigned short>(x.bits << 8)});  // its upper half
}
__device__ __forceinline__ void from_float(fp8_e4m3& to, float x) {
    unsigned short two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
    to.bits = static_cast<unsigned char>(two);
}
__device__ __forceinline__ void from_float(fp8_e5m2& to, float x) {
    unsigned short two;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
    to.bits = static_cast<unsigned char>(two);
}
#endif

template <typename Type>
__device__ __forceinline__ Type convert(float x) {
    Type to;
    from_float(to, x);
    return to;
}

// Elements that one instruction moves together: 1 to 16 bytes, at a multiple of their size.  (Names of templates here are not all capitals,
// as tunables are, which are macros.)
template <typename Type, int Count>
struct alignas(sizeof(Type) * Count) Pack {
    Type at[Count];
};

// The floats of a pack that was loaded; two elements of 16 bits leave their word at once.
template <typename Type, int Count>
__device__ __forceinline__ void unpack(float* registers, const Pack<Type, Count>& pack) {
    if constexpr (sizeof(Type) == 2 && Count % 2 == 0) {
        const unsigned* words = reinterpret_cast<const unsigned*>(&pack);
#pragma unroll
        for (int i = 0; i < Count / 2; ++i) unpack(registers + 2 * i, words[i], Type{});
    } else {
#pragma unroll
        for (int i = 0; i < Count; ++i) registers[i] = to_float(pack.at[i]);
    }
}

template <typename Type, int Count>
__device__ __forceinline__ Pack<Type, Count> pack(const float* registers) {
    Pack<Type, Count> made;
    if constexpr (sizeof(Type) == 2 && Count % 2 == 0) {
        unsigned* words = reinterpret_cast<unsigned*>(&made);
#pragma unroll
        for (int i = 0; i < Count / 2; ++i) words[i] = pack(registers[2 * i], registers[2 * i + 1], Type{});
    } else {
#pragma unroll
        for (int i = 0; i < Count; ++i) made.at[i] = convert<Type>(registers[i]);
    }
    return made;
}

// As many elements from memory as floats, and back.
template <int Count, typename Type>
__device__ __forceinline__ void load(float* registers, const Type* memory) {
    unpack(registers, *reinterpret_cast<const Pack<Type, Count>*>(memory));
}
template <int Count, typename Type>
__device__ __forceinline__ void store(Type* memory, const float* registers) {
    *reinterpret_cast<Pack<Type, Count>*>(memory) = pack<Type, Count>(registers);
}
