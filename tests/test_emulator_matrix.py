"""The emulator's matrix loads, stores and transpositions, what is said to wrong uses of tensor cores, and a tiled kernel from NVRTC."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cudalab.emulator import Emulator, KernelFault, PtxError
from cudalab.emulator.hooks import Observer
from emulated import compile_cuda, line_of, ptx_program

LANES = np.arange(32)
TILE = Path(__file__).with_name("kernels") / "mma_tile.cu"

# -- matrices in shared memory

SHARED = """extern "C" __global__ void k(const unsigned* image, const unsigned* at, const unsigned* in, unsigned* out) {
    __shared__ __align__(16) unsigned s[512];
    for (int i = threadIdx.x; i < 512; i += blockDim.x) s[i] = image[i];
    __syncthreads();
    unsigned row = (unsigned)__cvta_generic_to_shared(s) + at[threadIdx.x], r[4];
    for (int j = 0; j < 4; ++j) r[j] = in[threadIdx.x * 4 + j];
    BODY  // here
    for (int j = 0; j < 4; ++j) out[threadIdx.x * 4 + j] = r[j];
    __syncthreads();
    for (int i = threadIdx.x; i < 512; i += blockDim.x) out[blockDim.x * 4 + i] = s[i];
}
"""


def load_text(number: int, trans: bool, what: str = "ldmatrix", space: str = ".shared", address: str = '"r"(row)') -> str:
    registers = ", ".join(f"%{i}" for i in range(number))
    head = f"{what}.sync.aligned.m8n8.x{number}{'.trans' if trans else ''}{space}.b16"
    if what == "ldmatrix":
        outputs = ", ".join(f'"=r"(r[{i}])' for i in range(number))
        return f'asm volatile("{head} {{{registers}}}, [%{number}];" : {outputs} : {address} : "memory");'
    inputs = ", ".join(f'"r"(r[{i}])' for i in range(number))
    return f'asm volatile("{head} [%{number}], {{{registers}}};" :: {inputs}, {address} : "memory");'


def shared(body: str, image, at, registers, emulator=None, target: str = "sm_90a") -> tuple[np.ndarray, np.ndarray]:
    """Registers and shared memory behind the body; 64 threads."""
    text = compile_cuda(SHARED.replace("BODY", body), target)
    out = np.zeros(64 * 4 + 512, np.uint32)
    got = (emulator or Emulator(target)).run_ptx(text, "k", 1, 64, (image, at.astype(np.uint32), registers, out))[-1]
    return got[:256].reshape(64, 4), got[256:]


def operands(number: int, rng):
    """Contents of shared memory, a row address a thread (a misaligned one in threads that give none), registers."""
    image = rng.integers(0, 2**32, 512, dtype=np.uint32)
    at = np.full(64, 3)
    at.reshape(2, 32)[:, :8 * number] = rng.permutation(128)[:16 * number].reshape(2, -1) * 16
    return image, at, rng.integers(0, 2**32, (64, 4), dtype=np.uint32)


def halves_of(image: np.ndarray, at: np.ndarray, warp: int, matrix: int) -> np.ndarray:
    """The 8 x 8 matrix whose row addresses are in lanes 8j..8j+7."""
    rows = at[warp * 32 + matrix * 8:][:8] // 2
    return image.view(np.uint16)[rows[:, None] + np.arange(8)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_ldmatrix(number, trans, target):
    image, at, before = operands(number, np.random.default_rng(number))
    got, _ = shared(load_text(number, trans), image, at, before, target=target)
    for warp in range(2):
        for lane in range(32):
            for j in range(number):
                matrix = halves_of(image, at, warp, j)
                matrix = matrix.T if trans else matrix
                low, high = matrix[lane // 4, lane % 4 * 2:][:2]
                assert got[warp * 32 + lane, j] == int(low) | int(high) << 16
    assert np.array_equal(got[:, number:], before[:, number:])


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_stmatrix(number, trans):
    image, at, registers = operands(number, np.random.default_rng(10 + number))
    _, after = shared(load_text(number, trans, "stmatrix"), image, at, registers)
    expected = image.copy().view(np.uint16)
    for warp in range(2):
        for j in range(number):
            for lane in range(32):
                for element in range(2):
                    row, column = (lane // 4, lane % 4 * 2 + element)[::-1 if trans else 1]
                    value = int(registers[warp * 32 + lane, j]) >> 16 * element & 0xFFFF
                    expected[at[warp * 32 + j * 8 + row] // 2 + column] = value
    assert np.array_equal(after, expected.view(np.uint32))


def test_generic_addresses_of_shared_memory():
    image, at, before = operands(4, np.random.default_rng(5))
    generic = load_text(4, False, space="", address='"l"(reinterpret_cast<char*>(s) + at[threadIdx.x])')
    assert np.array_equal(shared(generic, image, at, before)[0], shared(load_text(4, False), image, at, before)[0])
    with pytest.raises(KernelFault, match="ldmatrix of an address that is not in shared memory"):
        shared(load_text(4, False, space="", address='"l"(image)'), image, at, before)


def test_movmatrix():
    image, at, registers = operands(4, np.random.default_rng(6))
    got, _ = shared('asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r[1]) : "r"(r[0]));', image, at, registers)
    for warp in (slice(0, 32), slice(32, 64)):
        before, after = (np.ascontiguousarray(x[warp, j]).view(np.uint16).reshape(8, 8) for x, j in ((registers, 0), (got, 1)))
        assert np.array_equal(after, before.T)


def test_one_warp_of_several_may_load():
    image, at, before = operands(4, np.random.default_rng(7))
    everybody, _ = shared(load_text(4, True), image, at, before)
    got, _ = shared(f"if (threadIdx.x >= 32) {load_text(4, True)}", image, at, before)
    assert np.array_equal(got[32:], everybody[32:]) and np.array_equal(got[:32], before[:32])


def test_a_guard_lets_whole_warps_through():
    image, at, before = operands(2, np.random.default_rng(8))
    at[:32] = 5  # would be an error
    guarded = ('asm volatile("{ .reg .pred p; setp.ge.u32 p, %3, 32; @p ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2]; }" '
               ': "+r"(r[0]), "+r"(r[1]) : "r"(row), "r"(threadIdx.x) : "memory");')
    got, _ = shared(guarded, image, at, before)
    assert np.array_equal(got[:32], before[:32])
    assert np.array_equal(got[32:, :2], shared(load_text(2, False), image, np.where(np.arange(64) < 32, 0, at), before)[0][32:, :2])
    stored = guarded.replace("ldmatrix", "stmatrix").replace("{%0, %1}, [%2]", "[%2], {%0, %1}")
    _, after = shared(stored, image, at, before)
    assert (after != image).sum() <= 64 and (after != image).any()


class Accesses(Observer):
    def __init__(self):
        self.seen = []

    def access(self, kind, place, offset, size, site):
        if place.space == "shared" and size == 16:
            self.seen.append((kind, np.asarray(place.address) + offset, place.lanes, size))


@pytest.mark.parametrize("what, kind", [("ldmatrix", "load"), ("stmatrix", "store")])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_observers_see_the_rows(number, what, kind):
    image, at, registers = operands(number, np.random.default_rng(9))
    watching = Accesses()
    shared(load_text(number, False, what), image, at, registers, Emulator("sm_90a", observers=(watching,)))
    ((seen, addresses, lanes, size),) = watching.seen
    lanes = np.arange(64) if lanes is None else lanes
    assert seen == kind and lanes.tolist() == [lane for lane in range(64) if lane % 32 < 8 * number]
    assert np.array_equal(addresses - addresses.min(), at[lanes] - at[lanes].min())


# -- wrong uses


def fault(body: str, at=None, target="sm_90a") -> str:
    image, good, registers = operands(4, np.random.default_rng(3))
    with pytest.raises(KernelFault) as raised:
        shared(body, image, good if at is None else at, registers, target=target)
    return str(raised.value)


@pytest.mark.parametrize("what", ["ldmatrix", "stmatrix"])
def test_row_addresses_must_be_aligned_and_inside(what):
    at = np.arange(64) * 16
    at[37] = 37 * 16 + 8
    message = fault(load_text(4, False, what), at)
    assert "not aligned to 16" in message and "thread (37, 0, 0)" in message and f"kernel.cu:{line_of(SHARED, '// here')}" in message
    at[37] = 4096
    assert "out of bounds" in fault(load_text(4, False, what), at)


MMA = ('asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%0,%1,%2,%3}, {%0,%1}, {%0,%1,%2,%3};" '
       ': "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]));')


@pytest.mark.parametrize("body", [load_text(4, False), load_text(2, True, "stmatrix"), MMA,
                                  'asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r[0]));'],
                         ids=["ldmatrix", "stmatrix", "mma", "movmatrix"])
def test_part_of_a_warp_is_refused(body):
    name = body.split('"')[1].split(".")[0]
    assert f"{name} is executed by 16 of the 32 threads of a warp" in fault(f"if (threadIdx.x % 32 < 16) {{ {body} return; }} return;")
    guarded = body.replace(f'("{name}', f'("{{ .reg .pred p; .reg .b32 t; mov.u32 t, %%tid.x; setp.lt.u32 p, t, 40; @p {name}', 1)
    guarded = guarded.replace(';"', '; }"', 1)
    assert "8 threads (first: block (0, 0, 0), thread (32, 0, 0)) wait for the other lanes of its warp at kernel.cu:7" in fault(guarded)
    assert f"{name} is executed by 8 of the 32 threads of a warp" in fault(guarded + " return;")


REFUSED = [
    "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%r0,%r1}, {%r0,%r1,%r2,%r3};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%f0,%f1,%f2,%f3};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%r0,%r1};",
    "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%f0,%f1,%f2,%f3};",
    "mma.sync.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%f0,%f1,%f2,%f3};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1}, {%r0,%r1}, {%f0,%f1,%f2,%f3};",
    "mma.sync.aligned.m8n8k16.row.col.f32.e4m3.e4m3.f32 {%f0,%f1}, {%r0}, {%r0}, {%f0,%f1};",
    "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32 {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%r0}, {%r0,%r1,%r2,%r3};",
    "mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%f0,%f1,%f2,%f3};",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1}, {%r0,%r1}, {%f0,%f1,%f2,%f3}, %r3, 0x0;",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7}, {%r0}, {%r0}, {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7};",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0,%r1}, [%r2];",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r0}, [%r2];",
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r2], {%r0};",
    "movmatrix.sync.aligned.m8n8.b16 %r0, %r1;",
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text.split()[0])
def test_forms_that_are_not_supported_are_refused_with_their_line(text):
    body = f"    .loc 1 7 0\n    {text}"
    whole = ptx_program(body, 1, ".reg .b32 %r<4>; .reg .f32 %f<8>;").replace(".address_size 64", '.address_size 64\n.file 1 "own.cu"')
    with pytest.raises(PtxError, match=r"(not supported|another number of registers).*PTX line \d+, own.cu:7"):
        Emulator().run_ptx(whole, "k", 1, 32, (np.zeros(1, np.uint32),))


# -- a real kernel: more tiles than two rounds of its stages, ragged in every direction


def tile_kernel(target: str, *options: str, text: str | None = None, shape=(150, 136, 232), integers: bool = True, sanitize: bool = False):
    """What mma_tile.cu makes of random operands, and what it should."""
    rng = np.random.default_rng(4)
    m, n, k = shape
    a, b = (rng.integers(-4, 5, size) if integers else rng.standard_normal(size) for size in ((m, k), (k, n)))
    a, b = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    half = "-DSTORE_HALF" in options
    c = np.full((m, n), 0xFFFF, np.uint16) if half else np.full((m, n), np.nan, np.float32)
    ptx = compile_cuda(TILE.read_text() if text is None else text, target, *options)
    arguments = a.view(np.uint16), b.view(np.uint16), c, *map(np.int32, shape)
    got = Emulator(target, sanitize=sanitize).run_ptx(ptx, "k", (-(-n // 64), -(-m // 64)), 128, arguments)[2]
    expected = a.astype(np.float64) @ b.astype(np.float64)
    return (got.view(ml_dtypes.bfloat16), expected.astype(np.float32).astype(ml_dtypes.bfloat16)) if half else (got, expected)


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_a_tiled_kernel(target):
    got, expected = tile_kernel(target)
    assert np.array_equal(got, expected)


def test_a_tiled_kernel_on_random_numbers_and_other_stages():
    got, expected = tile_kernel("sm_80", "-DSTAGES=2", integers=False)
    assert np.abs(got - expected).max() < 8 * 232**0.5 * 2.0**-23


def test_a_tiled_kernel_that_stores_through_stmatrix_is_clean():
    got, expected = tile_kernel("sm_90a", "-DSTORE_HALF", sanitize=True)
    assert np.array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("before, behind, first, second", [
    ("", "        fetch(tile + STAGES - 1);", "write", "cp.async"),
    ('    asm volatile("cp.async.wait_all;" ::: "memory");\n', "", "read", "ldmatrix"),
    ("", "    for (int i = threadIdx.x; i < BM * BN / 8", "write", "stmatrix"),
], ids=["tile in use", "last tile in use", "tile being stored"])
def test_the_sanitizer_sees_matrix_accesses(before, behind, first, second):
    text = TILE.read_text()
    barrier = "        __syncthreads();\n" if behind.startswith("        ") else "    __syncthreads();\n"
    assert text.count(before + barrier + behind) == 1
    with pytest.raises(KernelFault, match=f"race on the .* {first} by .*'{second}.* are not ordered"):
        tile_kernel("sm_90a", "-DSTORE_HALF", text=text.replace(before + barrier + behind, before + behind), sanitize=True)


@pytest.mark.parametrize("right, wrong, message", [
    ('asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");', "", "asynchronous copy, not yet waited for"),
    ('"n"(STAGES - 2)', '"n"(STAGES - 1)', "asynchronous copy, not yet waited for"),
    ("fetch(tile + STAGES - 1);", "fetch(tile + STAGES);", "asynchronous copy, not yet waited for"),
    ("return (row * units +", "return 8 + (row * units +", "not aligned to 16"),
])
def test_a_broken_tiled_kernel_is_stopped(right, wrong, message):
    text = TILE.read_text()
    assert text.count(right) == 1
    with pytest.raises(KernelFault, match=message):
        tile_kernel("sm_80", text=text.replace(right, wrong))


@pytest.mark.parametrize("right, wrong", [(".x4.trans.shared", ".x4.shared"), ("step * 2 + lane / 16", "step * 2 + lane / 8 % 2"),
                                          ("{%4,%5,%6,%7}, {%8,%9}", "{%4,%6,%5,%7}, {%8,%9}")])
def test_a_wrong_fragment_gives_a_wrong_result(right, wrong):
    text = TILE.read_text()
    assert text.count(right) == 1
    got, expected = tile_kernel("sm_80", text=text.replace(right, wrong))
    assert not np.array_equal(got, expected)
