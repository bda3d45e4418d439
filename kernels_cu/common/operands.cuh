// The types that tensor cores multiply, as tags: what mma.cuh and wgmma.cuh need to know of each.
//
// sum: the type of a sum.  bytes: of one element in memory.  depth: elements of K that one instruction takes.
// mma, wgmma: shape and types in PTX.  immediates: what wgmma takes behind its operands: 0 nothing, 1 signs, 2 signs and orders.
#pragma once

struct BF16 {
    using sum = float;
    static constexpr int bytes = 2, depth = 16, immediates = 2;
    static constexpr char mma[] = "m16n8k16.row.col.f32.bf16.bf16.f32", wgmma[] = "k16.f32.bf16.bf16";
};

struct F16 {
    using sum = float;
    static constexpr int bytes = 2, depth = 16, immediates = 2;
    static constexpr char mma[] = "m16n8k16.row.col.f32.f16.f16.f32", wgmma[] = "k16.f32.f16.f16";
};

struct TF32 {
    using sum = float;
    static constexpr int bytes = 4, depth = 8, immediates = 1;
    static constexpr char mma[] = "m16n8k8.row.col.f32.tf32.tf32.f32", wgmma[] = "k8.f32.tf32.tf32";
};

struct E4M3 {
    using sum = float;
    static constexpr int bytes = 1, depth = 32, immediates = 1;
    static constexpr char mma[] = "m16n8k32.row.col.f32.e4m3.e4m3.f32", wgmma[] = "k32.f32.e4m3.e4m3";
};

struct E5M2 {
    using sum = float;
    static constexpr int bytes = 1, depth = 32, immediates = 1;
    static constexpr char mma[] = "m16n8k32.row.col.f32.e5m2.e5m2.f32", wgmma[] = "k32.f32.e5m2.e5m2";
};

struct S8 {
    using sum = int;
    static constexpr int bytes = 1, depth = 32, immediates = 0;
    static constexpr char mma[] = "m16n8k32.row.col.s32.s8.s8.s32", wgmma[] = "k32.s32.s8.s8";
};

// The tag of the dtype that the build names.
#if defined(DTYPE_BF16)
using Operand = BF16;
#elif defined(DTYPE_F16)
using Operand = F16;
#elif defined(DTYPE_TF32)
using Operand = TF32;
#elif defined(DTYPE_FP8_E4M3)
using Operand = E4M3;
#elif defined(DTYPE_FP8_E5M2)
using Operand = E5M2;
#elif defined(DTYPE_INT8)
using Operand = S8;
#endif
