// A warp's matrix instructions and what feeds them, one a function.  Which lane holds which element: PTX ISA, "Matrix Fragments for mma".
#pragma once

#include "operands.cuh"

// d += a * b, 16 x 8 sums of T::depth products each.  a: 16 rows of K, b: 8 columns of K, packed into 32-bit registers.
// E4M3 and E5M2 need sm_89.
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.%10 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "C"(T::mma));
}

// The same for integers (S8).
template <class T>
__device__ __forceinline__ void mma(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.%10 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "C"(T::mma));
}

// d += a * b in f16 with sums in f16, two to a register.
__device__ __forceinline__ void mma_half_sums(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d += a * b in f64, 8 x 8 sums of 4 products.
__device__ __forceinline__ void mma_double(double (&d)[2], double a, double b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1]) : "d"(a), "d"(b));
}

// d += a * b in f64, 16 x 8 sums of 16 products (sm_90).
__device__ __forceinline__ void mma_double(double (&d)[4], const double (&a)[8], const double (&b)[4]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
                 "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
                   "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
}

// Read COUNT (1, 2 or 4) matrices of 8 rows of 16 bytes from shared memory; lane i gives the address of row i % 8 of matrix i / 8.
template <int COUNT>
__device__ __forceinline__ void ldmatrix(unsigned (&r)[COUNT], unsigned shared) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "ldmatrix reads 1, 2 or 4 matrices");
    if constexpr (COUNT == 1) asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(shared) : "memory");
    if constexpr (COUNT == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared) : "memory");
    if constexpr (COUNT == 4)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

// The same, each matrix of 16-bit elements transposed.
template <int COUNT>
__device__ __forceinline__ void ldmatrix_transposed(unsigned (&r)[COUNT], unsigned shared) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "ldmatrix reads 1, 2 or 4 matrices");
    if constexpr (COUNT == 1)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(shared) : "memory");
    if constexpr (COUNT == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared) : "memory");
    if constexpr (COUNT == 4)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

// Write COUNT (1, 2 or 4) matrices of 8 rows of 16 bytes to shared memory, addresses as for ldmatrix (sm_90).
template <int COUNT>
__device__ __forceinline__ void stmatrix(unsigned shared, const unsigned (&r)[COUNT]) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "stmatrix writes 1, 2 or 4 matrices");
    if constexpr (COUNT == 1) asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(shared), "r"(r[0]) : "memory");
    if constexpr (COUNT == 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared), "r"(r[0]), "r"(r[1]) : "memory");
    if constexpr (COUNT == 4)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(shared), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

// The same, each matrix of 16-bit elements transposed.
template <int COUNT>
__device__ __forceinline__ void stmatrix_transposed(unsigned shared, const unsigned (&r)[COUNT]) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "stmatrix writes 1, 2 or 4 matrices");
    if constexpr (COUNT == 1)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(shared), "r"(r[0]) : "memory");
    if constexpr (COUNT == 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared), "r"(r[0]), "r"(r[1]) : "memory");
    if constexpr (COUNT == 4)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(shared), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
