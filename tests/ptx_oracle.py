"""What instructions of PTX must give, in Python integers and fractions: nothing here is taken from the emulator, or from NumPy's floats.

A floating-point number is read as ("nan",), ("inf", sign) or ("num", sign, magnitude as a Fraction), worked on exactly and rounded once.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

ANY = "anything"  # PTX leaves the result open
NAN = "a NaN"  # any NaN of the result's type


@dataclass(frozen=True)
class Within:
    """A result between two bounds, both allowed."""

    low: object
    high: object


@dataclass(frozen=True)
class Differs:
    """What the emulator gives, which is what PTX says, and what a device may give instead: docs/emulator.md lists where and why."""

    here: object
    device: object


@dataclass(frozen=True)
class Format:
    """mantissa: its stored bits; shift: unused bits below it; special: what the largest exponent holds beside numbers."""

    bits: int
    mantissa: int
    bias: int
    nan: int | None
    infinite: bool = True
    shift: int = 0

    @property
    def lowest(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def sign(self) -> int:
        return 1 << self.bits - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.bits - 1 - self.mantissa - self.shift) - 1) << self.mantissa + self.shift

    @property
    def largest(self) -> int:
        """The bits of the largest finite number."""
        if self.infinite:
            return self.infinity - (1 << self.shift)
        return (1 << self.bits - 1) - (2 if self.nan is not None else 1)


FORMATS = dict(
    f16=Format(16, 10, 15, 0x7FFF), bf16=Format(16, 7, 127, 0x7FFF), f32=Format(32, 23, 127, 0x7FFFFFFF),
    f64=Format(64, 52, 1023, 0x7FFFFFFFFFFFFFFF), tf32=Format(32, 10, 127, 0x7FFFE000, shift=13), e5m2=Format(8, 2, 15, 0x7F),
    e4m3=Format(8, 3, 7, 0x7F, infinite=False), e2m1=Format(4, 1, 1, None, infinite=False), e2m3=Format(6, 3, 1, None, infinite=False),
    e3m2=Format(6, 2, 3, None, infinite=False))


@functools.cache
def decode(bits: int, name: str) -> tuple:
    form = FORMATS[name]
    sign, rest = bits >> form.bits - 1 & 1, bits & form.sign - 1
    if form.infinite and rest >= form.infinity:
        return ("inf", sign) if rest == form.infinity else ("nan",)
    if rest == form.nan:
        return ("nan",)
    exponent, fraction = rest >> form.mantissa + form.shift, rest >> form.shift & (1 << form.mantissa) - 1
    whole = fraction + (1 << form.mantissa if exponent else 0)
    return "num", sign, Fraction(whole) * Fraction(2) ** (max(exponent, 1) - form.bias - form.mantissa)


def is_nan(bits: int, name: str) -> bool:
    return name in FORMATS and decode(bits, name) == ("nan",)


def value_of(bits: int, name: str):
    """A number to compare with: a Fraction, or an infinity; not of NaN."""
    kind, sign, *size = decode(bits, name)
    return (-1 if sign else 1) * (size[0] if size else math.inf)


def exponent_of(size: Fraction) -> int:
    """floor(log2(size))."""
    top, bottom = size.numerator, size.denominator
    exponent = top.bit_length() - bottom.bit_length()
    below = top < bottom << exponent if exponent >= 0 else top << -exponent < bottom
    return exponent - below


def encode(x: tuple, name: str, mode: str = "rn", *, finite: bool = False, nan: int | None = None) -> int:
    """Rounded once.  finite: what is too large becomes the largest finite number, infinities and NaN too where there is no NaN."""
    form = FORMATS[name]
    if x[0] == "nan":
        return form.largest if form.nan is None else form.nan if nan is None else nan
    sign = form.sign if x[1] else 0
    if x[0] == "inf":
        return sign | (form.largest if finite else form.infinity if form.infinite else form.nan)
    top, bottom = x[2].numerator, x[2].denominator
    if not top:
        return sign
    quantum = max(exponent_of(x[2]), form.lowest) - form.mantissa
    top, bottom = (top << -quantum, bottom) if quantum < 0 else (top, bottom << quantum)
    whole, rest = divmod(top, bottom)
    if rest:
        twice = 2 * rest
        whole += dict(rn=twice > bottom or twice == bottom and whole & 1, rna=twice >= bottom, rz=False, rm=x[1], rp=not x[1])[mode]
    if whole >> form.mantissa + 1:
        whole, quantum = whole >> 1, quantum + 1
    if not whole >> form.mantissa:  # subnormal
        return sign | whole << form.shift
    result = (quantum + form.mantissa + form.bias << form.mantissa | whole - (1 << form.mantissa)) << form.shift
    if result > form.largest:
        stays = finite or mode == "rz" or mode == "rm" and not x[1] or mode == "rp" and x[1]
        return sign | (form.largest if stays else form.infinity if form.infinite else form.nan)
    return sign | result


def flushed(x: tuple, name: str) -> tuple:
    """Subnormal numbers as zeros of their sign (.ftz)."""
    if x[0] == "num" and x[2] and exponent_of(x[2]) < FORMATS[name].lowest:
        return "num", x[1], Fraction(0)
    return x


def number(value, sign: int = 0) -> tuple:
    """An exact number; sign: that of a zero."""
    return "num", int(value < 0) if value else sign, abs(Fraction(value))


def signed(x: tuple) -> Fraction:
    return -x[2] if x[1] else x[2]


def add(x, y, mode="rn"):
    if ("nan",) in (x, y) or x[0] == y[0] == "inf" and x[1] != y[1]:
        return ("nan",)
    if x[0] == "inf" or y[0] == "inf":
        return x if x[0] == "inf" else y
    total = signed(x) + signed(y)
    zero = x[1] if x[1] == y[1] and not x[2] and not y[2] else int(mode == "rm")
    return number(total, zero)


def negated(x):
    return x if x[0] == "nan" else (x[0], 1 - x[1], *x[2:])


def mul(x, y):
    if ("nan",) in (x, y):
        return ("nan",)
    sign = x[1] ^ y[1]
    if "inf" in (x[0], y[0]):
        return ("nan",) if ("num" in (x[0], y[0]) and (x if x[0] == "num" else y)[2] == 0) else ("inf", sign)
    return "num", sign, x[2] * y[2]


def fma(x, y, z, mode="rn"):
    return add(mul(x, y), z, mode)


def div(x, y):
    if ("nan",) in (x, y) or x[0] == y[0] == "inf":
        return ("nan",)
    sign = x[1] ^ y[1]
    if x[0] == "inf":
        return "inf", sign
    if y[0] == "inf":
        return "num", sign, Fraction(0)
    if not y[2]:
        return ("inf", sign) if x[2] else ("nan",)
    return "num", sign, x[2] / y[2]


def sqrt(x):
    """The root, cut far below any format's last bit with a mark that something was cut off."""
    if x[0] == "nan" or x[1] and not (x[0] == "num" and not x[2]):
        return ("nan",)
    if x[0] == "inf" or not x[2]:
        return x
    shift = 2 * (160 - exponent_of(x[2]) // 2)
    scaled = x[2] * Fraction(2) ** shift
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    exact = Fraction(whole) ** 2 == scaled
    return "num", 0, (Fraction(whole) + (0 if exact else Fraction(1, 2))) / Fraction(2) ** (shift // 2)


OPERATIONS = dict(add=add, sub=lambda x, y, mode: add(x, negated(y), mode), mul=lambda x, y, mode: mul(x, y), fma=fma,
                  div=lambda x, y, mode: div(x, y), rcp=lambda x, mode: div(number(1), x), sqrt=lambda x, mode: sqrt(x))


def arithmetic(operation: str, name: str, mode: str = "rn", *, ftz: bool = False, sat: bool = False, relu: bool = False):
    """The oracle of an operation of a format.  NaN of f64 may be any; of the others it is the canonical one."""
    def oracle(*bits):
        operands = [decode(b, name) for b in bits]
        exact = OPERATIONS[operation](*([flushed(x, name) for x in operands] if ftz else operands), mode)
        return finish(exact, name, mode, ftz=ftz, sat=sat, relu=relu)
    return oracle


def finish(exact: tuple, name: str, mode: str = "rn", *, ftz: bool = False, sat: bool = False, relu: bool = False):
    if exact[0] == "nan":
        return 0 if sat else NAN if name == "f64" else FORMATS[name].nan
    result = encode(exact, name, mode)
    form = FORMATS[name]
    if ftz:
        rounded = decode(result, name)
        if flushed(exact, name) != exact and flushed(rounded, name) == rounded:
            result = 0 if result & form.sign and (sat or relu) else result
            return {result, result & form.sign}  # tiny before rounding, not after: PTX does not say which of them counts
        result = encode(flushed(rounded, name), name)
    if sat:
        one = encode(number(1), name)
        value = value_of(result, name)
        return one if value >= 1 else {0, result & form.sign} if value <= 0 and not result & form.sign - 1 else 0 if value < 0 else result
    if relu and result & form.sign:
        return {0, form.sign} if not result & form.sign - 1 else 0
    return result


def packed(oracle):
    """The oracle of both 16-bit halves of 32-bit registers."""
    def both(*values):
        low, high = oracle(*(v & 0xFFFF for v in values)), oracle(*(v >> 16 for v in values))
        lows, highs = (one if isinstance(one, set) else {one} for one in (low, high))
        return {h << 16 | w for w in lows for h in highs}
    return both


# -- integers


def to_signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def read(value: int, kind: str) -> int:
    """The value that the bits of an integer type mean."""
    bits = int(kind[1:])
    return to_signed(value, bits) if kind[0] == "s" else value & (1 << bits) - 1


def write(value: int, bits: int) -> int:
    return value & (1 << bits) - 1


def clamp(value: int, kind: str) -> int:
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return min(max(value, low), high)


# -- edge values, as bits


def integers(kind: str) -> list[int]:
    bits = int(kind[1:])
    top = 1 << bits - 1
    some = [0, 1, 2, 3, 7, 0x80 & 2 * top - 1, 100, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1, 0x5A5A5A5A5A5A5A5A & 2 * top - 1,
            0x123456789ABCDEF1 & 2 * top - 1, top >> 1, (top >> 1) - 1, 1 << bits // 2, (1 << bits // 2) - 1, 2 * top - 128]
    return list(dict.fromkeys(some))


def floats(name: str) -> list[int]:
    """Zeros, subnormals, the borders of normal numbers, one and its neighbours, odd and large ones, infinities, NaNs with payloads."""
    form = FORMATS[name]
    one = encode(number(1), name)
    unit, normal = 1 << form.shift, 1 << form.mantissa + form.shift
    positive = [0, unit, 3 * unit, normal // 2, normal - unit, normal, normal + unit, one, one + unit, one - unit, encode(number(3), name),
                encode(number(Fraction(3, 2)), name), encode(number(Fraction(1, 3)), name), encode(number(1 << form.bias // 2), name),
                form.largest, form.infinity if form.infinite else form.largest]
    nans = [form.infinity + unit, form.nan, form.infinity + normal // 2 + 5 * unit] if form.infinite else [form.nan]
    return list(dict.fromkeys([*positive, *(p | form.sign for p in positive), *nans, nans[0] | form.sign]))


def few_floats(name: str) -> list[int]:
    """A shorter list, for three operands."""
    form = FORMATS[name]
    one = encode(number(1), name)
    normal = 1 << form.mantissa
    positive = [0, 1, normal - 1, normal, one, one + 1, encode(number(1 << form.bias // 2), name), form.largest, form.infinity]
    return [*positive, *(p | form.sign for p in positive), form.infinity + 1]
