// C = A B in bf16 with float32 sums: what the emulator's tensor-core tests run as a real kernel.
//
// A is M x K and B is K x N, both row-major, so that B's fragments need ldmatrix.trans.  A block of four warps owns a BM x BN tile of C;
// STAGES tiles of BK columns are on their way at a time, copied by cp.async, 16 bytes a thread, zeros where they lie outside.
// Rows of a tile are 16-byte units, swapped by the row's low bits so that ldmatrix meets no bank twice.  K and N are multiples of 8.
// With STORE_HALF, C is bf16 and leaves through shared memory by stmatrix (sm_90).

#include <cuda_bf16.h>

#ifndef STAGES
#define STAGES 3
#endif
constexpr int BM = 64, BN = 64, BK = 32, THREADS = 128;

__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Byte offset of 16-byte unit `unit` of a row in a tile of `units` units a row.
template <int units> __device__ int place(int row, int unit) {
    return (row * units + (unit ^ (units == 8 ? row & 7 : row >> 1 & 3))) * 16;
}

template <int rows, int units>
__device__ void copy_tile(unsigned to, const __nv_bfloat16* from, int pitch, int row0, int column0, int height, int width) {
    for (int i = threadIdx.x; i < rows * units; i += THREADS) {
        int row = i / units, unit = i % units;
        bool inside = row0 + row < height && column0 + unit * 8 < width;
        const __nv_bfloat16* source = inside ? from + size_t(row0 + row) * pitch + column0 + unit * 8 : from;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + place<units>(row, unit)), "l"(source),
                     "r"(inside ? 16 : 0) : "memory");
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
k(const __nv_bfloat16* A, const __nv_bfloat16* B, void* C, int M, int N, int K) {
    __shared__ __align__(128) unsigned char a_tiles[STAGES][BM * BK * 2], b_tiles[STAGES][BK * BN * 2];
    int lane = threadIdx.x % 32, warp_row = threadIdx.x / 64 * 32, warp_col = threadIdx.x / 32 % 2 * 32;
    int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, tiles = (K + BK - 1) / BK;
    float sums[2][4][4] = {};

    auto fetch = [&](int tile) {
        if (tile < tiles) {
            int stage = tile % STAGES;
            copy_tile<BM, BK / 8>(shared_address(a_tiles[stage]), A, K, row0, tile * BK, M, K);
            copy_tile<BK, BN / 8>(shared_address(b_tiles[stage]), B, N, tile * BK, col0, K, N);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int tile = 0; tile < STAGES - 1; ++tile) fetch(tile);

    for (int tile = 0; tile < tiles; ++tile) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch(tile + STAGES - 1);
        unsigned a_tile = shared_address(a_tiles[tile % STAGES]), b_tile = shared_address(b_tiles[tile % STAGES]);
#pragma unroll
        for (int step = 0; step < BK / 16; ++step) {
            unsigned a[2][4], b[4][2];
#pragma unroll
            for (int i = 0; i < 2; ++i)
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                             : "r"(a_tile + place<BK / 8>(warp_row + i * 16 + lane % 16, step * 2 + lane / 16)));
#pragma unroll
            for (int j = 0; j < 4; j += 2)
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(b[j][0]), "=r"(b[j][1]), "=r"(b[j + 1][0]), "=r"(b[j + 1][1])
                             : "r"(b_tile + place<BN / 8>(step * 16 + lane % 16, warp_col / 8 + j + lane / 16)));
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                                 : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
                                 : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j][0]), "r"(b[j][1]));
        }
    }

#ifdef STORE_HALF
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    unsigned char* staged = &a_tiles[0][0];  // BM x BN of bf16
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) {
            __nv_bfloat162 upper = __floats2bfloat162_rn(sums[i][j][0], sums[i][j][1]);
            __nv_bfloat162 lower = __floats2bfloat162_rn(sums[i][j][2], sums[i][j][3]);
            asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};"
                         ::"r"(shared_address(staged) + place<BN / 8>(warp_row + i * 16 + lane % 16, warp_col / 8 + j)),
                         "r"(*reinterpret_cast<unsigned*>(&upper)), "r"(*reinterpret_cast<unsigned*>(&lower)) : "memory");
        }
    __syncthreads();
    for (int i = threadIdx.x; i < BM * BN / 8; i += THREADS) {
        int row = i / (BN / 8), unit = i % (BN / 8);
        if (row0 + row < M && col0 + unit * 8 < N)
            *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(C) + size_t(row0 + row) * N + col0 + unit * 8)
                = *reinterpret_cast<uint4*>(staged + place<BN / 8>(row, unit));
    }
#else
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j)
            for (int half = 0; half < 2; ++half) {
                int row = row0 + warp_row + i * 16 + half * 8 + lane / 4, col = col0 + warp_col + j * 8 + lane % 4 * 2;
                if (row < M && col < N)
                    *reinterpret_cast<float2*>(static_cast<float*>(C) + size_t(row) * N + col)
                        = make_float2(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
            }
#endif
}
