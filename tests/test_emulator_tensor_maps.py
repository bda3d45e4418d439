"""Tensor copies on the emulator: boxes of every dimension, swizzle and fill, loaded, stored and added; and wrong ones."""

import numpy as np
import pytest

import toy
from cudalab.emulator import Emulator, KernelFault
from cudalab.errors import BadLaunch
from cudalab.spec import TensorMap, i32
from emulated import compile_cuda
from hopper import BOTH, PRELUDE, swizzle

RNG = np.random.default_rng(0)


TENSOR = """extern "C" __global__ void k(const __grid_constant__ Map m, u8* out, int x, int y, int z, int bytes) {
    extern __shared__ __align__(1024) u8 tile[];
    __shared__ u64 b;
    int t = threadIdx.x;
    if (t == 0) {
        init(&b, 1); fence_init();
        asm volatile("prefetch.tensormap [%0];" :: "l"(&m));
        expect(&b, bytes);
        LOAD;
    }
    __syncwarp();
    wait(&b, 0);
    for (int i = t; i < bytes; i += 32) out[i] = tile[i];
}"""


def tensor_case(tensor, box, start, *, dtype, width=0, fill="zero", steps=None, delivery="lazy", whole=None):
    """What a load leaves in shared memory, and what it should."""
    rank, size = tensor.ndim, tensor.itemsize
    load = {1: "load_1d(tile, &m, &b, x)", 2: "load_2d(tile, &m, &b, x, y)", 3: "load_3d(tile, &m, &b, x, y, z)"}[rank]
    steps = steps or (1,) * rank
    counts = [-(-b // s) for b, s in zip(box, steps)]
    total = int(np.prod(counts)) * size
    m = TensorMap("T", dtype, tensor.shape[::-1], box, tensor.strides[::-1][1:], steps, width, fill)
    ptx = compile_cuda(PRELUDE + TENSOR.replace("LOAD", load))
    args = m, np.zeros(total, "u1"), *map(i32, (*start, 0, 0)[:3]), i32(total)
    out = Emulator(delivery=delivery, sanitize=True).run_ptx(ptx, "k", 1, 32, args, smem=-(-total // 128) * 128,
                                                             buffers=dict(T=tensor if whole is None else whole))[0]
    expected = np.zeros(total, "u1")
    outside = np.zeros((), tensor.dtype)[()] if fill == "zero" else np.array(2 ** (8 * size - 1) - 1, tensor.dtype)[()]
    for number, place in enumerate(np.ndindex(*counts[::-1])):
        at = [s + p * step for s, p, step in zip(start[::-1], place, steps[::-1])]
        inside = all(0 <= a < n for a, n in zip(at, tensor.shape))
        value = tensor[tuple(at)] if inside else outside
        for byte, datum in enumerate(value.tobytes()):
            expected[swizzle(number * size + byte, width)] = datum
    return out, expected


@BOTH
@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("start", [(0, 0), (8, 3), (-3, -2), (61, 17), (64, 0)])
def test_boxes_of_two_dimensions_by_every_swizzle(width, start, delivery):
    tensor = RNG.integers(0, 1 << 16, (20, 64)).astype("u2")
    out, expected = tensor_case(tensor, ((width or 128) // 2, 16), start, dtype="bf16", width=width, delivery=delivery)
    assert (out == expected).all()


@pytest.mark.parametrize("shape, box, start, dtype, kind, more", [
    ((1000,), (64,), (980,), "u1", "u8", {}),
    ((96,), (32,), (-7,), "f4", "f32", {}),
    ((5, 6, 32), (16, 4, 3), (24, 4, 3), "u2", "f16", dict(width=32)),
    ((5, 6, 32), (32, 4, 3), (0, -1, -1), "f4", "f32", dict(width=128)),
    ((4, 4, 16), (8, 2, 2), (1, 1, 1), "u8", "u64", dict(width=64)),
    ((9, 32), (32, 8), (4, 2), "u2", "bf16", dict(fill="nan")),
    ((20, 32), (16, 12), (0, -2), "u2", "u16", dict(steps=(1, 3))),
])
def test_boxes_of_other_shapes(shape, box, start, dtype, kind, more):
    tensor = RNG.integers(0, 200, shape).astype(dtype)
    out, expected = tensor_case(tensor, box, start, dtype=kind, **more)
    assert (out == expected).all()


def test_rows_further_apart_than_they_are_long():
    tensor = RNG.integers(0, 1 << 16, (20, 64)).astype("u2")
    out, expected = tensor_case(tensor[:, :24], (16, 8), (16, 4), dtype="u16", whole=tensor)
    assert (out == expected).all()


STORE = """extern "C" __global__ void k(const __grid_constant__ Map m, const __grid_constant__ Map from, int x, int y) {
    extern __shared__ __align__(1024) u8 tile[];
    __shared__ u64 b;
    if (threadIdx.x == 0) {
        init(&b, 1); fence_init();
        expect(&b, 2048); load_2d(tile, &from, &b, 0, 0); wait(&b, 0);
        STORE
        bulk_commit(); bulk_wait<0>();
    }
}"""


@BOTH
@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("start", [(0, 0), (-2, 5), (30, -3), (27, 9)])
def test_boxes_stored_and_clipped(width, start, delivery):
    columns = (width or 64) // 2
    box, source = (columns, 1024 // columns), RNG.integers(0, 1 << 16, (1024 // columns, columns)).astype("u2")
    target = np.zeros((16, 64), "u2")
    maps = [TensorMap(name, "u16", array.shape[::-1], (box[0], min(box[1], 256)), swizzle=width)
            for name, array in (("T", target), ("S", source))]
    ptx = compile_cuda(PRELUDE + STORE.replace("STORE", "store_2d(&m, tile, x, y);"))
    out = Emulator(delivery=delivery, sanitize=True).run_ptx(ptx, "k", 1, 1, (*maps, *map(i32, start)), smem=2048,
                                                             buffers=dict(T=target, S=source))[0]
    expected = target.copy()
    for row, column in np.ndindex(*source.shape):
        x, y = start[0] + column, start[1] + row
        if 0 <= x < 64 and 0 <= y < 16:
            expected[y, x] = source[row, column]
    assert (out == expected).all()


@BOTH
def test_boxes_added_to_a_tensor(delivery):
    source, target = (RNG.integers(-9, 9, (32, 16)).astype("f4") for _ in range(2))
    maps = [TensorMap(name, "f32", (16, 32), (16, 32), swizzle=64) for name in "TS"]
    reduce = ('asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" '
              ':: "l"(&m), "r"(shared(tile)), "r"(x), "r"(y) : "memory");')
    ptx = compile_cuda(PRELUDE + STORE.replace("STORE", reduce))
    out = Emulator(delivery=delivery, sanitize=True).run_ptx(ptx, "k", 1, 1, (*maps, i32(0), i32(-4)), smem=2048,
                                                             buffers=dict(T=target, S=source))[0]
    expected = target.copy()
    expected[:28] += source[4:]
    assert (out == expected).all()


def test_a_plan_with_tensor_maps(tmp_path, monkeypatch):
    """The seam of both backends: compiled, verified and run as a step is."""
    monkeypatch.setenv("CUDALAB_DUMPS", str(tmp_path / "dumps"))
    text = PRELUDE + """extern "C" __global__ void copy(const __grid_constant__ Map a, const __grid_constant__ Map c, int N) {
    __shared__ __align__(128) u8 tile[1024]; __shared__ u64 b;
    if (threadIdx.x == 0) {
        init(&b, 1); fence_init();
        for (int x = blockIdx.x * 256, i = 0; x < N; x += gridDim.x * 256, i++) {
            expect(&b, 1024); load_1d(tile, &a, &b, x); wait(&b, i & 1);
            asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];"
                         :: "l"(&c), "r"(shared(tile)), "r"(x) : "memory");
            bulk_commit(); bulk_wait_read<0>();
        }
        bulk_wait<0>();
    }
}"""
    plan = toy.plan(tmp_path, text, args=(TensorMap("A", "f32", (1000,), (256,)), TensorMap("C", "f32", (1000,), (256,)), "N"))
    a = RNG.random(1000, dtype="f4")
    assert (Emulator(sanitize=True).run(plan, dict(A=a))["C"] == a).all()
    with pytest.raises(BadLaunch, match="none of the tensors A C"):
        toy.plan(tmp_path, text, args=(TensorMap("B", "f32", (1000,), (256,)),))
    with pytest.raises(BadLaunch, match="parameter 2 is bytes of 128 bytes; the launch passes the address of C"):
        Emulator().run(toy.plan(tmp_path, text, args=(TensorMap("A", "f32", (1000,), (256,)), "C", "N")), dict(A=a))


@pytest.mark.parametrize("changes, message", [
    (dict(dtype="f99"), "no elements of type f99"), (dict(box=(16,)), "1 of the box"), (dict(box=(300, 4)), "the box 1 to 256"),
    (dict(strides=(40,)), "multiple of 16"), (dict(box=(4, 4)), "a box of 8 bytes along the innermost"),
    (dict(box=(64, 4), swizzle=64), "swizzle 64 with a box of 128 bytes"), (dict(swizzle=48), "swizzle 48"),
    (dict(element_strides=(2, 1)), "element strides"), (dict(fill="one"), "fill one"), (dict(offset=8), "multiple of 16")])
def test_a_tensor_map_that_the_driver_would_refuse(changes, message):
    with pytest.raises(BadLaunch, match=message):
        TensorMap(**dict(dict(name="T", dtype="bf16", dims=(64, 8), box=(16, 4)), **changes))


def test_wrong_tensor_copies():
    tensor = np.zeros((8, 64), "u2")
    with pytest.raises(BadLaunch, match="rows of 32 bytes swizzled by 64"):
        tensor_case(tensor, (16, 4), (0, 0), dtype="u16", width=64)
    ptx = compile_cuda(PRELUDE + TENSOR.replace("LOAD", "load_1d(tile, &m, &b, x)"))
    m = TensorMap("T", "u16", (64, 8), (16, 4))
    args = (m, np.zeros(128, "u1"), i32(0), i32(0), i32(0), i32(128))
    with pytest.raises(KernelFault, match="a copy of 1 dimensions by a tensor map of 2"):
        Emulator().run_ptx(ptx, "k", 1, 32, args, smem=128, buffers=dict(T=tensor))
    with pytest.raises(KernelFault, match="what is no tensor map"):
        Emulator().run_ptx(ptx, "k", 1, 32, (bytes(128), *args[1:]), smem=128)
    larger = TensorMap("T", "u16", (64, 9), (16, 4))
    ptx = compile_cuda(PRELUDE + TENSOR.replace("LOAD", "load_2d(tile, &m, &b, x, y)"))
    with pytest.raises(KernelFault, match="a tensor copy reads .* out of bounds"):
        Emulator().run_ptx(ptx, "k", 1, 32, (larger, *args[1:3], i32(6), *args[4:]), smem=128, buffers=dict(T=tensor))
    with pytest.raises(KernelFault, match="a tensor copy writes 128 bytes at shared address .*out of bounds"):
        Emulator().run_ptx(ptx, "k", 1, 32, (m, *args[1:]), smem=64, buffers=dict(T=tensor))
