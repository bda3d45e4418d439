"""The emulator's tensor cores: every shape and type of mma.sync against NumPy through the element formulas of the PTX ISA, matrix loads and
stores, models of accumulation, a tiled kernel from NVRTC; and what is said to wrong uses."""

import functools
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import test_emulator_wgmma
from cudalab.emulator import Emulator, KernelFault, PtxError
from cudalab.emulator.hooks import Observer
from cudalab.errors import BadConfig
from emulated import compile_cuda, line_of, ptx_program

WARPS = 3
LANES = np.arange(32)
TILE = Path(__file__).with_name("kernels") / "mma_tile.cu"

# -- the element formulas, as the PTX ISA gives them: for lane (g, t), element i -> (row, column)

TYPES = dict(f16=np.float16, bf16=ml_dtypes.bfloat16, tf32=np.float32, e4m3=ml_dtypes.float8_e4m3fn, e5m2=ml_dtypes.float8_e5m2,
             f32=np.float32, f64=np.float64, s32=np.int32, s8=np.int8, u8=np.uint8, s4=np.int8, u4=np.uint8, b1=np.uint8)
BITS = dict(f16=16, bf16=16, tf32=32, e4m3=8, e5m2=8, f32=32, f64=64, s32=32, s8=8, u8=8, s4=4, u4=4, b1=1)


def element_a(m: int, k: int, bits: int, g, t, i):
    """Of A, by sections "Matrix Fragments for mma.m…": f64 has one formula, the others count elements packed in 32 bits."""
    if m == 8:
        return g, t * (k // 4) + i
    if bits == 64:
        return np.where(i % 2 == 0, g, g + 8), i // 2 * 4 + t
    if bits == 32:
        return np.where(i % 2 == 0, g, g + 8), np.where(i < 2, t, t + 4)
    pack = 32 // bits
    upper = (i < pack) | ((2 * pack <= i) & (i < 3 * pack))
    return np.where(upper, g, g + 8), t * pack + i % pack + np.where(i < 2 * pack, 0, 4 * pack)


def element_b(k: int, bits: int, g, t, i):
    if bits in (32, 64):
        return t + 4 * i, g + 0 * i
    pack = 32 // bits
    return t * pack + i % pack + i // pack * 4 * pack, g + 0 * i


def element_c(m: int, g, t, i):
    return np.where(i < 2, g, g + 8) if m == 16 else g + 0 * i, t * 2 + i % 2


@dataclass(frozen=True)
class Case:
    m: int
    k: int
    a: str
    b: str
    c: str
    suffix: str = ""
    modifier: str = ""

    def __str__(self):
        return f"m{self.m}n8k{self.k}{self.modifier}.{self.c}.{self.a}.{self.b}{self.suffix}"

    @property
    def mnemonic(self):
        return f"mma.sync.aligned.m{self.m}n8k{self.k}.row.col{self.modifier}.{self.c}.{self.a}.{self.b}.{self.c}{self.suffix}"


CASES = [Case(16, k, "f16", "f16", c) for k in (8, 16) for c in ("f16", "f32")]
CASES += [Case(16, k, "bf16", "bf16", "f32") for k in (8, 16)] + [Case(16, k, "tf32", "tf32", "f32") for k in (4, 8)]
CASES += [Case(m, k, "f64", "f64", "f64") for m, k in ((8, 4), (16, 4), (16, 8), (16, 16))]
CASES += [Case(16, k, a, b, c) for k in (16, 32) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for c in ("f16", "f32")]
CASES += [Case(m, k, a, b, "s32") for m, k in ((8, 16), (16, 16), (16, 32)) for a in ("s8", "u8") for b in ("s8", "u8")]
CASES += [Case(m, k, a, b, "s32") for m, k in ((8, 32), (16, 32), (16, 64)) for a in ("s4", "u4") for b in ("s4", "u4")]
CASES += [Case(m, k, "b1", "b1", "s32", f".{op}.popc") for m, k in ((8, 128), (16, 128), (16, 256)) for op in ("and", "xor")]


def packed(matrices: np.ndarray, kind: str, formula, count: int) -> np.ndarray:
    """Fragments of matrices (warps, rows, columns): for each lane its registers."""
    row, column = formula(LANES[:, None] // 4, LANES[:, None] % 4, np.arange(count)[None, :])
    elements = np.ascontiguousarray(matrices[:, row, column])  # warps, lanes, elements
    if kind == "b1":
        return np.packbits(elements, axis=-1, bitorder="little").view(np.uint32)
    if kind in ("s4", "u4"):
        nibbles = elements.astype(np.uint8) & 15
        return np.ascontiguousarray(nibbles[..., 0::2] | nibbles[..., 1::2] << 4).view(np.uint32)
    return elements.view(np.uint64 if kind == "f64" else np.uint32)


def unpacked(registers: np.ndarray, kind: str, formula, shape) -> np.ndarray:
    elements = registers.view(TYPES[kind])
    row, column = formula(LANES[:, None] // 4, LANES[:, None] % 4, np.arange(elements.shape[-1])[None, :])
    result = np.zeros((len(registers), *shape), TYPES[kind])
    result[:, row, column] = elements
    return result


def program(mnemonic: str, counts: dict[str, int], kinds: dict[str, str], target: str = "sm_90a", guard: str = "") -> str:
    """Lane by lane the fragments of A, B and C are read, and D is written."""
    declared, body = [], []
    for number, name in enumerate("abcd"):
        kind = kinds[name]
        declared.append(f".reg .{kind} %{name}_<{counts[name]}>;")
        width = 8 if kind == "f64" else 4
        if name != "d":
            body.append(f"    mad.lo.u64 %at, %w, {counts[name] * width}, %a{number};")
            body += [f"    ld.global.{kind} %{name}_{i}, [%at+{i * width}];" for i in range(counts[name])]
    lists = {name: "{" + ", ".join(f"%{name}_{i}" for i in range(counts[name])) + "}" for name in "abcd"}
    width = 8 if kinds["d"] == "f64" else 4
    body += [f"    mov.{kinds['d']} %d_{i}, %c_{i};" for i in range(counts["d"])] if guard else []
    body.append(f"    {guard}{mnemonic} {lists['d']}, {lists['a']}, {lists['b']}, {lists['c']};")
    body.append(f"    mad.lo.u64 %at, %w, {counts['d'] * width}, %a3;")
    body += [f"    st.global.{kinds['d']} [%at+{i * width}], %d_{i};" for i in range(counts["d"])]
    return ptx_program("\n".join(body), 4, ".reg .b64 %at; .reg .pred %p; " + " ".join(declared), target)


def run(case: Case, a: np.ndarray, b: np.ndarray, c: np.ndarray, **options) -> np.ndarray:
    """D of matrices A, B, C that hold one matrix a warp."""
    target = options.pop("target", "sm_90a")
    fragments = dict(a=packed(a, case.a, lambda *l: element_a(case.m, case.k, BITS[case.a], *l), case.m * case.k // 32),
                     b=packed(b, case.b, lambda *l: element_b(case.k, BITS[case.b], *l), case.k // 4),
                     c=packed(c, case.c, lambda *l: element_c(case.m, *l), case.m // 4))
    held = {name: values.shape[-1] for name, values in fragments.items()}
    kinds = {name: "f64" if case.a == "f64" else "b32" for name in "ab"}
    kinds |= {name: case.c if case.c in ("f32", "f64") else "b32" for name in "cd"}
    text = program(case.mnemonic, dict(held, d=held["c"]), kinds, target)
    out = np.full_like(fragments["c"], 0)
    got = Emulator(target, **options).run_ptx(text, "k", 1, 32 * len(a), (*fragments.values(), out))[-1]
    return unpacked(got, case.c, lambda *l: element_c(case.m, *l), c.shape[1:])


def small_integers(case: Case, rng) -> tuple[np.ndarray, ...]:
    """Operands whose products and sums are exact in every type."""
    spans = dict(b1=(0, 2), u8=(0, 256), u4=(0, 16), s8=(-128, 128), s4=(-8, 8))
    a = rng.integers(*spans.get(case.a, (-3, 4)), (WARPS, case.m, case.k))
    b = rng.integers(*spans.get(case.b, (-3, 4)), (WARPS, case.k, 8))
    c = rng.integers(-1000, 1000, (WARPS, case.m, 8))
    return a.astype(TYPES[case.a]), b.astype(TYPES[case.b]), c.astype(TYPES[case.c])


def reference(case: Case, a, b, c) -> np.ndarray:
    if case.a == "b1":
        rows, columns = a[:, :, None, :], b.transpose(0, 2, 1)[:, None]
        return (rows & columns if "and" in case.suffix else rows ^ columns).sum(-1, dtype=np.int64) + c
    return a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_form_is_exact_on_small_integers(case):
    a, b, c = small_integers(case, np.random.default_rng(0))
    assert np.array_equal(run(case, a, b, c), reference(case, a, b, c).astype(TYPES[case.c]))


@pytest.mark.parametrize("case", [c for c in CASES if c.c in ("f16", "f32", "f64")], ids=str)
def test_every_form_rounds_once_on_random_numbers(case):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((WARPS, case.m, case.k)).astype(TYPES[case.a]), rng.standard_normal((WARPS, case.k, 8)).astype(TYPES[case.b])
    if case.a == "tf32":  # the low 13 bits do not count
        exact_a, exact_b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    else:
        exact_a, exact_b = a, b
    c = rng.standard_normal((WARPS, case.m, 8)).astype(TYPES[case.c])
    got = run(case, a, b, c)
    for at in [(w, i, j) for w in range(WARPS) for i in range(0, case.m, 5) for j in range(0, 8, 3)]:
        terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(exact_a[at[0], at[1]], exact_b[at[0], :, at[2]])]
        if case.c == "f64":
            total = float(c[at])
            for term in terms:
                total = float(term + Fraction(total))
            assert got[at] == total
        else:
            exact = sum(terms) + Fraction(float(c[at]))
            spacing = Fraction(float(np.spacing(np.abs(TYPES[case.c](float(exact))))))
            assert abs(Fraction(float(got[at])) - exact) <= spacing / 2 * (1 + Fraction(1, 1 << 20))


# -- what happens at the edges


def one(case: Case, row: dict[int, float], column: dict[int, float], c: float = 0.0, **options):
    """D[0, 0] of a first row of A, a first column of B and C[0, 0], all else 0."""
    a, b, added = (np.zeros(shape, TYPES[kind]) for shape, kind in
                   (((1, case.m, case.k), case.a), ((1, case.k, 8), case.b), ((1, case.m, 8), case.c)))
    for k, value in row.items():
        a[0, 0, k] = value
    for k, value in column.items():
        b[0, k, 0] = value
    added[0, 0, 0] = c
    return run(case, a, b, added, **options)[0, 0, 0]


HALF, SINGLE = Case(16, 16, "f16", "f16", "f16"), Case(16, 16, "f16", "f16", "f32")


def test_a_sum_is_rounded_once_not_first_to_float32():
    tiny = 2.0**-15
    assert one(HALF, {0: 1, 1: 2.0**-11, 2: tiny}, {0: 1, 1: 1, 2: tiny}) == 1 + 2.0**-10
    assert one(SINGLE, {0: 1, 1: 2.0**-12, 2: 2.0**-24}, {0: 1, 1: 2.0**-12, 2: 2.0**-24}) == 1 + 2.0**-23


def test_nan_is_canonical_and_infinities_and_subnormals_stay():
    inf = np.inf
    assert one(SINGLE, {0: inf}, {0: 0}).view(np.uint32) == 0x7FFFFFFF
    assert one(HALF, {0: inf, 1: 1}, {0: 1, 1: -inf}).view(np.uint16) == 0x7FFF
    assert one(SINGLE, {0: inf}, {0: 2}) == inf and one(SINGLE, {0: 1}, {0: 1}, -inf) == -inf
    assert one(HALF, {0: 65504}, {0: 2}) == inf
    assert one(SINGLE, {0: 2.0**-24}, {0: 2.0**-24}) == 2.0**-48
    assert one(Case(16, 8, "bf16", "bf16", "f32"), {0: 2.0**-133}, {0: 2.0**-10}) == 2.0**-143
    assert np.isnan(one(Case(16, 32, "e4m3", "e4m3", "f32"), {3: np.nan}, {3: 0}))
    assert one(Case(16, 32, "e4m3", "e5m2", "f32"), {3: 448}, {3: 57344}) == 448 * 57344
    assert one(Case(16, 32, "e5m2", "e4m3", "f32"), {31: 2.0**-16}, {31: 2.0**-9}) == 2.0**-25


@pytest.mark.parametrize("modifier, sign, result", [("", 1, -2**31 - 1 + 32 * 255 * 255), (".satfinite", 1, 2**31 - 1),
                                                    (".satfinite", -1, -2**31), ("", -1, 2**31 - 32 * 255 * 128)])
def test_integer_sums_wrap_around_or_stop(modifier, sign, result):
    case = Case(16, 32, "u8", "u8" if sign > 0 else "s8", "s32", modifier=modifier)
    factor = 255 if sign > 0 else -128
    assert one(case, dict.fromkeys(range(32), 255), dict.fromkeys(range(32), factor), 2**31 - 1 if sign > 0 else -2**31) == result


@pytest.mark.parametrize("mode, expected", [("rn", 1.0), ("rz", 1.0), ("rm", 1.0), ("rp", 1 + 2.0**-52)])
def test_rounding_modes_of_f64(mode, expected):
    case = Case(8, 4, "f64", "f64", "f64", modifier=f".{mode}")
    assert one(case, {0: 2.0**-30}, {0: 2.0**-30}, 1.0) == expected


# -- models of accumulation


def published(kinds, width: int, fraction: int, kept: int, half: bool, a, b, c) -> float:
    """One sum as arXiv:2511.10909 describes it, in exact arithmetic (its T-FDPA): `width` products at a time."""
    lowest = dict(f16=-14, bf16=-126, tf32=-126, e4m3=-6, e5m2=-14, f32=-126)

    def exponent(x, kind):
        return max(int(np.frexp(float(x))[1]) - 1, lowest[kind]) if x else -10**6

    def cut(x: Fraction, quantum: Fraction) -> Fraction:
        return (abs(x) // quantum) * quantum * (1 if x >= 0 else -1)

    for start in range(0, len(a), width):
        pairs = list(zip(a[start:start + width], b[start:start + width]))
        top = max([-126, exponent(c, "f16" if half else "f32")] + [exponent(x, kinds[0]) + exponent(y, kinds[1]) for x, y in pairs])
        quantum = Fraction(2) ** (top - fraction)
        total = cut(Fraction(float(c)), quantum) + sum(cut(Fraction(float(x)) * Fraction(float(y)), quantum) for x, y in pairs)
        if half:
            c = np.float16(float(total))
        else:
            size = max(int(np.frexp(float(total))[1]) - 1, -126)
            c = np.float32(float(cut(total, Fraction(2) ** (size - kept))))
    return c


MODELS = [  # target, model, case, products at a time, fraction bits, kept bits; None: float64 as ever
    ("sm_80", "hardware", Case(16, 16, "bf16", "bf16", "f32"), (8, 24, 23)),
    ("sm_80", "hardware", Case(16, 8, "tf32", "tf32", "f32"), (4, 24, 23)),
    ("sm_80", "hardware", HALF, (8, 24, 23)),
    ("sm_90a", "hardware", SINGLE, (16, 25, 23)),
    ("sm_90a", "hardware", Case(16, 32, "e4m3", "e4m3", "f32"), (32, 25, 23)),
    ("sm_89", "hardware", Case(16, 32, "e4m3", "e4m3", "f32"), (16, 13, 13)),
    ("sm_89", "fp8", Case(16, 32, "e5m2", "e4m3", "f32"), (16, 13, 13)),
    ("sm_89", "fp8", Case(16, 32, "e4m3", "e5m2", "f16"), (16, 13, 13)),
    ("sm_90a", "fp8", Case(16, 32, "e4m3", "e4m3", "f32"), None),
    ("sm_89", "fp8", SINGLE, None),
]


@pytest.mark.parametrize("target, model, case, adder", MODELS, ids=lambda x: str(x))
def test_models_of_accumulation(target, model, case, adder):
    rng = np.random.default_rng(2)
    spread = 2.0 ** rng.integers(-6, 6, (1, case.m, case.k))
    a = (rng.standard_normal((1, case.m, case.k)) * spread).astype(TYPES[case.a])
    b = rng.standard_normal((1, case.k, 8)).astype(TYPES[case.b])
    if case.a == "tf32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    c = (rng.standard_normal((1, case.m, 8)) * 4).astype(TYPES[case.c])
    got, plain = run(case, a, b, c, target=target, mma=model), run(case, a, b, c, target=target)
    if adder is None:
        assert np.array_equal(got, plain)
        return
    kinds, half = (case.a, case.b), case.c == "f16"
    expected = [[published(kinds, *adder, half, a[0, i], b[0, :, j], c[0, i, j]) for j in range(8)] for i in range(case.m)]
    assert np.array_equal(got[0], expected)
    assert not np.array_equal(got, plain)


def test_fp8_on_ada_loses_what_float64_keeps():
    case = Case(16, 32, "e4m3", "e4m3", "f32")
    small = dict(row={0: 1, 1: 2.0**-7}, column={0: 1, 1: 2.0**-7})
    assert one(case, **small, target="sm_89") == 1 + 2.0**-14
    assert one(case, **small, target="sm_89", mma="fp8") == 1.0
    assert one(case, {0: 1, 1: 2.0**-7}, {0: 1, 1: 2.0**-6}, target="sm_89", mma="fp8") == 1 + 2.0**-13


@pytest.mark.parametrize("model, adder", [("fp8", (32, 13, 13)), ("hardware", (32, 13, 13)), ("float64", None)])
def test_wgmma_of_fp8_has_a_model_of_its_own(model, adder, monkeypatch):
    rng = np.random.default_rng(3)
    left = (rng.standard_normal((64, 32)) * 2.0 ** rng.integers(-5, 5, (64, 32))).astype(ml_dtypes.float8_e4m3fn)
    right, before = rng.standard_normal((8, 32)).astype(ml_dtypes.float8_e4m3fn), rng.standard_normal((64, 8)).astype(np.float32)
    monkeypatch.setattr(test_emulator_wgmma, "Emulator", functools.partial(Emulator, mma=model))
    got, plain = test_emulator_wgmma.multiply(8, "f32", "e4m3", "e4m3", left=left, right=right, before=before)
    if adder is None:
        assert np.array_equal(got, plain)
        return
    expected = [[published(("e4m3", "e4m3"), *adder, False, row, column, before[i, j]) for j, column in enumerate(right)]
                for i, row in enumerate(left)]
    assert np.array_equal(got, test_emulator_wgmma.lanes_of(np.array(expected), "f32")) and not np.array_equal(got, plain)


def test_an_unknown_model_is_refused():
    with pytest.raises(BadConfig, match="no model of accumulation 'exact'; take one of float64, fp8, hardware"):
        Emulator(mma="exact")


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
