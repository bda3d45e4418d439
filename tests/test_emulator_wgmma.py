"""wgmma on the emulator: every type and width, descriptors of every layout, A from registers, scales; and a whole pipelined tile kernel.

A kernel here copies an image of shared memory that the test has laid out by the tables of the PTX ISA, multiplies, and hands over its
registers as they are: the lane maps are the test's own.
"""

import ml_dtypes
import numpy as np
import pytest

from cudalab.emulator import Deadlock, Emulator, KernelFault, PtxError
from cudalab.emulator.hooks import Observer
from cudalab.spec import TensorMap, i32
from emulated import compile_cuda
from hopper import KERNELS, PRELUDE, swizzle

RNG = np.random.default_rng(1)
TILE = PRELUDE + (KERNELS / "hopper_tile.cu").read_text()
STORED = dict(bf16=ml_dtypes.bfloat16, f16=np.float16, tf32=np.float32, e4m3=ml_dtypes.float8_e4m3fn, e5m2=ml_dtypes.float8_e5m2,
              s8=np.int8, u8=np.uint8)
CODES = {0: 0, 128: 1, 64: 2, 32: 3}


def kernel(columns, d, a, b, *, registers=False, scale_d=1, scales=(1, 1), across=(0, 0), saturate="", after="mma_wait<0>();") -> str:
    """A kernel k(image, descriptors, words of A, accumulators): smem offsets and strides are in the descriptors it is given."""
    size = np.dtype(STORED[a]).itemsize
    depth = 32 // size
    words = columns // (4 if d == "f16" else 2)
    constraint, held = ("+f", "float") if d == "f32" else ("+r", "u32")
    accumulators = ", ".join(f'"{constraint}"(d[{i}])' for i in range(words))
    names = ", ".join(f"%{i}" for i in range(words))
    left = f"{{%{words}, %{words + 1}, %{words + 2}, %{words + 3}}}" if registers else f"%{words}"
    given = ", ".join(f'"r"(fragment[{i}])' for i in range(4)) if registers else '"l"(first)'
    rest = words + (4 if registers else 1)
    immediates = "" if a in ("s8", "u8") else f", {scales[0]}, {scales[1]}"
    if size == 2:
        immediates += f", {across[1]}" if registers else f", {across[0]}, {across[1]}"
    return PRELUDE + f"""
extern "C" __global__ void __launch_bounds__(128) k(const u32* image, const u64* descriptors, const u32* a, {held}* c, int bytes) {{
    extern __shared__ __align__(1024) u32 smem[];
    int t = threadIdx.x;
    for (int i = t; i < bytes / 4; i += 128) smem[i] = image[i];
    {held} d[{words}]; u32 fragment[4];
    for (int i = 0; i < {words}; i++) d[i] = c[i * 128 + t];
    for (int i = 0; i < 4; i++) fragment[i] = a[i * 128 + t];
    fence_async(); __syncthreads();
    u64 base = (shared(smem) & 0x3FFFF) >> 4, first = descriptors[0] + base, second = descriptors[1] + base;
    mma_fence();
    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{rest + 1}, 0; "
        "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{d}.{a}.{b}{saturate} {{{names}}}, {left}, %{rest}, p{immediates};}}"
        : {accumulators} : {given}, "l"(second), "r"({scale_d}));
    mma_commit();
    {after}
    for (int i = 0; i < {words}; i++) c[i * 128 + t] = d[i];
}}
"""


def k_major(rows: np.ndarray, width: int, leading: int, stride: int, step: int = 0):
    """An image of (row, byte) values: the 32 bytes of each row are number `step` in rows of `width` bytes."""
    image = np.zeros(1 << 15, np.uint8)
    for r, c in np.ndindex(*rows.shape):
        if width:
            at = r // 8 * stride + swizzle(r % 8 * width + step * 32 + c, width)
        else:
            at = r // 8 * stride + c // 16 * leading + r % 8 * 16 + c % 16
        image[at] = rows[r, c]
    return image, step * 32


def mn_major(values: np.ndarray, width: int, leading: int, stride: int):
    """An image of (row, k) 16-bit values that lie row after row for each k."""
    image = np.zeros(1 << 15, np.uint8)
    for mn, k in np.ndindex(*values.shape):
        if width:
            across = width // 2
            at = mn // across * leading + k // 8 * stride + swizzle(k % 8 * width + mn % across * 2, width)
        else:
            at = mn // 8 * stride + k // 8 * leading + k % 8 * 16 + mn % 8 * 2
        image[at:at + 2] = values[mn, k:k + 1].view(np.uint8)
    return image, 0


def descriptor(at: int, width: int, leading: int, stride: int) -> int:
    return at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | CODES[width] << 62


def fragment(rows: np.ndarray) -> np.ndarray:
    """A (64, 32 bytes) as the four words of each lane: PTX ISA, "Register Fragments for wgmma.mma_async.m64k*"."""
    words = np.zeros((4, 128, 4), np.uint8)
    for lane in range(128):
        row, column = lane // 32 * 16 + lane % 32 // 4, lane % 4 * 4
        for number, (down, right) in enumerate([(0, 0), (8, 0), (0, 16), (8, 16)]):
            words[number, lane] = rows[row + down, column + right:][:4]
    return words.view(np.uint32)[..., 0]


def lanes_of(matrix: np.ndarray, d: str) -> np.ndarray:
    """The registers (register, lane) of an accumulator (64, N)."""
    kind = dict(f16=np.float16, f32=np.float32, s32=np.int32)[d]
    out = np.zeros((matrix.shape[1] // 2, 128), kind)
    matrix = matrix.astype(np.int64).astype(kind) if d == "s32" else matrix
    for lane in range(128):
        row, column = lane // 32 * 16 + lane % 32 // 4, lane % 4 * 2
        for j in range(matrix.shape[1] // 8):
            for down in (0, 1):
                for right in (0, 1):
                    out[4 * j + 2 * down + right, lane] = matrix[row + 8 * down, 8 * j + column + right]
    if d == "f16":
        return np.ascontiguousarray(out.reshape(-1, 2, 128).transpose(0, 2, 1)).view(np.uint32)[..., 0]
    return out if d == "f32" else out.view(np.uint32)


def values(name: str, shape) -> np.ndarray:
    low = 0 if name == "u8" else -4
    return RNG.integers(low, 5, shape).astype(STORED[name])


def multiply(columns, d, a, b, *, a_layout=(128, 16, 1024, 0), b_layout=(128, 16, 1024, 0), across=(0, 0), left=None, right=None,
             before=None, **how):
    """(the registers that the emulator gives, those that they should be): small integers, exact everywhere."""
    depth = 32 // np.dtype(STORED[a]).itemsize
    left = values(a, (64, depth)) if left is None else left
    right = values(b, (columns, depth)) if right is None else right
    images, descriptors = [], []
    for number, (matrix, (width, leading, stride, step), turned) in enumerate(zip((left, right), (a_layout, b_layout), across)):
        image, at = (mn_major(matrix, width, leading, stride) if turned else
                     k_major(np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), 32), width, leading, stride, step))
        images.append(image)
        descriptors.append(descriptor(at + number * len(image), width, leading, stride))
    before = RNG.integers(-8, 9, (64, columns)).astype(float) if before is None else before
    c = lanes_of(before, d)
    image = np.concatenate(images).view(np.uint32)
    ptx = compile_cuda(kernel(columns, d, a, b, across=across, **how))
    args = image, np.array(descriptors, "u8"), fragment(left.view(np.uint8).reshape(64, 32)), c, i32(image.nbytes)
    got = Emulator(sanitize=True).run_ptx(ptx, "k", 1, 128, args, smem=image.nbytes)[3]
    scale = np.prod(how.get("scales", (1, 1)))
    product = scale * (left.astype(float) @ right.astype(float).T)
    return got, lanes_of(product + (before if how.get("scale_d", 1) else 0), d)


@pytest.mark.parametrize("columns", [8, 24, 64, 104, 256])
def test_widths(columns):
    got, expected = multiply(columns, "f32", "bf16", "bf16")
    assert (got == expected).all()


TYPES = [("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
         ("f32", "e4m3", "e4m3"), ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e4m3"), ("f16", "e5m2", "e5m2"),
         ("s32", "s8", "s8"), ("s32", "s8", "u8"), ("s32", "u8", "s8"), ("s32", "u8", "u8")]


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("types", TYPES, ids=".".join)
def test_every_type(types, registers):
    got, expected = multiply(32 if registers else 24, *types, registers=registers)
    assert (got == expected).all()


@pytest.mark.parametrize("layout", [(0, 128, 256, 0), (0, 1024, 128, 0), (32, 16, 256, 0), (64, 16, 512, 0), (64, 16, 512, 1),
                                    (128, 16, 1024, 3), (128, 16, 2048, 2)], ids=str)
def test_layouts_along_k(layout):
    for types in (("f32", "f16", "f16"), ("f32", "tf32", "tf32"), ("s32", "s8", "s8")):
        got, expected = multiply(24, *types, a_layout=layout, b_layout=layout)
        assert (got == expected).all()


# width, leading (to the next columns of a swizzle's width, or eight k), stride (eight k, or to the next eight columns)
ACROSS = [(0, 2048, 128, 0), (0, 128, 256, 0), (32, 512, 256, 0), (64, 1024, 512, 0), (128, 2048, 1024, 0), (128, 1024, 4096, 0)]


@pytest.mark.parametrize("layout", ACROSS, ids=str)
@pytest.mark.parametrize("across", [(0, 1), (1, 0), (1, 1)], ids=str)
def test_layouts_across(across, layout):
    for a in ("bf16", "f16"):
        along = (128, 16, 1024, 0)
        got, expected = multiply(128, "f32", a, a, across=across, a_layout=layout if across[0] else along,
                                 b_layout=layout if across[1] else along)
        assert (got == expected).all()


def test_b_across_with_a_from_registers():
    got, expected = multiply(64, "f32", "f16", "f16", registers=True, across=(0, 1), b_layout=(128, 2048, 1024, 0))
    assert (got == expected).all()


@pytest.mark.parametrize("how", [dict(scale_d=0), dict(scales=(-1, 1)), dict(scales=(1, -1)), dict(scales=(-1, -1), scale_d=0)], ids=str)
def test_scales(how):
    got, expected = multiply(32, "f32", "bf16", "bf16", **how)
    assert (got == expected).all()


def test_integers_wrap_or_saturate():
    left, right = np.full((64, 32), 127, np.int8), np.full((16, 32), 127, np.int8)
    before = np.full((64, 16), 2.0**31 - 1)
    got, _ = multiply(16, "s32", "s8", "s8", left=left, right=right, before=before)
    assert (got.view(np.int32) == np.int64(2**31 - 1 + 127 * 127 * 32).astype(np.int32)).all()
    got, _ = multiply(16, "s32", "s8", "s8", left=left, right=right, before=before, saturate=".satfinite")
    assert (got.view(np.int32) == 2**31 - 1).all()


def test_sums_are_rounded_once():
    """1 + 2^-24 + 2^-24 is 1 in single precision step by step, and above 1 when it is rounded once."""
    left, right = np.zeros((64, 16), np.float16), np.zeros((8, 16), np.float16)
    left[:, :2], right[:, :2] = 2.0**-12, 2.0**-12
    got, expected = multiply(8, "f32", "f16", "f16", left=left, right=right, before=np.ones((64, 8)))
    assert (got == expected).all() and (got == np.float32(1 + 2.0**-23)).all()


def test_tf32_does_not_see_the_lower_bits():
    left, right = (RNG.integers(1, 5, shape).astype(np.float32) for shape in ((64, 8), (8, 8)))
    got, expected = multiply(8, "f32", "tf32", "tf32", left=(left.view("u4") | np.uint32(0x1FFF)).view("f4"), right=right)
    whole, _ = multiply(8, "f32", "tf32", "tf32", left=left, right=right, before=np.zeros((64, 8)))
    assert (whole == lanes_of(left.astype(float) @ right.T.astype(float), "f32")).all() and (got != expected).any()


# -- wrong uses


def small(body: str, smem: int = 8192, threads: int = 128, observers=()):
    text = kernel(8, "f32", "f16", "f16", after=body)
    image = np.zeros(smem // 4, "u4")
    return Emulator(observers=observers).run_ptx(compile_cuda(text), "k", 1, threads,
                                                 (image, np.array([descriptor(0, 128, 16, 1024)] * 2, "u8"), np.zeros(512, "u4"),
                                                  np.zeros(512, "f4"), i32(smem)), smem=smem)


def test_operands_written_before_the_wait():
    with pytest.raises(KernelFault, match=r"shared memory has changed that wgmma at .*mma_async.* was still to read.*wait_group"):
        small("smem[t] = 5; mma_wait<0>();")
    small("mma_wait<0>(); smem[t] = 5;")
    small("smem[63 * 32] = 5; mma_wait<0>();")  # between the columns that it reads


def test_operands_out_of_bounds_and_incomplete_warpgroups():
    with pytest.raises(KernelFault, match="wgmma reads 16 bytes at shared address .*out of bounds"):
        small("mma_wait<0>();", smem=4096)
    with pytest.raises(KernelFault, match="not all of its 128 threads"):
        small("mma_wait<0>();", threads=96)


def test_forms_that_do_not_exist():
    ptx = compile_cuda(kernel(64, "f32", "tf32", "tf32"))
    for old, new in ((".m64n64k8", ".m64n60k8"), (".m64n64k8", ".m64n64k16"), (".tf32.tf32", ".tf32.bf16"),
                     ("mma_async.sync", "mma_async.sp.sync")):
        with pytest.raises(PtxError, match="not supported"):
            Emulator().run_ptx(ptx.replace(old, new), "k", 1, 128, (np.zeros(4096, "u4"),) * 4 + (i32(0),))


class Recorder(Observer):
    """Everything that is told of asynchronous operations, in order."""

    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if name in ("async_read", "async_read_done", "async_write", "async_done", "registers", "registers_done", "release", "acquire"):
            return lambda *arguments: self.events.append((name, *arguments))
        return super().__getattribute__(name)


def test_observers_are_told_what_is_in_flight():
    recorder = Recorder()
    small("mma_wait<0>();", observers=(recorder,))
    names = [event[0] for event in recorder.events]
    assert names == ["registers", "async_read", "async_read", "registers_done", "async_read_done", "async_read_done"] or \
        names == ["registers", "async_read", "async_read", "async_read_done", "async_read_done", "registers_done"]
    assert len(recorder.events[0][1]) == 4 and len(recorder.events[1][1]) == 128 and recorder.events[1][2] == 16


# -- a pipelined tile kernel


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).view(np.uint16)


def tile(M, N, K, *, cluster=1, delivery="lazy", text=TILE, sanitize=True, stages=3):
    a, b = RNG.integers(-4, 5, (M, K)).astype(np.float32), RNG.integers(-4, 5, (N, K)).astype(np.float32)
    maps = (TensorMap("A", "bf16", (K, M), (64, 128 // cluster), swizzle=128), TensorMap("B", "bf16", (K, N), (64, 64), swizzle=128))
    grid = (-(-N // (64 * cluster)) * cluster, -(-M // 128))
    ptx = compile_cuda(text, "sm_90a", f"-DCLUSTER={cluster}")
    c = Emulator(delivery=delivery, sanitize=sanitize).run_ptx(
        ptx, "k", grid, 384, (*maps, np.full((M, N), np.nan, np.float32), i32(M), i32(N), i32(K)), smem=stages * 24576,
        buffers=dict(A=bf16(a), B=bf16(b)), cluster=(cluster, 1, 1) if cluster > 1 else None)[0]
    return c, a @ b.T


@pytest.mark.parametrize("M, N, K, delivery", [(128, 64, 64, "eager"), (200, 150, 456, "lazy"), (1, 8, 8, "lazy"), (130, 66, 712, "eager")])
def test_the_tile_kernel(M, N, K, delivery):
    c, expected = tile(M, N, K, delivery=delivery)
    assert (c == expected).all()


@pytest.mark.parametrize("cluster, delivery", [(2, "eager"), (2, "lazy"), (4, "lazy")])
def test_the_tile_kernel_with_multicast(cluster, delivery):
    c, expected = tile(130, 250 if cluster == 4 else 130, 456, cluster=cluster, delivery=delivery)
    assert (c == expected).all()


MUTANTS = {
    "too many arrivals expected": ("init(empty + s, CONSUMERS * CLUSTER)", "init(empty + s, CONSUMERS * CLUSTER + 1)", Deadlock,
                                   r"phase 0: 1 of 3 arrivals outstanding, 0 bytes"),
    "one consumer does not arrive": ("if (t % 128 == 0)", "if (t % 256 == 0)", Deadlock, "phase 0: 1 of 2 arrivals outstanding"),
    "too few bytes expected": ("expect(full + s, A_BYTES + B_BYTES)", "expect(full + s, A_BYTES)", Deadlock,
                               "0 of 1 arrivals outstanding, -16384 bytes too many arrived"),
    "too many bytes expected": ("expect(full + s, A_BYTES + B_BYTES)", "expect(full + s, A_BYTES + B_BYTES + 16)", Deadlock,
                                "0 of 1 arrivals outstanding, 16 bytes"),
    "the producer's parity is wrong": ("wait(empty + s, ~round & 1)", "wait(empty + s, round & 1)", Deadlock,
                                       r"thread \(0, 0, 0\)\) wait for parity 0 of the mbarrier"),
    "the producer does not wait": ("wait(empty + s, ~round & 1);", "", KernelFault,
                                   "an arrival more than the mbarrier at .* still expects"),
    "tiles that are never waited for": ("wait(full + s, round & 1);", "", None, None),
    "the consumers' parity is wrong": ("wait(full + s, round & 1)", "wait(full + s, ~round & 1)", None, None),
    "another swizzle": (" + k * 32, 16, 1024, 1),\n", " + k * 32, 16, 1024, 2),\n", None, None),
    "another stride": ("(bs + s * B_BYTES) + k * 32, 16, 1024, 1)", "(bs + s * B_BYTES) + k * 32, 16, 512, 1)", None, None),
    "coordinates in the wrong order": ("step * BK, blockIdx.x * BN)", "blockIdx.x * BN, step * BK)", None, None),
}


@pytest.mark.parametrize("old, new, kind, message", MUTANTS.values(), ids=MUTANTS)
def test_mutants_of_the_tile_kernel(old, new, kind, message):
    assert TILE.count(old) == 1
    text = TILE.replace(old, new)
    try:
        c, expected = tile(256, 128, 512, text=text, sanitize=False)
    except KernelFault as error:
        assert kind is None or isinstance(error, kind)
        if message:
            with pytest.raises(KernelFault, match=message):
                raise error
        return
    assert kind is None and not np.array_equal(c, expected)
