"""What hardware approximates, held within the bounds that the PTX ISA publishes.  Oracle: Python's math and fractions.

Within a bound two devices may differ, and the emulator from both: the device runs the same check, not a comparison bit for bit.
"""

import math
import random
from fractions import Fraction

import pytest

from ptx_oracle import ANY, FORMATS, NAN, Differs, Within, arithmetic, decode, encode, exponent_of, floats, flushed, number, value_of
from ptx_program import case, on_both, rows

INFINITY = math.inf


def bits(value, name="f32", sign=0):
    if value in (INFINITY, -INFINITY):
        return encode(("inf", int(value < 0)), name)
    return encode(number(value, sign), name)


def around(exact, name, *, ulps=0.0, relative=0.0, absolute=0.0, ftz=False):
    """The results allowed for an exact value; overflow to infinity and, with .ftz, underflow to zero included."""
    form = FORMATS[name]
    exact = Fraction(exact)
    size = abs(exact)
    quantum = max(exponent_of(size) if size else form.lowest, form.lowest) - form.mantissa
    slack = Fraction(ulps) * Fraction(2) ** quantum + Fraction(relative) * size + Fraction(absolute)
    slack += Fraction(2) ** (form.lowest - form.mantissa) / 2  # what no result can be nearer than
    low, high = exact - slack, exact + slack
    smallest = Fraction(2) ** form.lowest
    if ftz and low < smallest and high > -smallest:
        low, high = (min(low, Fraction(0)), max(high, Fraction(0)))
    largest = decode(form.largest, name)[2]
    return Within(-INFINITY if low < -largest else low, INFINITY if high > largest else high)


def unary(function, name, special, *, ftz=False, **bound):
    """An oracle: `special` maps inputs ("-inf" "-normal" "-0" "+0" "+inf" "nan") to results, other numbers go to `function`."""
    def oracle(b):
        x = decode(b, name)
        if x == ("nan",):
            return special.get("nan", NAN if name == "f64" else FORMATS[name].nan)
        x = flushed(x, name) if ftz else x
        sign = "-" if x[1] else "+"
        key = f"{sign}inf" if x[0] == "inf" else f"{sign}0" if not x[2] else f"{sign}normal"
        if key in special:
            return special[key]
        exact = function(value_of(encode(x, name), name))
        if exact is None:
            return ANY
        if isinstance(exact, float) and math.isinf(exact):
            return bits(exact, name)
        return around(exact, name, ftz=ftz, **bound)
    return oracle


def differing(here, device):
    """The oracle of two: what PTX allows, and what a device does."""
    return lambda *row: Differs(here(*row), device(*row))


def drawn(name, low, high, count=120, seed=1):
    """Values whose exponents spread evenly between two."""
    draw = random.Random(seed)
    return [(encode(number(Fraction((-1 if draw.getrandbits(1) else 1) * math.ldexp(draw.uniform(1, 2), draw.randint(low, high)))), name),)
            for _ in range(count)]


def ones(name):
    return [(v,) for v in floats(name)]


def root(x):
    """A square root to many digits, so that the bound is held against the root and not against float64's idea of it."""
    shift = 700
    return Fraction(math.isqrt(x.numerator * 2 ** (2 * shift) // x.denominator), 2 ** shift)


def two_to(x):
    if x > 200:
        return INFINITY
    if x < -200:
        return Fraction(0)
    whole = math.floor(x)
    return Fraction(2 ** float(x - whole)) * Fraction(2) ** whole


def logarithm(x):
    exponent = exponent_of(x)
    return Fraction(math.log2(float(x / Fraction(2) ** exponent))) + exponent if abs(x - 1) > Fraction(1, 4) else \
        Fraction(math.log1p(float(x - 1))) / Fraction(math.log(2))


def angle(function):
    """Outside of 100 pi PTX promises nothing."""
    return lambda x: Fraction(function(float(x))) if abs(x) <= 314 else None


def by_angle(function, special, ftz):
    near, far = (unary(angle(function), "f32", special, ftz=ftz, absolute=Fraction(2) ** -20 / Fraction(math.sqrt(2))),
                 unary(angle(function), "f32", special, ftz=ftz, absolute=Fraction(2.0**-14.7)))
    return lambda b: near(b) if decode(b, "f32")[0] != "num" or decode(b, "f32")[2] <= Fraction(2 * math.pi) else far(b)


def single_precision():
    nan = FORMATS["f32"].nan
    zero, negative_zero, infinity, one = 0, 1 << 31, bits(INFINITY), bits(1)
    wide, middle = ones("f32") + drawn("f32", -126, 127), ones("f32") + drawn("f32", -12, 6)
    for ftz in (False, True):
        suffix = f"approx{'.ftz' * ftz}.f32"
        same = {"-0": negative_zero, "+0": zero}
        yield case(f"rcp.{suffix} %d, %0;", "f32", "f32", wide,
                   unary(lambda x: 1 / x, "f32", {"-inf": negative_zero, "+inf": zero, "-0": bits(-INFINITY), "+0": infinity}, ftz=ftz,
                         ulps=1))
        yield case(f"sqrt.{suffix} %d, %0;", "f32", "f32", wide,
                   unary(root, "f32", {"-inf": nan, "-normal": nan, "+inf": infinity, **same}, ftz=ftz, relative=Fraction(2) ** -23))
        yield case(f"rsqrt.{suffix} %d, %0;", "f32", "f32", wide,
                   unary(lambda x: 1 / root(x), "f32", {"-inf": nan, "-normal": nan, "-0": bits(-INFINITY), "+0": infinity, "+inf": zero},
                         ftz=ftz, relative=Fraction(2.0**-22.9)))
        yield case(f"sin.{suffix} %d, %0;", "f32", "f32", middle, by_angle(math.sin, {"-inf": nan, "+inf": nan, **same}, ftz))
        yield case(f"cos.{suffix} %d, %0;", "f32", "f32", middle,
                   by_angle(math.cos, {"-inf": nan, "+inf": nan, "-0": one, "+0": one}, ftz))
        lg2 = {"-inf": nan, "-normal": nan, "-0": bits(-INFINITY), "+0": bits(-INFINITY), "+inf": infinity}
        inside, outside = (unary(logarithm, "f32", lg2, ftz=ftz, **{kind: Fraction(2) ** -22}) for kind in ("absolute", "relative"))
        yield case(f"lg2.{suffix} %d, %0;", "f32", "f32", wide + drawn("f32", -3, 2, seed=4),
                   lambda b, i=inside, o=outside: i(b) if bits(Fraction(1, 2)) < b < bits(2) else o(b))
        yield case(f"ex2.{suffix} %d, %0;", "f32", "f32", ones("f32") + drawn("f32", -20, 7),
                   unary(two_to, "f32", {"-inf": zero, "+inf": infinity, "-0": one, "+0": one}, ftz=ftz, ulps=2.5))
    yield case("tanh.approx.f32 %d, %0;", "f32", "f32", ones("f32") + drawn("f32", -20, 5),
               unary(lambda x: Fraction(math.tanh(float(x))), "f32", {"-inf": bits(-1), "+inf": one, **same}, relative=Fraction(2) ** -11))


def quotients():
    values = rows(floats("f32"), floats("f32"), most=300) + [(a, b) for (a,), (b,) in zip(drawn("f32", -120, 120, 150), drawn(
        "f32", -126, 126, 150, 7))]

    def divided(a, b, ftz, limit):
        x, y = (flushed(decode(v, "f32"), "f32") if ftz else decode(v, "f32") for v in (a, b))
        if limit and y[0] == "num" and y[2] > Fraction(2) ** 126 and x != ("nan",):
            return FORMATS["f32"].nan if x[0] == "inf" else {0, 1 << 31}  # PTX: NaN below an infinity, else 0
        exact = arithmetic("div", "f32", ftz=ftz)(a, b)
        if "num" != x[0] or "num" != y[0] or not x[2] or not y[2]:
            return exact
        if limit and y[2] < Fraction(2) ** -126:
            return ANY  # outside of the range that the bound speaks of
        return around((-1 if x[1] ^ y[1] else 1) * x[2] / y[2], "f32", ulps=2, ftz=ftz)
    for ftz in (False, True):
        for kind in ("approx", "full"):
            yield case(f"div.{kind}{'.ftz' * ftz}.f32 %d, %0, %1;", "f32 f32", "f32", values,
                       lambda a, b, ftz=ftz, kind=kind: divided(a, b, ftz, kind == "approx"))


def double_precision():
    """rcp and rsqrt .approx.ftz.f64 see the upper 32 bits of their operand and give zeros in the lower ones."""
    nan, top = 0x7FFFFFFF00000000, 0xFFFFFFFF00000000
    values = [(v[0] & top,) for v in ones("f64") + drawn("f64", -1000, 1000)]

    lower = " mov.b64 %e, %d; and.b64 %e, %e, 0xFFFFFFFF;"

    def with_lower(oracle):
        return lambda b: (oracle(b), 0)
    yield case(f"rcp.approx.ftz.f64 %d, %0;{lower}", "f64", "f64 b64", values,
               with_lower(unary(lambda x: 1 / x, "f64",
                                {"-inf": 1 << 63, "+inf": 0, "-0": bits(-INFINITY, "f64"), "+0": bits(INFINITY, "f64"),
                                              "nan": nan}, ftz=True, relative=Fraction(2) ** -19)), guard=False)
    yield case(f"rsqrt.approx.ftz.f64 %d, %0;{lower}", "f64", "f64 b64", values,
               with_lower(unary(lambda x: 1 / root(x), "f64",
                                {"-inf": nan, "-normal": nan, "-0": bits(-INFINITY, "f64"), "+0": bits(INFINITY, "f64"),
                                                    "+inf": 0, "nan": nan}, ftz=True, relative=Fraction(2) ** -19)), guard=False)
    yield case("rsqrt.approx.f64 %d, %0;", "f64", "f64", ones("f64") + drawn("f64", -1000, 1000),
               unary(lambda x: 1 / root(x), "f64", {"-inf": NAN, "-normal": NAN, "-0": bits(-INFINITY, "f64"), "+0": bits(INFINITY, "f64"),
                                                    "+inf": 0}, relative=Fraction(2) ** -19))


def half_precision():
    for name, ex2, tanh in (("f16", Fraction(2.0**-9.9), Fraction(2.0**-10.987)), ("bf16", Fraction(2) ** -7, Fraction(2) ** -8)):
        form, bf16 = FORMATS[name], name == "bf16"
        values = ones(name) + drawn(name, -10, 3) + drawn(name, 0, 3, 40, 9)
        one = bits(1, name)
        same = {"-inf": 0, "+inf": form.infinity, "-0": one, "+0": one}
        power = unary(two_to, name, same, ftz=bf16, relative=ex2)
        if not bf16:  # on an H200 a subnormal result is off by as much as one of its units: half of one more than its rounding
            power = differing(power, unary(two_to, name, same, relative=ex2, absolute=Fraction(2) ** (form.lowest - form.mantissa) / 2))
        curve = unary(lambda x: Fraction(math.tanh(float(x))), name, {"-inf": bits(-1, name), "+inf": one, "-0": form.sign, "+0": 0},
                      absolute=tanh)
        for operation, oracle in ((f"ex2.approx{'.ftz' * bf16}", power), ("tanh.approx", curve)):
            yield case(f"{operation}.{name} %d, %0;", name, name, values, oracle, sm=90 if bf16 else 80)
            # of a pair: the same as of each half alone
            text = (f"{operation}.{name}x2 %d, %0; mov.b32 {{%l, %u}}, %0; {operation}.{name} %l, %l; {operation}.{name} %u, %u; "
                    "mov.b32 %e, {%l, %u}")
            pair = [(a | b << 16,) for (a,), (b,) in zip(values, values[5:] + values[:5])]
            yield pair_agrees(text + ";", name, pair, bf16)


def pair_agrees(text, name, values, bf16):
    """The instruction for a pair gives what it gives for each half."""
    program = case(text, f"{name}x2", f"{name}x2 {name}x2", values, lambda b: (ANY, ANY), sm=90 if bf16 else 80, guard=False,
                   registers=".reg .b16 %l, %u;")

    def check(buffers, device):
        assert buffers[1].tolist() == buffers[2].tolist()
    return type(program)(program.name.split("-mov")[0], program.ptx, program.buffers, check, program.grid, program.block, program.sm)


test_single_precision, test_single_precision_gpu = on_both(single_precision())
test_quotients, test_quotients_gpu = on_both(quotients())
test_double_precision, test_double_precision_gpu = on_both(double_precision())
test_half_precision, test_half_precision_gpu = on_both(half_precision())


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
