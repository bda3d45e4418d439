// The swizzles of TMA as they are: where the copy engine puts each sixteen bytes of a tile's rows.
//
// A block copies one tile of ROWS rows, each as wide as the swizzle, to shared memory with a tensor map that swizzles, and stores the
// bytes as they lie there.
// Limited now by: nothing that matters; it is there to be looked at.

#include "mbarrier.cuh"
#include "ptx.cuh"
#include "tma.cuh"

#if VARIANT_SWIZZLE128
constexpr int WIDTH = 128;
#elif VARIANT_SWIZZLE64
constexpr int WIDTH = 64;
#else
constexpr int WIDTH = 32;
#endif

extern "C" __global__ void __launch_bounds__(128)
swizzle_units(const __grid_constant__ TensorMap X, unsigned* __restrict__ Y) {
    __shared__ __align__(1024) unsigned tile[ROWS * WIDTH / 4];
    __shared__ __align__(8) unsigned long long full;
    if (threadIdx.x == 0) {
        mbarrier_init(shared_address(&full), 1);
        fence_mbarrier_init();
        mbarrier_expect(shared_address(&full), sizeof(tile));
        tma_load(shared_address(tile), X, 0, blockIdx.x * ROWS, shared_address(&full));
    }
    __syncthreads();  // the barrier is made before anyone waits at it
    mbarrier_wait(shared_address(&full), 0);
    for (int i = threadIdx.x; i < ROWS * WIDTH / 4; i += 128) Y[blockIdx.x * (ROWS * WIDTH / 4) + i] = tile[i];
}
