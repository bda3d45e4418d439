// y = 2 x, a tile a turn: threads write it to shared memory, one lets the bulk engine store it.
constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) k(const float* x, float* y, int turns) {
    __shared__ __align__(128) float tile[THREADS];
    const int t = threadIdx.x, first = blockIdx.x * turns * THREADS;
    for (int turn = 0; turn < turns; ++turn) {
        if (t == 0) bulk_wait_read<0>();  // the turn before has been read
        __syncthreads();  // nobody writes before that
        tile[t] = 2.0f * x[first + turn * THREADS + t];
        fence_async();
        __syncthreads();  // the tile is complete
        if (t == 0) {
            bulk_store(y + first + turn * THREADS, tile, sizeof tile);
            bulk_commit();
        }
    }
    if (t == 0) bulk_wait<0>();
}
