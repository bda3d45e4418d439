"""The emulator's tensor cores: every shape and type of mma.sync against NumPy through the element formulas of the PTX ISA, edge cases and
models of accumulation.  Wrong uses: test_emulator_matrix."""

import functools
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import test_emulator_wgmma
from cudalab.emulator import Emulator
from cudalab.errors import BadConfig
from emulated import ptx_program

WARPS = 3
LANES = np.arange(32)

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
