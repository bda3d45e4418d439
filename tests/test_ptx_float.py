"""Single and double precision, instruction by instruction, in every rounding mode.  Oracle: fractions, rounded once."""

import random

import pytest

from ptx_oracle import ANY, FORMATS, NAN, arithmetic, decode, few_floats, floats, flushed, value_of
from ptx_program import case, on_both, rows

MODES = ("rn", "rz", "rm", "rp")


def near_the_middle(name: str, operands: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Operands with few bits set, of like and of far apart exponents: sums and products that end in the middle between two numbers."""
    form, draw = FORMATS[name], random.Random(seed)

    def one():
        mantissa = 0
        for _ in range(draw.randint(0, 3)):
            mantissa |= 1 << draw.randrange(form.mantissa)
        if draw.random() < 0.2:
            mantissa = (1 << form.mantissa) - 1 - mantissa
        low = draw.random() < 0.15
        exponent = draw.randint(0,
                                3) if low else form.bias + draw.choice((0, 0, 1, -1, form.mantissa, -form.mantissa - 1, form.mantissa // 2,
                                                                           -form.bias // 2, form.bias // 2))
        return draw.getrandbits(1) << form.bits - 1 | exponent << form.mantissa | mantissa
    return [tuple(one() for _ in range(operands)) for _ in range(count)]


def hidden_ties(name: str) -> list[tuple[int, ...]]:
    """a * b + c where a * b lies in the middle between two numbers and c, far too small to be seen beside it, says to which side."""
    form = FORMATS[name]
    bits = form.mantissa + 1
    one, first, second = form.bias << form.mantissa, 1 << form.mantissa - bits // 2, 1 << form.mantissa - (bits - bits // 2)
    small = [1, 5, 1 << form.mantissa, form.bias // 2 - 3 << form.mantissa, max(1, form.bias - bits - 9) << form.mantissa]
    signs = (0, form.sign)
    return [(a | one | first, one | times * second, sign | c) for a in signs for times in (1, 3) for sign in signs for c in small]


def pairs(name):
    return rows(floats(name), floats(name), most=120) + near_the_middle(name, 2, 72, 1)


def triples(name):
    return rows(few_floats(name), few_floats(name), few_floats(name), most=96) + near_the_middle(name, 3, 128, 2) + hidden_ties(name)


def ones(name):
    return [(v,) for v in floats(name)] + near_the_middle(name, 1, 60, 3)


def sums_and_products():
    for name in ("f32", "f64"):
        for mode in MODES:
            for ftz in (False, True)[:1 + (name == "f32")]:
                for sat in (False, True)[:1 + (name == "f32")]:
                    flags = f"{mode}{'.ftz' * ftz}{'.sat' * sat}.{name}"
                    for operation in ("add", "sub", "mul"):
                        yield case(f"{operation}.{flags} %d, %0, %1;", f"{name} {name}", name, pairs(name),
                                   arithmetic(operation, name, mode, ftz=ftz, sat=sat))
                    yield case(f"fma.{flags} %d, %0, %1, %2;", f"{name} {name} {name}", name, triples(name),
                               arithmetic("fma", name, mode, ftz=ftz, sat=sat))
        yield case(f"mad.rz.{name} %d, %0, %1, %2;", f"{name} {name} {name}", name, triples(name), arithmetic("fma", name, "rz"))
        for operation in ("add", "sub", "mul"):  # without a mode: to nearest
            yield case(f"{operation}.{name} %d, %0, %1;", f"{name} {name}", name, pairs(name), arithmetic(operation, name))


def quotients_and_roots():
    for name in ("f32", "f64"):
        for mode in MODES:
            for ftz in (False, True)[:1 + (name == "f32")]:
                flags = f"{mode}{'.ftz' * ftz}.{name}"
                yield case(f"div.{flags} %d, %0, %1;", f"{name} {name}", name, pairs(name), arithmetic("div", name, mode, ftz=ftz))
                for operation in ("rcp", "sqrt"):
                    yield case(f"{operation}.{flags} %d, %0;", name, name, ones(name), arithmetic(operation, name, mode, ftz=ftz))


def extreme(name, larger, *, ftz=False, nan=False, xorsign=False, absolute=False):
    """min and max: a number rather than NaN, +0 above -0."""
    form = FORMATS[name]

    def oracle(*bits):
        signs = 0
        for b in bits:
            signs ^= b & form.sign
        if absolute:
            bits = [b & ~form.sign for b in bits]
        if ftz:
            bits = [b & form.sign if flushed(decode(b, name), name) != decode(b, name) else b for b in bits]
        numbers = [b for b in bits if decode(b, name) != ("nan",)]
        if not numbers or nan and len(numbers) < len(bits):
            return NAN if name == "f64" or xorsign else form.nan
        chosen = (max if larger else min)(numbers, key=lambda b: (value_of(b, name), not b & form.sign))
        return chosen & ~form.sign | signs if xorsign else chosen
    return oracle


def extremes():
    for name in ("f32", "f64"):
        for operation in ("min", "max"):
            yield case(f"{operation}.{name} %d, %0, %1;", f"{name} {name}", name, pairs(name), extreme(name, operation == "max"))
    for operation in ("min", "max"):
        for ftz in (False, True):
            for nan in (False, True):
                for xorsign in (False, True):
                    flags = f"{'.ftz' * ftz}{'.NaN' * nan}{'.xorsign.abs' * xorsign}.f32"
                    oracle = extreme("f32", operation == "max", ftz=ftz, nan=nan, xorsign=xorsign, absolute=xorsign)
                    yield case(f"{operation}{flags} %d, %0, %1;", "f32 f32", "f32", pairs("f32"), oracle, sm=86 if xorsign else 80)
                oracle = extreme("f32", operation == "max", ftz=ftz, nan=nan, absolute=True)
                yield case(f"{operation}{'.ftz' * ftz}{'.NaN' * nan}.abs.f32 %d, %0, %1, %2;", "f32 f32 f32", "f32", triples("f32"), oracle,
                           sm=100)
        yield case(f"{operation}.f32 %d, %0, %1, %2;", "f32 f32 f32", "f32", triples("f32"), extreme("f32", operation == "max"), sm=100)


def signs():
    for name in ("f32", "f64"):
        form = FORMATS[name]
        for ftz in (False, True)[:1 + (name == "f32")]:
            def flush(b, name=name, form=form, ftz=ftz):
                return b & form.sign if ftz and flushed(decode(b, name), name) != decode(b, name) else b
            for operation, function in (("abs", lambda b, f: b & ~f.sign), ("neg", lambda b, f: b ^ f.sign)):
                def oracle(b, name=name, form=form, flush=flush, function=function):
                    return NAN if decode(b, name) == ("nan",) else function(flush(b), form)
                yield case(f"{operation}{'.ftz' * ftz}.{name} %d, %0;", name, name, ones(name), oracle)

        def copied(a, b, name=name, form=form):
            return NAN if decode(b, name) == ("nan",) else b & ~form.sign | a & form.sign
        yield case(f"copysign.{name} %d, %0, %1;", f"{name} {name}", name, pairs(name), copied)
        tests = dict(finite=lambda x, n: x[0] == "num", infinite=lambda x, n: x[0] == "inf", number=lambda x, n: x[0] != "nan",
                     notanumber=lambda x, n: x[0] == "nan", normal=lambda x, n: x[0] == "num" and (not x[2] or flushed(x, n) == x),
                     subnormal=lambda x, n: x[0] == "num" and flushed(x, n) != x)
        for test, function in tests.items():
            yield case(f"testp.{test}.{name} %d, %0;", name, "pred", ones(name), lambda b, f=function, n=name: int(f(decode(b, n), n)),
                       held_back=False)


def literals():
    """Constants are another way through the emulator."""
    one = ones("f32")
    fma, add = arithmetic("fma", "f32"), arithmetic("add", "f32")
    for literal in (0x3F800001, 0x80000000, 0x00000001, 0x7F800000, 0x7FC00001):
        yield case(f"fma.rn.f32 %d, %0, 0f{literal:08X}, %0;", "f32", "f32", one, lambda b, k=literal: fma(b, k, b))
        yield case(f"add.f32 %d, %0, 0f{literal:08X};", "f32", "f32", one, lambda b, k=literal: add(b, k))
    yield case("mul.f64 %d, %0, 0d3FF8000000000000;", "f64", "f64", ones("f64"), lambda b: arithmetic("mul", "f64")(b, 0x3FF8000000000000))
    yield case("fma.rn.f32 %d, 0f3F800000, 0f40000000, 0f40400000;", "f32", "f32", one, lambda b: 0x40A00000)
    yield case("mov.f32 %d, 0f7FABCDEF;", "f32", "f32", one, lambda b: 0x7FABCDEF)
    yield case("mov.b32 %d, %0;", "f32", "b32", one, lambda b: b)
    yield case("mov.b64 %d, %0;", "f64", "b64", ones("f64"), lambda b: b)
    yield case("add.f32 %d, %0, %1; add.f32 %d, %d, %1; mul.f32 %d, %d, %0;", "f32 f32", "f32", pairs("f32"),
               lambda a, b: arithmetic("mul", "f32")(add(add(a, b), b), a), guard=False)


def packed_pairs():
    """Two single-precision values in 64 bits."""
    for mode in MODES:
        for ftz in (False, True):
            for operation, operands in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)):
                one = arithmetic(operation, "f32", mode, ftz=ftz)
                source = near_the_middle("f32", 2 * operands, 60, 5) + rows(*[few_floats("f32")] * 2 * operands, most=60) \
                    if operands == 2 else near_the_middle("f32", 6, 120, 6)

                def oracle(*values, one=one):
                    low, high = one(*(v & 0xFFFFFFFF for v in values)), one(*(v >> 32 for v in values))
                    if isinstance(low, set) or isinstance(high, set):
                        return ANY
                    return high << 32 | low
                names = ", ".join(f"%{n}" for n in range(operands))
                values = [tuple(row[2 * n] << 32 | row[2 * n + 1] for n in range(operands)) for row in source]
                yield case(f"{operation}.{mode}{'.ftz' * ftz}.f32x2 %d, {names};", " ".join(["b64"] * operands), "b64", values, oracle,
                           sm=100)


test_sums_and_products, test_sums_and_products_gpu = on_both(sums_and_products())
test_quotients_and_roots, test_quotients_and_roots_gpu = on_both(quotients_and_roots())
test_extremes, test_extremes_gpu = on_both(extremes())
test_signs, test_signs_gpu = on_both(signs())
test_literals, test_literals_gpu = on_both(literals())
test_packed_pairs, test_packed_pairs_gpu = on_both(packed_pairs())


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
