// The register file: outer products of register tiles and nothing else, by tile shape and order of the multiply-adds.
//
// Each of a block's THREADS threads owns a tile of TM x TN sums, two columns of A and two rows of B, all in registers, and adds the
// two outer products R times: the inner loop of a matrix product whose operands cost nothing.  A multiply-add reads three registers;
// the file gives one from each of its two banks in a cycle, and an operand of the multiply-add before may come from a small cache.
// ORDER says in which order the sums are gone through.  The compiler has the last word: what it made of it stands in the SASS (register
// numbers, .reuse).
// Limited now by: reads of the register file, where the order wastes them; else by multiply-adds.

static_assert(ORDER >= 0 && ORDER <= 4, "ORDER must be 0 to 4: rows, rows and back, columns, columns and back, squares");
static_assert(ORDER != 4 || (TM % 2 == 0 && TN % 2 == 0), "squares of 2 x 2 need even TM and TN");

constexpr int PRODUCTS = 4;  // outer products of a round: the two operand sets in turn, twice

// The sum that comes i-th.  ORDER 0: along rows; 1: along one row and back along the next; 2: along columns; 3: along one column and back
// along the next; 4: in squares of 2 x 2, each gone round.
__device__ constexpr int row_of(int i) {
    if (ORDER <= 1) return i / TN;
    if (ORDER == 2) return i % TM;
    if (ORDER == 3) return i / TM % 2 ? TM - 1 - i % TM : i % TM;
    return i / 4 / (TN / 2) * 2 + i % 4 / 2;
}
__device__ constexpr int column_of(int i) {
    if (ORDER == 0) return i % TN;
    if (ORDER == 1) return i / TN % 2 ? TN - 1 - i % TN : i % TN;
    if (ORDER <= 3) return i / TM;
    return i / 4 % (TN / 2) * 2 + (i % 4 / 2 ? 1 - i % 2 : i % 2);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) outer(const float* A, const float* B, float* sums, int T, int R) {
    const int t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= T) return;
    float a[2][TM], b[2][TN], c[TM][TN];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int m = 0; m < TM; ++m) a[k][m] = A[static_cast<long long>(k * TM + m) * T + t];
#pragma unroll
        for (int n = 0; n < TN; ++n) b[k][n] = B[static_cast<long long>(k * TN + n) * T + t];
    }
#pragma unroll
    for (int i = 0; i < TM * TN; ++i) c[i / TN][i % TN] = i / TN;  // not all the same: the compiler would tie them together
#pragma unroll 1
    for (int round = 0; round < R; ++round) {
#pragma unroll
        for (int k = 0; k < PRODUCTS; ++k) {
#pragma unroll
            for (int i = 0; i < TM * TN; ++i) {
                const int m = row_of(i), n = column_of(i);
                c[m][n] = fmaf(a[k % 2][m], b[k % 2][n], c[m][n]);
            }
            // to the compiler the operands may be new ones: the products are not the same every time
#pragma unroll
            for (int m = 0; m < TM; ++m) asm volatile("" : "+f"(a[k % 2][m]));
#pragma unroll
            for (int n = 0; n < TN; ++n) asm volatile("" : "+f"(b[k % 2][n]));
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < TM * TN; ++i) sum += c[i / TN][i % TN];
    sums[t] = sum;
}
