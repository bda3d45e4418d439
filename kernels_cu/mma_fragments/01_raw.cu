// Fragments of mma.sync as they are: what ldmatrix puts into each lane's registers, and what the product leaves there.
//
// A block is one warp, which multiplies sixteen rows of A by eight rows of B (used as columns) over thirty-two bytes of K, and stores
// all its registers lane by lane. Whoever fills A and B with numbers that name their places reads from them which lane has what.
// Limited now by: nothing that matters; it is there to be looked at.

#include "mma.cuh"
#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(32)
mma_fragments(const uint4* __restrict__ A, const uint4* __restrict__ B, unsigned* __restrict__ RA, unsigned* __restrict__ RB,
              Operand::sum* __restrict__ D) {
    __shared__ uint4 rows[24][2];  // sixteen of A, eight of B
    const int lane = threadIdx.x;
    rows[lane / 2][lane % 2] = A[blockIdx.x * 32 + lane];
    if (lane < 16) rows[16 + lane / 2][lane % 2] = B[blockIdx.x * 16 + lane];
    __syncwarp();  // all rows are there before any lane reads them
    unsigned a[4], b[2];
    Operand::sum d[4] = {};
    ldmatrix<4>(a, shared_address(&rows[lane % 16][lane / 16]));
    ldmatrix<2>(b, shared_address(&rows[16 + lane % 8][lane / 8 % 2]));
    mma<Operand>(d, a, b);
    const int at = blockIdx.x * 32 + lane;
    for (int i = 0; i < 4; ++i) RA[at * 4 + i] = a[i], D[at * 4 + i] = d[i];
    for (int i = 0; i < 2; ++i) RB[at * 2 + i] = b[i];
}
