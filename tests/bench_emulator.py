"""How fast the emulator runs: `python tests/bench_emulator.py [NAME…]`.  A time of the emulator, never of a kernel.

Add a case as a function in CASES that gives (plan or CUDA text, what to run it with); `best of 7` after one run that compiles.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent)]

from emulated import compile_cuda  # noqa: E402

from cudalab import registry  # noqa: E402
from cudalab.emulator import Emulator  # noqa: E402
from cudalab.emulator.counters import Counters  # noqa: E402
from cudalab.spec import TensorMap  # noqa: E402

ELEMENTS = 1 << 20
RNG = np.random.default_rng(0)

VECTOR_ADD = """
extern "C" __global__ void k(const float4* a, const float4* b, float4* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = make_float4(a[i].x + b[i].x, a[i].y + b[i].y, a[i].z + b[i].z, a[i].w + b[i].w);
}"""

REDUCTION = """
__shared__ float s[32];
extern "C" __global__ void k(const float* x, float* sum, int n) {
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? s[threadIdx.x] : 0;
        for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d);
        if (threadIdx.x == 0) atomicAdd(sum, v);
    }
}"""

SOFTMAX = """
__shared__ float s[8];
extern "C" __global__ void k(const float* x, float* y, int n) {
    const float* row = x + blockIdx.x * n;
    float m = -3e38f, t = 0;
    for (int i = threadIdx.x; i < n; i += 128) m = fmaxf(m, row[i]);
    for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = m;
    __syncthreads();
    m = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    for (int i = threadIdx.x; i < n; i += 128) t += expf(row[i] - m);
    for (int d = 16; d; d >>= 1) t += __shfl_xor_sync(~0u, t, d);
    if (threadIdx.x % 32 == 0) s[4 + threadIdx.x / 32] = t;
    __syncthreads();
    t = s[4] + s[5] + s[6] + s[7];
    for (int i = threadIdx.x; i < n; i += 128) y[blockIdx.x * n + i] = expf(row[i] - m) / t;
}"""


def cuda_case(text: str, grid: int, block: int, *args):
    ptx, emulator = compile_cuda(text), Emulator()
    return lambda: emulator.run_ptx(ptx, "k", grid, block, args)


def step_case(name: str, size: int, **watching):
    step, emulator = registry.resolve_step(name), Emulator(**watching)
    plan = step.plan(step.op.problem(dict(M=size, N=size, K=size)))
    inputs = {key: RNG.standard_normal((size, size), dtype=np.float32) for key in "AB"}
    return lambda: emulator.run(plan, inputs)


def numbers(count: int) -> np.ndarray:
    return RNG.random(count, dtype=np.float32)


def ampere_case(size: int):
    """The tile kernel of tests/kernels: tiles by cp.async, fragments by ldmatrix, products by mma."""
    ptx, emulator = compile_cuda((Path(__file__).resolve().parent / "kernels" / "mma_tile.cu").read_text(), "sm_80"), Emulator("sm_80")
    operands = [(RNG.standard_normal((size, size), dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16) for _ in range(2)]
    args = (*operands, np.zeros((size, size), np.float32), *[np.int32(size)] * 3)
    return lambda: emulator.run_ptx(ptx, "k", (size // 64, size // 64), 128, args)


def hopper_case(size: int):
    """The warp-specialised kernel of tests/kernels: tiles by TMA, products by wgmma."""
    folder = Path(__file__).resolve().parent / "kernels"
    ptx, emulator = compile_cuda((folder / "hopper.cuh").read_text() + (folder / "hopper_tile.cu").read_text()), Emulator()
    maps = TensorMap("A", "bf16", (size, size), (64, 128), swizzle=128), TensorMap("B", "bf16", (size, size), (64, 64), swizzle=128)
    operands = {name: (RNG.standard_normal((size, size), dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16) for name in "AB"}
    args = (*maps, np.zeros((size, size), np.float32), *[np.int32(size)] * 3)
    return lambda: emulator.run_ptx(ptx, "k", (size // 64, size // 128), 384, args, smem=3 * (128 + 64) * 64 * 2, buffers=operands)


def cold_case(*words: str):
    """The command in a process of its own, with nothing compiled before."""
    def run():
        with tempfile.TemporaryDirectory() as folder:
            fresh = os.environ | dict(CUDALAB_DUMPS=folder, PYTHONPYCACHEPREFIX=folder)
            subprocess.run([sys.executable, "cli.py", *words, "--backend", "emulator"], cwd=Path(__file__).resolve().parent.parent,
                           check=True, stdout=subprocess.DEVNULL, env=fresh)
    return run


CASES = {
    "vector-add-1M": lambda: cuda_case(VECTOR_ADD, 1024, 256, *(numbers(ELEMENTS) for _ in range(3)), np.int32(ELEMENTS // 4)),
    "reduction-1M": lambda: cuda_case(REDUCTION, 64, 256, numbers(ELEMENTS), np.zeros(1, np.float32), np.int32(ELEMENTS)),
    "softmax-256x1000": lambda: cuda_case(SOFTMAX, 256, 128, numbers(256000), numbers(256000), np.int32(1000)),
    **{f"sgemm-step{n}-512": lambda n=n: step_case(f"sgemm/{n}", 512) for n in (5, 8, 11)},
    "sgemm-step5-512-counted": lambda: step_case("sgemm/5", 512, observers=(Counters(),)),
    "sgemm-step5-512-sanitized": lambda: step_case("sgemm/5", 512, sanitize=True),
    "mma-cp.async-512": lambda: ampere_case(512),
    "wgmma-tma-512": lambda: hopper_case(512),
    "bench-step5-cold": lambda: cold_case("bench", "step5"),
}


def main(chosen: list[str]) -> None:
    for name in chosen or CASES:
        run, times = CASES[name](), []
        for _ in range(8):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        print(f"{name:26s} {1e3 * min(times[1:]):8.1f} ms   first {1e3 * times[0]:8.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
