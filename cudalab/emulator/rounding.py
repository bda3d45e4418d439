"""Rounding exactly as PTX asks: fused multiply-add rounds once.  PTX ISA, "Floating Point Instructions", "Rounding Modifiers".

float32 is worked in float64.  A product of two float32 is exact there; a sum may round, and rounding its result again to float32 goes wrong
only where the first rounding lands exactly in the middle between two float32.  Such lanes are recognised by their low 29 bits (in the
subnormal range, where the middle lies elsewhere, by the hardware's underflow flag) and repaired through "round to odd": S. Boldo and
G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57 (2008).
"""

from fractions import Fraction

import numpy as np

from cudalab.emulator.table import runtime

CANONICAL = np.uint32(0x7FFFFFFF).view(np.float32)  # every NaN that single-precision arithmetic gives
UNSEEN = np.int64(64 - 29)  # moves the bits of a float64 significand that a float32 lacks to the top
MIDDLE = np.iinfo(np.int64).min  # those bits of a value in the middle, moved to the top
SINGLE, WORD = np.dtype(np.float32), np.dtype(np.int64)
TINY = np.float32(2.0**-126)  # the smallest normal float32
SMALL, LARGE = 2.0**-450, 2.0**450  # operands between these make error-free float64 products and sums


class Underflow:
    """Notes whether a result was tiny and inexact: NumPy calls `write` or the object where errstate says under="call"."""

    def __init__(self):
        self.seen = False

    def __call__(self, kind, flag):
        self.seen = True


UNDERFLOW = Underflow()


def arithmetic():
    """The NumPy error state that generated code runs in."""
    return np.errstate(all="ignore", under="call", call=UNDERFLOW)


@runtime
def canonical(result):
    """float32 results with every NaN the canonical one.  The array is the caller's own."""
    if result.ndim:
        largest = result[result.argmax()]  # NaN counts as the largest
        if largest != largest:
            result[np.isnan(result)] = CANONICAL
        return result
    return CANONICAL if result != result else result


@runtime
def flush(value):
    """Subnormal float32 become zeros of their sign (.ftz)."""
    small = np.abs(value) < TINY
    return np.where(small, value * np.float32(0), value)[()] if small.any() else value


@runtime
def saturate(value):
    """Clamped to 0..1, NaN to +0 (.sat)."""
    kind = value.dtype.type
    return np.fmin(np.fmax(value, kind(0)), kind(1)) + kind(0)


@runtime
def fma32(a, b, c):
    """a * b + c rounded once to nearest even.  a and b come as float64 that hold float32; c is float32."""
    total = a * b
    total = np.add(total, c, total) if total.ndim else total + c
    UNDERFLOW.seen = False
    result = total.astype(SINGLE)
    if UNDERFLOW.seen:
        return total_to_f32(a * b, c.astype(np.float64), "rn")
    if result.ndim:
        bits = total.view(WORD)
        np.left_shift(bits, UNSEEN, bits)
        if bits[bits.argmin()] == MIDDLE:
            middle = bits == MIDDLE
            product, addend = (np.broadcast_to(x, len(bits))[middle] for x in (a * b, c))
            result[middle] = total_to_f32(product, addend.astype(np.float64), "rn")
    elif total.view(WORD) << UNSEEN == MIDDLE:
        return total_to_f32(a * b, c.astype(np.float64), "rn")
    return result


@runtime
def fma32_rounded(a, b, c, mode):
    """The same in another rounding mode."""
    return total_to_f32(a * b, c.astype(np.float64), mode)


@runtime
def add32_rounded(a, b, mode):
    return total_to_f32(a.astype(np.float64), b.astype(np.float64), mode)


@runtime
def mul32_rounded(a, b, mode):
    return to_f32(a.astype(np.float64) * b.astype(np.float64), mode)


@runtime
def div32_rounded(a, b, mode):
    """The nearest quotient, moved by the sign of its exact remainder."""
    quotient = a / b
    wide = quotient.astype(np.float64) * b.astype(np.float64)
    above = np.where(b > 0, wide > a, wide < a)  # the nearest lies above the exact quotient
    below = np.where(b > 0, wide < a, wide > a)
    infinite = np.isinf(quotient) & np.isfinite(a) & (b != 0)
    above, below = np.where(infinite, quotient > 0, above), np.where(infinite, quotient < 0, below)
    usual = np.isfinite(a) & np.isfinite(b) & (b != 0)
    return directed(quotient, above & usual, below & usual, mode, np.signbit(a) ^ np.signbit(b))


@runtime
def sqrt32_rounded(a, mode):
    root = np.sqrt(a)
    wide = root.astype(np.float64) * root.astype(np.float64)
    usual = np.isfinite(a) & (a > 0)
    return directed(root, usual & (wide > a), usual & (wide < a), mode, np.zeros_like(usual))


def directed(nearest, above, below, mode, negative):
    """A nearest result moved in the direction of `mode` where it lies above or below the exact one.  negative: the exact one's sign."""
    kind = nearest.dtype.type
    down = above & (np.bool_(mode == "rm") | np.bool_(mode == "rz") & ~negative)
    up = below & (np.bool_(mode == "rp") | np.bool_(mode == "rz") & negative)
    result = np.where(down, np.nextafter(nearest, kind(-np.inf)), np.where(up, np.nextafter(nearest, kind(np.inf)), nearest))
    return np.where((result == 0) & negative, -kind(0), result)[()]


def two_sum(a, b):
    """Sum and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def odd(total, error):
    """A rounded float64 sum and its error as one float64, rounded to odd: rounding that again, to fewer bits, is right in every mode."""
    bits = np.asarray(total).view(np.int64)
    wrong = (error != 0) & (bits & 1 == 0) & np.isfinite(total) & np.isfinite(error)
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(wrong, np.nextafter(total, towards), total)


def total_to_f32(a, b, mode):
    """a + b (float64, each exact) rounded once to float32."""
    total, error = two_sum(a, b)
    result = to_f32(odd(total, error), mode)
    if mode == "rm":  # an exact zero of two that cancel, or of unlike zeros, is -0 when rounding down
        result = np.where((total == 0) & ~((a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)), np.float32(-0.0), result)[()]
    return result


def to_f32(value, mode):
    """float64 rounded to float32."""
    value = np.asarray(value)
    nearest = value.astype(np.float32)
    if mode == "rn":
        return nearest[()]
    return directed(nearest, nearest > value, nearest < value, mode, np.signbit(value))


# -- float64: sums and products with their exact errors; what is out of their range goes through fractions, lane by lane


def two_product(a, b):
    """Product and its exact error (Dekker, Veltkamp), for operands between SMALL and LARGE."""
    product = a * b
    a1, b1 = a * 134217729.0, b * 134217729.0
    a1, b1 = a1 - (a1 - a), b1 - (b1 - b)
    a2, b2 = a - a1, b - b1
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


@runtime
def fma64(a, b, c, mode):
    """a * b + c of float64 rounded once."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c))
    a, b, c = (np.atleast_1d(np.broadcast_to(x, shape)) for x in (a, b, c))
    product, low = two_product(a, b)
    result = product + c
    if mode == "rn":
        if (low != 0).any():
            upper, lower = two_sum(c, low)
            high, rest = two_sum(product, upper)
            result = np.where((a == 0) | (b == 0), product + c, high + odd(*two_sum(rest, lower)))
        slow = ~(between(a) & between(b) & (between(c) | (c == 0))) & ~((a == 0) | (b == 0))
        slow |= (np.abs(result) < SMALL) & (result != 0)
    else:
        slow = np.ones(len(a), bool)
    finite = np.isfinite(a) & np.isfinite(b)
    result = np.where(finite & np.isinf(c), c, np.where(finite & np.isfinite(c), result, a * b + c))
    slow &= finite & np.isfinite(c)
    if slow.any():
        result[slow] = [exact_fma(*lane, mode) for lane in zip(a[slow].tolist(), b[slow].tolist(), c[slow].tolist())]
    return result if shape else result[0]


def between(x):
    size = np.abs(x)
    return (size > SMALL) & (size < LARGE)


def exact_fma(a: float, b: float, c: float, mode: str) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        signs = {np.signbit(a) ^ np.signbit(b), np.signbit(c)}
        zeros = (a == 0 or b == 0) and c == 0
        negative = (signs == {True}) if zeros and len(signs) == 1 else mode == "rm"
        return -0.0 if negative else 0.0
    return round_fraction(exact, mode)


@runtime
def add64_rounded(a, b, mode):
    result = _exactly(a, b, mode, lambda x, y: Fraction(x) + Fraction(y), a + b)
    if mode == "rm":  # an exact zero of two that cancel, or of unlike zeros, is -0
        result = np.where((a + b == 0) & (result == 0) & ~((a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)), -0.0, result)[()]
    return result


@runtime
def mul64_rounded(a, b, mode):
    return _exactly(a, b, mode, lambda x, y: Fraction(x) * Fraction(y), a * b)


@runtime
def div64_rounded(a, b, mode):
    return _exactly(a, b, mode, lambda x, y: Fraction(x) / Fraction(y) if y else None, a / b)


@runtime
def sqrt64_rounded(a, mode):
    """The nearest root, moved by the sign of its exact square's error."""
    root = np.atleast_1d(np.sqrt(a)).copy()
    for number, (x, r) in enumerate(zip(np.atleast_1d(a).tolist(), root.tolist())):
        if 0 < x < np.inf:
            square = Fraction(r) ** 2
            if square > x and mode in ("rm", "rz"):
                root[number] = np.nextafter(r, 0)
            elif square < x and mode == "rp":
                root[number] = np.nextafter(r, np.inf)
    return root if np.ndim(a) else root[0]


def _exactly(a, b, mode, operation, nearest):
    """Lane by lane through fractions: rounding modes other than to nearest are rare in double precision."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    a, b = (np.atleast_1d(np.broadcast_to(x, shape)) for x in (a, b))
    result = np.atleast_1d(nearest).copy()
    for number, (x, y) in enumerate(zip(a.tolist(), b.tolist())):
        if np.isfinite(x) and np.isfinite(y):
            exact = operation(x, y)
            if exact is not None and exact != 0:
                result[number] = round_fraction(exact, mode)
    return result if shape else result[0]


def round_fraction(exact: Fraction, mode: str) -> float:
    """A non-zero rational number as float64."""
    negative, size = exact < 0, abs(exact)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 53, -1074)
    while True:
        scaled = size / Fraction(2) ** exponent
        whole = scaled.numerator // scaled.denominator
        if whole < 1 << 53:
            break
        exponent += 1
    if whole < 1 << 52 and exponent > -1074:
        exponent -= 1
        scaled = size / Fraction(2) ** exponent
        whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    away = dict(rz=False, rm=negative, rp=not negative).get(mode)
    if away is None:
        away = rest > Fraction(1, 2) or rest == Fraction(1, 2) and whole & 1
    whole += bool(away and rest)
    try:
        value = np.ldexp(float(whole), exponent)
    except OverflowError:
        value = np.inf
    if np.isinf(value) and not (away is True or mode == "rn"):
        value = np.finfo(np.float64).max
    return -float(value) if negative else float(value)
