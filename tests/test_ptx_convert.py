"""cvt between all types, in every rounding mode, with .sat, .satfinite, .relu and .ftz; cvt.pack.  Oracle: fractions and Python integers;
the 8-bit formats besides against ml_dtypes."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from ptx_oracle import (ANY, FORMATS, NAN, Differs, clamp, decode, encode, finish, floats, flushed, integers, number, read, signed,
                        to_signed, write)
from ptx_program import WIDTH, case, custom, on_both, rows, several
from test_ptx_float import near_the_middle

WHOLE = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
ROUND = dict(rni=round, rzi=math.trunc, rmi=math.floor, rpi=math.ceil)
MODES = ("rn", "rz", "rm", "rp")


def bits_of(kind):
    return int(kind.strip("usbf"))


def register(kind):
    """What holds a value in these programs: at least 32 bits of integers, so that extension shows."""
    return kind if kind[0] not in "us" else f"b{max(32, bits_of(kind))}"


def column(kind):
    """Edge values of a type, for integers with other bits above them."""
    if kind[0] in "us":
        n = bits_of(kind)
        return [(v | (0xA5A5A5A5 << n & 0xFFFFFFFF if n < 32 else 0),) for v in integers(kind)] + [(v,) for v in integers(kind)]
    return [(v,) for v in floats(kind)] + near_the_middle(kind, 1, 60, 1)


def can_overflow(source, result):
    """Where not, .sat is not allowed."""
    return bits_of(result) < bits_of(source) or source[0] != result[0] and (source[0] == "s" or bits_of(result) == bits_of(source))


def between_integers():
    for source in WHOLE:
        parts = []
        for result in WHOLE:
            n = max(32, bits_of(result))
            parts.append((f"cvt.{result}.{source} {{0}}, %0", f"b{n}",
                          lambda b, s=source, r=result, n=n: write(read(write(read(b, s), bits_of(r)), r), n)))
            if can_overflow(source, result):
                parts.append((f"cvt.sat.{result}.{source} {{0}}, %0", f"b{n}",
                              lambda b, s=source, r=result, n=n: write(clamp(read(b, s), r), n)))
        yield several(f"cvt from {source} to integers", register(source), column(source), parts)
    for sign in "us":
        yield case(f"cvt.{sign}8.{sign}16 %d, %0;", "b16", "b16", [(v,) for v in integers("u16")],
                   lambda b, s=sign: write(read(b & 255, f"{s}8"), 16), name=f"cvt.{sign}8.{sign}16 in 16 bits")


def from_integers():
    for source in WHOLE:
        for result in ("f16", "f32", "f64", "bf16"):
            if result == "bf16" and bits_of(source) == 8:
                continue
            parts = []
            for mode in MODES:
                parts.append((f"cvt.{mode}.{result}.{source} {{0}}, %0", result,
                              lambda b, s=source, r=result, m=mode: encode(number(read(b, s)), r, m)))
                if result != "bf16":
                    parts.append((f"cvt.{mode}.sat.{result}.{source} {{0}}, %0", result,
                                  lambda b, s=source, r=result, m=mode: finish(number(read(b, s)), r, m, sat=True)))
            values = column(source)
            if bits_of(source) >= 32:
                values = values + [(write((1 << k) + d, bits_of(source)),) for k in (24, 25, 31, 53, 54, 62) for d in (-1, 1, 2, 3, 6, 129)
                                   if k < bits_of(source)]
            held = source if result == "bf16" else register(source)  # with bf16 a 16-bit integer lies in 16 bits
            values = [(write(v, 8 * WIDTH[held]),) for v, in values]
            yield several(f"cvt from {source} to {result}", held, values, parts, sm=90 if result == "bf16" else 80)


def to_integers():
    for source in ("f16", "f32", "f64", "bf16"):
        for result in WHOLE:
            if source == "bf16" and bits_of(result) == 8:
                continue
            parts, n = [], bits_of(result) if source == "bf16" else max(32, bits_of(result))
            for mode, function in ROUND.items():
                for ftz in (False, True)[:1 + (source == "f32")]:
                    def oracle(b, f=function, s=source, r=result, n=n, ftz=ftz):
                        x = flushed(decode(b, s), s) if ftz else decode(b, s)
                        if x == ("nan",):
                            if s != "f64" and bits_of(r) != 64:
                                return 0
                            return ANY if bits_of(r) < 32 else 1 << bits_of(r) - 1
                        return write(clamp((1 - 2 * x[1]) << 80 if x[0] == "inf" else f(signed(x)), r), n)
                    parts.append((f"cvt.{mode}{'.ftz' * ftz}.{result}.{source} {{0}}, %0", f"b{n}", oracle))
            values = column(source) + [(encode(number(Fraction(v, 2)), source),) for v in range(-9, 10)]
            values += [(encode(number(d + (s << k)), source),) for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, 0, 1) for s in (1, -1)]
            yield several(f"cvt from {source} to {result}", source, values, parts, sm=90 if source == "bf16" else 80)


def plain(source, result, mode="rn", *, ftz=False, sat=False, relu=False, satfinite=False, integral=None):
    """The oracle of one float from another."""
    def oracle(b):
        x = decode(b, source)
        if ftz and source == "f32":
            x = flushed(x, source)
        if integral and x[0] == "num":
            whole = ROUND[integral](signed(x))
            x = number(whole, x[1]) if whole else ("num", x[1], Fraction(0))
        if x == ("nan",):
            if sat:
                return 0
            if mode == "rna":  # an H200 passes the upper bits on, so that a NaN of low bits alone becomes an infinity
                return Differs(FORMATS[result].nan, ANY)
            return NAN if "f64" in (source, result) or source == "bf16" or result == source else FORMATS[result].nan
        if sat or relu:
            return finish(x, result, mode, sat=sat, relu=relu) if not satfinite else finish(
                decode(encode(x, result, mode, finite=True), result), result, relu=relu)
        return encode(x, result, mode, finite=satfinite)
    return oracle


def between_floats():
    def group(source, result, forms, sm=80):
        parts = []
        for form in forms.split():
            words = form.strip(".").split(".") if form != "-" else []
            mode = next((w for w in words if w in (*MODES, "rna")), "rn")
            oracle = plain(source, result, mode, ftz="ftz" in words, sat="sat" in words, relu="relu" in words,
                           satfinite="satfinite" in words,
                           integral=next((w for w in words if w in ROUND), None))
            if "ftz" in words and result == "f32":
                oracle = flushing(oracle)
            suffix = "".join(f".{w}" for w in words)
            parts.append((f"cvt{suffix}.{result}.{source} {{0}}, %0", result if result != "tf32" else "b32", oracle))
        return several(f"cvt from {source} to {result}, {forms.split()[0]}…", source, column(source), parts, sm=sm)

    def flushing(oracle):
        def flushed_result(b):
            result = oracle(b)
            if isinstance(result, int) and flushed(decode(result, "f32"), "f32") != decode(result, "f32"):
                return result & 1 << 31
            return result
        return flushed_result

    yield group("f32", "f16", "rn rz rm rp rn.ftz rn.sat rz.sat rn.relu rz.relu rn.satfinite rn.relu.satfinite")
    yield group("f32", "bf16", "rn rz rm rp rn.relu rz.relu rn.satfinite rn.relu.satfinite", 90)
    yield group("f32", "tf32", "rna rn rz rn.relu rz.relu rna.satfinite", 90)
    yield group("f32", "tf32", "rn.satfinite rz.satfinite rn.relu.satfinite", 100)
    yield group("f64", "f16", "rn rz rm rp rn.sat")
    yield group("f64", "bf16", "rn rz rm rp", 90)
    yield group("f64", "f32", "rn rz rm rp rn.sat rz.sat")
    yield group("f16", "f32", "- sat ftz")
    yield group("f16", "f64", "- sat")
    yield group("bf16", "f32", "-")
    yield group("bf16", "f64", "-", 90)
    yield group("f32", "f64", "- ftz sat")
    yield group("f16", "bf16", "rn rz rm rp", 90)
    yield group("bf16", "f16", "rn rz rm rp", 90)
    for name in ("f16", "f32", "f64", "bf16"):
        forms = [mode + extra for mode in ROUND for extra in ("", ".sat", ".ftz", ".ftz.sat")[:dict(f16=2, f32=4, f64=2, bf16=1)[name]]]
        yield group(name, name, " ".join(forms), 90 if name == "bf16" else 80)
    yield group("f32", "f32", "- sat ftz ftz.sat")
    yield group("f16", "f16", "sat")
    yield group("f64", "f64", "sat")


def into_pairs():
    """Two single-precision values into one register, the first in the upper half."""
    values = rows(floats("f32"), floats("f32")[::3], most=200) + near_the_middle("f32", 2, 60, 4)
    for name, width, forms in (("f16", 16, "rn rz rn.relu rz.relu rn.satfinite rn.relu.satfinite"),
                               ("bf16", 16, "rn rz rn.relu rz.relu rn.satfinite rn.relu.satfinite"),
                               ("e4m3", 8, "rn.satfinite rn.satfinite.relu"), ("e5m2", 8, "rn.satfinite rn.satfinite.relu")):
        parts = []
        for form in forms.split():
            words = form.split(".")
            one = plain("f32", name, words[0], relu="relu" in words, satfinite="satfinite" in words)
            parts.append((f"cvt.{form}.{name}x2.f32 {{0}}, %0, %1", f"{name}x2", joined(one, width)))
        yield several(f"cvt from f32 to {name}x2", "f32 f32", values, parts, sm=89 if width == 8 else 90)


def joined(one, width):
    def both(upper, lower):
        highs, lows = (r if isinstance(r, set) else {r} for r in (one(upper), one(lower)))
        return {h << width | w for h in highs for w in lows}
    return both


def of_eight_bits():
    for name in ("e4m3", "e5m2"):
        every = [(v | (v * 7 + 13 & 255) << 8,) for v in range(256)]
        parts = []
        for relu in (False, True):
            one = plain(name, "f16", relu=relu)
            parts.append((f"cvt.rn{'.relu' * relu}.f16x2.{name}x2 {{0}}, %0", "f16x2",
                          lambda b, f=joined(one, 16): f(b >> 8, b & 255)))
        yield several(f"cvt from {name}x2 to f16x2", f"{name}x2", every, parts, sm=89)
        parts = []
        for relu in (False, True):
            one = plain("f16", name, relu=relu, satfinite=True)
            parts.append((f"cvt.rn.satfinite{'.relu' * relu}.{name}x2.f16x2 {{0}}, %0", f"{name}x2",
                          lambda b, f=joined(one, 8): f(b >> 16, b & 0xFFFF)))
        halves = [(v | (v * 31 + 5 & 0xFFFF) << 16,) for v in [*floats("f16"), *range(0, 65536, 211)]]
        yield several(f"cvt from f16x2 to {name}x2", "f16x2", halves, parts, sm=89)


def test_the_oracle_of_eight_bits_agrees_with_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    every = np.arange(65536, dtype=np.uint16)
    for name, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
        with np.errstate(all="ignore"):
            theirs = every.view(np.float16).astype(dtype).view(np.uint8)
        largest = float(ml_dtypes.finfo(dtype).max)
        for bits, other in zip(every[::23].tolist(), theirs[::23].tolist()):
            x = decode(bits, "f16")
            if x[0] == "num" and x[2] <= largest:  # beyond it PTX clamps and ml_dtypes does not
                assert encode(x, name, finite=True) == other
        numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
        for bits, value in enumerate(numbers.tolist()):
            x = decode(bits, name)
            assert math.isnan(value) if x == ("nan",) else math.isinf(value) if x[0] == "inf" else float(signed(x)) == value
    brain = np.arange(0, 1 << 32, 65537 * 11, dtype=np.uint64).astype(np.uint32)
    with np.errstate(all="ignore"):
        theirs = brain.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    for bits, other in zip(brain[::41].tolist(), theirs[::41].tolist()):
        if decode(bits, "f32") != ("nan",):
            assert encode(decode(bits, "f32"), "bf16") == other


def packs():
    values = rows(integers("u32")[::2], integers("u32")[1::2], [0, 0xFFFFFFFF, 0x12345678])
    for kind in ("u16", "s16"):
        yield case(f"cvt.pack.sat.{kind}.s32 %d, %0, %1;", "b32 b32", "b32", rows(integers("u32"), integers("u32")),
                   lambda a, b, k=kind: write(clamp(to_signed(a, 32), k), 16) << 16 | write(clamp(to_signed(b, 32), k), 16))
    for kind in ("u8", "s8", "u4", "s4", "u2", "s2"):
        def pack(a, b, c, k=kind, n=int(kind[1])):
            return write(c << 2 * n | write(clamp(to_signed(a, 32), k), n) << n | write(clamp(to_signed(b, 32), k), n), 32)
        yield case(f"cvt.pack.sat.{kind}.s32.b32 %d, %0, %1, %2;", "b32 b32 b32", "b32", values, pack)


def every_half():
    """All 65536 values of f16 and bf16, to single precision and back."""
    for name in ("f16", "bf16"):
        body = (f"    mad.lo.u64 %at, %w, 2, %a0;\n    ld.global.b16 %x, [%at];\n    cvt.f32.{name} %f, %x;\n"
                f"    cvt.rn.{name}.f32 %y, %f;\n"
                f"    mad.lo.u64 %at, %w, 4, %a1;\n    st.global.f32 [%at], %f;\n"
                "    mad.lo.u64 %at, %w, 2, %a2;\n    st.global.b16 [%at], %y;")
        source = np.arange(65536, dtype=np.uint16)
        single = source.view(np.float16 if name == "f16" else ml_dtypes.bfloat16).astype(np.float32)
        ordinary, single = ~np.isnan(single), single.view(np.uint32)

        def right(got, ordinary=ordinary, single=single):
            return (got[ordinary] == single[ordinary]).all() and np.isnan(got[~ordinary].view(np.float32)).all()
        back = np.where(ordinary, source, 0x7FFF).astype(np.uint16)
        yield custom(f"every {name}", body, [source, np.zeros(65536, np.uint32), np.zeros(65536, np.uint16)], {1: right, 2: back},
                     registers=".reg .b16 %x, %y; .reg .f32 %f;", grid=256, block=256, sm=90)


test_between_integers, test_between_integers_gpu = on_both(between_integers())
test_from_integers, test_from_integers_gpu = on_both(from_integers())
test_to_integers, test_to_integers_gpu = on_both(to_integers())
test_between_floats, test_between_floats_gpu = on_both(between_floats())
test_into_pairs, test_into_pairs_gpu = on_both(into_pairs())
test_of_eight_bits, test_of_eight_bits_gpu = on_both(of_eight_bits())
test_packs, test_packs_gpu = on_both(packs())
test_every_half, test_every_half_gpu = on_both(every_half())


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
