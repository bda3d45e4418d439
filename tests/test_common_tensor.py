"""The headers of tensor-core instructions (mma.cuh, wgmma.cuh), each function on the emulator against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from cudalab.emulator import Emulator
from cudalab.spec import KERNELS
from emulated import compile_cuda

INCLUDE = f"-I{KERNELS / 'common'}"
STORED = dict(BF16=ml_dtypes.bfloat16, F16=np.float16, TF32=np.float32, E4M3=ml_dtypes.float8_e4m3fn, E5M2=ml_dtypes.float8_e5m2,
              S8=np.int8)
WGMMA = '''#include "ptx.cuh"
#include "wgmma.cuh"
extern "C" __global__ void __launch_bounds__(128) k(const unsigned* image, const unsigned* fragment, {sum}* c) {{
    __shared__ __align__(1024) unsigned smem[{words}];
    for (int i = threadIdx.x; i < {words}; i += 128) smem[i] = image[i];
    {sum} d[{columns} / 2];
    unsigned a[4];
    for (int i = 0; i < {columns} / 2; ++i) d[i] = c[i * 128 + threadIdx.x];
    for (int i = 0; i < 4; ++i) a[i] = fragment[i * 128 + threadIdx.x];
    fence_proxy_async();
    __syncthreads();
    const unsigned base = shared_address(smem);
    wgmma_fence();
    pin(d);
    wgmma<{tag}{orders}>(d, {left}, {right}, {accumulate});
    wgmma_commit();
    wgmma_wait<0>();
    pin(d);
    for (int i = 0; i < {columns} / 2; ++i) c[i * 128 + threadIdx.x] = d[i];
}}
'''


def run_ptx(text: str, grid, block, *args, target="sm_90a"):
    return Emulator(target, sanitize=True).run_ptx(compile_cuda(text, target, INCLUDE), "k", grid, block, args)


def integers(tag: str, shape, seed):
    """Small integers as the tag's type stores them: products and their sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(STORED[tag])


def cores(matrix: np.ndarray) -> np.ndarray:
    """Rows of 32 bytes in the order of unswizzled cores: eight rows of sixteen bytes lie together, the second half of K behind all."""
    data = matrix.view(np.uint8).reshape(-1, 2, 16)
    return np.ascontiguousarray(data.transpose(1, 0, 2)).reshape(-1)


def accumulators(matrix: np.ndarray) -> np.ndarray:
    """64 x N sums as registers: [register, thread].  PTX ISA, "Register Fragments for wgmma", matrix D."""
    thread, register = np.arange(128), np.arange(matrix.shape[1] // 2)[:, None]
    rows = thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8
    return matrix[rows, register // 4 * 8 + thread % 4 * 2 + register % 2]


def a_registers(matrix: np.ndarray) -> np.ndarray:
    """64 rows of 32 bytes as four registers of 128 threads: each register 4 bytes of a row."""
    words, thread, register = matrix.view(np.uint8).view(np.uint32), np.arange(128), np.arange(4)[:, None]
    return words[thread // 32 * 16 + thread % 32 // 4 + register % 2 * 8, register // 2 * 4 + thread % 4]


CASES = [("BF16", 8, "shared", 1), ("F16", 64, "registers", 1), ("TF32", 96, "shared", 0), ("E4M3", 256, "shared", 1),
         ("E5M2", 16, "registers", 0), ("S8", 256, "shared", 1), ("S8", 24, "registers", 1)]


@pytest.mark.parametrize("tag, columns, left, accumulate", CASES)
def test_wgmma(tag, columns, left, accumulate):
    depth = 32 // np.dtype(STORED[tag]).itemsize
    a, b = integers(tag, (64, depth), 1), integers(tag, (columns, depth), 2)
    before = np.random.default_rng(3).integers(-9, 10, (64, columns)).astype(np.int32 if tag == "S8" else np.float32)
    image = np.concatenate([cores(a), cores(b)])
    text = WGMMA.format(sum="int" if tag == "S8" else "float", words=image.size // 4, columns=columns, tag=tag, orders="",
                        accumulate=accumulate, left="a" if left == "registers" else "wgmma_descriptor<0>(base, 1024, 128)",
                        right=f"wgmma_descriptor<0>(base + 2048, {columns * 16}, 128)")
    *_, c = run_ptx(text, 1, 128, image.view(np.uint32), a_registers(a), accumulators(before))
    expected = a.astype(np.float64) @ b.astype(np.float64).T + accumulate * before
    assert np.array_equal(c, accumulators(expected))


@pytest.mark.parametrize("a_order, b_order", [(1, 0), (0, 1), (1, 1)])
def test_wgmma_of_operands_along_m_and_n(a_order, b_order):
    """16-bit operands that lie row after row of K, in rows of 128 swizzled bytes: 64 elements of M or N."""
    a, b = integers("BF16", (64, 16), 1), integers("BF16", (64, 16), 2)

    def across(matrix):  # 16 rows, one a k, of 128 bytes: units of sixteen bytes swapped by the row's low bits
        data = np.ascontiguousarray(matrix.T).view(np.uint8).reshape(16, 8, 16)
        return np.concatenate([row[np.arange(8) ^ k % 8].reshape(-1) for k, row in enumerate(data)])
    images = [across(m) if order else cores(m) for m, order in ((a, a_order), (b, b_order))]
    image = np.concatenate(images)
    left, right = (f"wgmma_descriptor<128>(base + {at}, 1024, 1024)" if order else f"wgmma_descriptor<0>(base + {at}, 1024, 128)"
                   for at, order in ((0, a_order), (2048, b_order)))
    text = WGMMA.format(sum="float", words=image.size // 4, columns=64, tag="BF16", orders=f", {a_order}, {b_order}",
                        accumulate=0, left=left, right=right)
    *_, c = run_ptx(text, 1, 128, image.view(np.uint32), a_registers(a), np.zeros((32, 128), np.float32))
    assert np.array_equal(c, accumulators(a.astype(np.float64) @ b.astype(np.float64).T))


MMA = '''#include "ptx.cuh"
#include "mma.cuh"
extern "C" __global__ void __launch_bounds__(32) k(const uint4* A, const uint2* B, {sum}* C) {{
    const uint4 x = A[threadIdx.x];
    const uint2 y = B[threadIdx.x];
    const unsigned a[4] = {{x.x, x.y, x.z, x.w}}, b[2] = {{y.x, y.y}};
    {sum} d[4];
    for (int i = 0; i < 4; ++i) d[i] = C[threadIdx.x * 4 + i];
    mma<{tag}>(d, a, b);
    for (int i = 0; i < 4; ++i) C[threadIdx.x * 4 + i] = d[i];
}}
'''


@pytest.mark.parametrize("tag", STORED)
def test_mma(tag):
    """PTX ISA, "Matrix Fragments for mma": register r of A holds 4 bytes of row lane / 4 + r % 2 * 8, word r / 2 * 4 + lane % 4."""
    depth = 32 // np.dtype(STORED[tag]).itemsize
    a, b = integers(tag, (16, depth), 1), integers(tag, (8, depth), 2)
    before = np.random.default_rng(3).integers(-9, 10, (16, 8)).astype(np.int32 if tag == "S8" else np.float32)
    lane, register = np.arange(32)[:, None], np.arange(4)
    given = a.view(np.uint8).view(np.uint32)[lane // 4 + register % 2 * 8, register // 2 * 4 + lane % 4]
    other = b.view(np.uint8).view(np.uint32)[lane // 4, register[:2] * 4 + lane % 4]
    place = lane // 4 + register // 2 * 8, lane % 4 * 2 + register % 2
    *_, c = run_ptx(MMA.format(sum="int" if tag == "S8" else "float", tag=tag), 1, 32, given, other, before[place])
    assert np.array_equal(c, (a.astype(np.float64) @ b.astype(np.float64).T + before)[place])


def test_mma_of_doubles_and_half_sums():
    """Two shapes of f64 and the f16 sums: D has the same places as above, two f16 a register."""
    rng = np.random.default_rng(1)
    lane, pair = np.arange(32)[:, None], np.arange(2)
    small, across = rng.standard_normal((8, 4)), rng.standard_normal((8, 4))
    text = '''#include "mma.cuh"
extern "C" __global__ void __launch_bounds__(32) k(const double* A, const double* B, double* C) {
    double d[2] = {0, 0};
    mma_double(d, A[threadIdx.x], B[threadIdx.x]);
    C[threadIdx.x * 2] = d[0], C[threadIdx.x * 2 + 1] = d[1];
}'''
    *_, c = run_ptx(text, 1, 32, small.reshape(-1), across.reshape(-1), np.zeros((32, 2)), target="sm_80")
    assert np.allclose(c, (small @ across.T)[lane // 4, lane % 4 * 2 + pair], rtol=1e-15)

    a, b, four = rng.integers(-9, 10, (16, 16)).astype(float), rng.integers(-9, 10, (8, 16)).astype(float), np.arange(4)
    eight = np.arange(8)
    text = '''#include "mma.cuh"
extern "C" __global__ void __launch_bounds__(32) k(const double* A, const double* B, double* C) {
    double a[8], b[4], d[4] = {0, 0, 0, 0};
    for (int i = 0; i < 8; ++i) a[i] = A[threadIdx.x * 8 + i];
    for (int i = 0; i < 4; ++i) b[i] = B[threadIdx.x * 4 + i];
    mma_double(d, a, b);
    for (int i = 0; i < 4; ++i) C[threadIdx.x * 4 + i] = d[i];
}'''
    given = a[lane // 4 + eight % 2 * 8, eight // 2 * 4 + lane % 4]
    *_, c = run_ptx(text, 1, 32, given, b[lane // 4, four * 4 + lane % 4], np.zeros((32, 4)))
    assert np.array_equal(c, (a @ b.T)[lane // 4 + four // 2 * 8, lane % 4 * 2 + four % 2])

    a, b = integers("F16", (16, 16), 1), integers("F16", (8, 16), 2)
    text = '''#include "mma.cuh"
extern "C" __global__ void __launch_bounds__(32) k(const unsigned* A, const unsigned* B, unsigned* C) {
    unsigned a[4], b[2], d[2] = {0, 0};
    for (int i = 0; i < 4; ++i) a[i] = A[threadIdx.x * 4 + i];
    for (int i = 0; i < 2; ++i) b[i] = B[threadIdx.x * 2 + i];
    mma_half_sums(d, a, b);
    for (int i = 0; i < 2; ++i) C[threadIdx.x * 2 + i] = d[i];
}'''
    given = a.view(np.uint32)[lane // 4 + four % 2 * 8, four // 2 * 4 + lane % 4]
    other = b.view(np.uint32)[lane // 4, pair * 4 + lane % 4]
    *_, c = run_ptx(text, 1, 32, given, other, np.zeros((32, 2), np.uint32), target="sm_80")
    assert np.array_equal(c.view(np.float16), (a.astype(float) @ b.astype(float).T)[lane // 4 + four // 2 * 8, lane % 4 * 2 + four % 2])


@pytest.mark.parametrize("transposed", ["", "_transposed"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_of_shared_memory(count, transposed):
    """ldmatrix then stmatrix of the same kind brings the matrices back; the registers in between are the PTX ISA's rows or columns."""
    text = f'''#include "ptx.cuh"
#include "mma.cuh"
extern "C" __global__ void __launch_bounds__(32) k(const unsigned* in, unsigned* seen, unsigned* out) {{
    __shared__ __align__(16) unsigned there[{32 * count}], back[{32 * count}];
    for (int i = threadIdx.x; i < {32 * count}; i += 32) there[i] = in[i];
    __syncwarp();
    unsigned r[{count}];
    const int row = threadIdx.x % {8 * count};
    ldmatrix{transposed}(r, shared_address(there + row * 4));
    for (int i = 0; i < {count}; ++i) seen[i * 32 + threadIdx.x] = r[i];
    stmatrix{transposed}(shared_address(back + row * 4), r);
    __syncwarp();
    for (int i = threadIdx.x; i < {32 * count}; i += 32) out[i] = back[i];
}}'''
    matrices = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)
    zeros = np.zeros(32 * count, np.uint32)
    given, seen, back = run_ptx(text, 1, 32, matrices.view(np.uint32).reshape(-1), zeros, zeros)
    assert np.array_equal(back, given)
    expected = np.ascontiguousarray(matrices.swapaxes(1, 2)) if transposed else matrices
    assert np.array_equal(seen, expected.view(np.uint32).reshape(-1))
