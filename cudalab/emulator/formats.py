"""Floating-point formats of 16 bits and fewer as values: decoding to float64, rounding, encoding.

PTX ISA, "Alternate Floating-Point Data Formats", "Half Precision Floating Point Instructions".  To add a format add a row to FORMATS.
"""

from dataclasses import dataclass

import numpy as np

from cudalab.emulator.table import runtime


@dataclass(frozen=True)
class Format:
    """A format: significand bits with the hidden one, exponent of the smallest normal, largest finite value, bits of its NaN."""

    name: str
    bits: int
    precision: int
    lowest: int
    largest: float
    nan: int


FORMATS = {f.name: f for f in (
    Format("f16", 16, 11, -14, 65504.0, 0x7FFF),
    Format("bf16", 16, 8, -126, float(np.uint32(0x7F7F0000).view(np.float32)), 0x7FFF),
    Format("tf32", 32, 11, -126, float(np.uint32(0x7F7FE000).view(np.float32)), 0x7FFFE000),
    Format("e4m3", 8, 4, -6, 448.0, 0x7F),
    Format("e5m2", 8, 3, -14, 57344.0, 0x7F),
)}


def _values_of_8_bits(form: Format, bias: int, infinite: bool) -> np.ndarray:
    """What each of the 256 numbers of 8 bits means."""
    numbers, fraction = np.arange(256), form.precision - 1
    exponent, below = numbers >> fraction & (1 << 7 - fraction) - 1, numbers & (1 << fraction) - 1
    value = np.ldexp((below + (exponent > 0) * (1 << fraction)).astype(np.float32), np.maximum(exponent, 1) - bias - fraction)
    if infinite:
        value = np.where(exponent < 31, value, np.where(below == 0, np.float32(np.inf), np.float32(np.nan)))
    else:
        value[numbers & 127 == form.nan] = np.nan
    return np.where(numbers < 128, value, -value)


EIGHT_BITS = dict(e4m3=_values_of_8_bits(FORMATS["e4m3"], 7, False), e5m2=_values_of_8_bits(FORMATS["e5m2"], 15, True))
ROUND = dict(rn=np.rint, rz=np.trunc, rm=np.floor, rp=np.ceil, rna=lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x))


def quantise(value: np.ndarray, form: Format, mode: str, finite: bool = False) -> np.ndarray:
    """float64 rounded to a format, still as float64.  finite: what is too large becomes the largest finite value, infinities too."""
    _, exponent = np.frexp(value)
    quantum = np.maximum(exponent - 1, form.lowest) - (form.precision - 1)
    result = np.ldexp(ROUND[mode](np.ldexp(value, -quantum)), quantum)
    result = np.where(np.isfinite(value), result, value)
    over = np.abs(result) > form.largest
    if finite:
        return np.where(over, np.copysign(form.largest, value), result)
    stays = np.isfinite(value) & over & ((mode == "rz") | (mode == "rm") & (value > 0) | (mode == "rp") & (value < 0))
    return np.where(stays, np.copysign(form.largest, value), np.where(over, np.copysign(np.inf, value), result))


@runtime
def encode(value, name, mode="rn", finite=False, relu=False):
    """float64 (or float32) as the bits of a format.  relu: negative values become 0.  Every NaN is the format's canonical one."""
    form = FORMATS[name]
    value = np.asarray(value)
    if relu:
        value = np.where(value < 0, value.dtype.type(0), value) + value.dtype.type(0)
    if name == "f16" and mode == "rn" and not finite:
        bits = value.astype(np.float16).view(np.uint16)
    elif name == "bf16" and mode == "rn" and not finite and value.dtype == np.float32:
        whole = value.view(np.uint32)
        bits = (whole + np.uint32(0x7FFF) + (whole >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)).astype(np.uint16)
    else:
        exact = quantise(value.astype(np.float64), form, mode, finite)
        if name == "f16":
            bits = exact.astype(np.float16).view(np.uint16)
        elif form.bits == 8:
            bits = eight_bits(exact, form)
        else:
            bits = exact.astype(np.float32).view(np.uint32)
            bits = (bits >> np.uint32(16)).astype(np.uint16) if name == "bf16" else bits
    lost = np.isnan(value)
    return np.where(lost, bits.dtype.type(form.nan), bits)[()] if lost.any() else np.asarray(bits)[()]


def eight_bits(value: np.ndarray, form: Format) -> np.ndarray:
    """The bits of finite values that a format of 8 bits has: its largest exponent holds numbers, or an infinity that nobody asks for."""
    exponent = np.where(value == 0, form.lowest, np.maximum(np.frexp(value)[1] - 1, form.lowest))
    whole = np.abs(np.ldexp(value, form.precision - 1 - exponent))  # the hidden bit adds one to the stored exponent
    stored = np.where(np.isfinite(whole), whole, 0).astype(np.uint8) + (exponent - form.lowest << form.precision - 1).astype(np.uint8)
    return stored | np.signbit(value).astype(np.uint8) << np.uint8(7)


@runtime
def decode(bits, name):
    """The bits of a format as float64."""
    return decode32(bits, name).astype(np.float64)


@runtime
def decode32(bits, name):
    """The bits of a format as float32, which holds them exactly."""
    bits = np.asarray(bits)
    if name in EIGHT_BITS:
        return EIGHT_BITS[name].take(bits)
    if name == "f16":
        return bits.view(np.float16).astype(np.float32)[()]
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)[()]
    return bits.view(np.float32)[()]
