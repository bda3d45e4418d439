// C (M x N, f32) = A (M x K, bf16) * B (N x K, bf16)^T: one warpgroup copies by TMA, two multiply by wgmma; stages in a ring of mbarriers.
// Every block owns BM x BN of C.  CLUSTER blocks along x share A's tile: each loads its part of it for all.  Ragged in all dimensions.
constexpr int BM = 128, BN = 64, BK = 64, STAGES = 3, CONSUMERS = 2;
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2;
#ifndef CLUSTER
#define CLUSTER 1
#endif

DEV void multiply(float (&d)[32], u64 a, u64 b) {
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
                 "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
                 : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20), D4(24), D4(28) : "l"(a), "l"(b));
}

extern "C" __global__ void __launch_bounds__(384) k(const __grid_constant__ Map a, const __grid_constant__ Map b,
                                                         float* c, int M, int N, int K) {
    extern __shared__ __align__(1024) u8 tiles[];
    __shared__ u64 full[STAGES], empty[STAGES];
    u8 *as = tiles, *bs = tiles + STAGES * A_BYTES;
    int t = threadIdx.x, group = t / 128, steps = (K + BK - 1) / BK;
    if (t == 0) {
        for (int s = 0; s < STAGES; s++) { init(full + s, 1); init(empty + s, CONSUMERS * CLUSTER); }
        fence_init();
    }
    if (CLUSTER > 1) cluster_sync(); else __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (t == 0) {
            for (int step = 0; step < steps; step++) {
                int s = step % STAGES, round = step / STAGES;
                wait(empty + s, ~round & 1);
                expect(full + s, A_BYTES + B_BYTES);
                if (CLUSTER == 1)
                    load_2d(as + s * A_BYTES, &a, full + s, step * BK, blockIdx.y * BM);
                else
                    load_2d_all(as + s * A_BYTES + rank() * (A_BYTES / CLUSTER), &a, full + s, step * BK,
                                blockIdx.y * BM + rank() * (BM / CLUSTER), (1 << CLUSTER) - 1);
                load_2d(bs + s * B_BYTES, &b, full + s, step * BK, blockIdx.x * BN);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float d[32] = {};
        int half = group - 1;
        for (int step = 0; step < steps; step++) {
            int s = step % STAGES, round = step / STAGES;
            wait(full + s, round & 1);
            mma_fence();
#pragma unroll
            for (int k = 0; k < BK / 16; k++)
                multiply(d, descriptor(shared(as + s * A_BYTES + half * A_BYTES / 2) + k * 32, 16, 1024, 1),
                         descriptor(shared(bs + s * B_BYTES) + k * 32, 16, 1024, 1));
            mma_commit();
            mma_wait<0>();
            if (t % 128 == 0)
                for (int r = 0; r < CLUSTER; r++) if (CLUSTER == 1) arrive(empty + s); else arrive_at(empty + s, r);
        }
        int row = blockIdx.y * BM + half * 64 + t % 128 / 32 * 16 + t % 32 / 4, column = blockIdx.x * BN + t % 4 * 2;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int r = row + i / 2 % 2 * 8, n = column + i / 4 * 8 + i % 2;
            if (r < M && n < N) c[(size_t)r * N + n] = d[i];
        }
    }
    if (CLUSTER > 1) cluster_sync();
}
