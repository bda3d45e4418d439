// Held back: a vector add that asks for more registers or shared memory than it needs, so that fewer of its blocks fit.
//
// What a multiprocessor holds is decided when a kernel is launched, by whatever of warps, registers and shared memory runs out
// first, used or not. REGS registers are needed on a path that no launch takes; SMEM bytes of shared memory are asked for with
// the launch and never touched. Everything else stays as it is, so that what changes is the number of warps alone.
// A block owns LOADS * THREADS neighbouring elements of C; a thread loads LOADS of each array before it adds the first.
// Limited now by: bytes under way. Warps on a multiprocessor times what each has under way is what hides the latency of memory:
// with more loads a thread, fewer warps do.

constexpr int TILE = LOADS * THREADS;

// 1: registers for all the loads, see vecadd/4
extern "C" __global__ void __launch_bounds__(THREADS, 1)
residency(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
    const int first = blockIdx.x * TILE + threadIdx.x;
    float a[LOADS], b[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
        const int i = first + k * THREADS;
        a[k] = i < N ? A[i] : 0.0f;
        b[k] = i < N ? B[i] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k)
        if (first + k * THREADS < N) C[first + k * THREADS] = a[k] + b[k];

    if constexpr (REGS > 0) {
        // never taken: N is at least 1. Each round needs all the values of the last, so all of them stay in registers.
        if (N < 0) {
            float r[REGS > 0 ? REGS : 1], s = 0.0f;
#pragma unroll
            for (int k = 0; k < REGS; ++k) r[k] = A[k];
#pragma unroll 1
            for (int round = N; round < 0; ++round)
#pragma unroll
                for (int k = 0; k < REGS; ++k) r[k] = fmaf(r[k], r[(k + 1) % REGS], B[round]);
#pragma unroll
            for (int k = 0; k < REGS; ++k) s += r[k];
            C[0] = s;
        }
    }
}
