// ldmatrix as it is: which bytes of four matrices of eight rows of sixteen bytes each lane gets.
//
// A block is one warp; lane i gives the address of row i % 8 of matrix i / 8, and stores its registers. With the variant "turned" each
// matrix, of elements of sixteen bits, is transposed on the way.
// Limited now by: nothing that matters; it is there to be looked at.

#include "mma.cuh"
#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(32)
ldmatrix_fragments(const uint4* __restrict__ X, unsigned* __restrict__ R) {
    __shared__ uint4 rows[32];
    const int lane = threadIdx.x;
    rows[lane] = X[blockIdx.x * 32 + lane];
    __syncwarp();  // all rows are there before any lane reads them
    unsigned r[4];
#if VARIANT_TURNED
    ldmatrix_transposed<4>(r, shared_address(&rows[lane]));
#else
    ldmatrix<4>(r, shared_address(&rows[lane]));
#endif
    for (int i = 0; i < 4; ++i) R[(blockIdx.x * 32 + lane) * 4 + i] = r[i];
}
