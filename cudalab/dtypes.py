"""Types of elements: one name in problems, tensors, macros and results, and what stands behind it in NumPy, on the device, in `check`.

On the host, bf16 and fp8 are arrays of ml_dtypes; on the device bf16 is the same type to CuPy, which only moves its bits, and fp8 is uint8.
tf32 lies in memory as f32 whose low bits are zero.  Importing this needs the standard library only: `list` is fast.
"""

import functools
import sys
from dataclasses import dataclass

from cudalab.errors import UnknownName


@dataclass(frozen=True)
class Dtype:
    """numpy: the name NumPy or ml_dtypes has for it.  digits: bits of the significand with the hidden one, 0 for integers.
    lowest, highest: exponents of the smallest number above zero and of the largest."""

    numpy: str
    bytes: int
    digits: int = 0
    lowest: int = 0
    highest: int = 0


DTYPES = dict(
    f64=Dtype("float64", 8, 53, -1074, 1023), f32=Dtype("float32", 4, 24, -149, 127),
    tf32=Dtype("float32", 4, 11, -136, 127), f16=Dtype("float16", 2, 11, -24, 15), bf16=Dtype("bfloat16", 2, 8, -133, 127),
    fp8_e4m3=Dtype("float8_e4m3fn", 1, 4, -9, 8), fp8_e5m2=Dtype("float8_e5m2", 1, 3, -16, 15),
    i8=Dtype("int8", 1), int8=Dtype("int8", 1), u8=Dtype("uint8", 1), i16=Dtype("int16", 2), u16=Dtype("uint16", 2),
    i32=Dtype("int32", 4), u32=Dtype("uint32", 4), i64=Dtype("int64", 8), u64=Dtype("uint64", 8))


def dtype_of(name: str) -> Dtype:
    """Raises UnknownName for a type of which no array can be made."""
    if name not in DTYPES:
        raise UnknownName(f"no element type is called '{name}'; there are {' '.join(DTYPES)}")
    return DTYPES[name]


def itemsize(name: str) -> int:
    """Bytes of one element: f32 -> 4."""
    return dtype_of(name).bytes


def is_float(name: str) -> bool:
    return dtype_of(name).digits > 0


def unit(name: str) -> float:
    """Unit roundoff: the largest relative error of rounding to the type; 0 for integers."""
    return 2.0**-dtype_of(name).digits if is_float(name) else 0.0


def least(name: str) -> float:
    """The smallest number above zero, a subnormal one; 0 for integers."""
    return 2.0**dtype_of(name).lowest if is_float(name) else 0.0


def overflow(name: str) -> float:
    """From this magnitude on rounding to the type gives infinity (fp8 is taken to saturate: never)."""
    dtype = dtype_of(name)
    return (2 - 2.0**-dtype.digits) * 2.0**dtype.highest if is_float(name) and not name.startswith("fp8") else float("inf")


@functools.cache
def numpy_dtype(name: str):
    """The NumPy type of an array on the host."""
    import numpy as np
    known = dtype_of(name).numpy
    if known.startswith(("bfloat", "float8")):
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, known))
    return np.dtype(known)


@functools.cache
def device_dtype(name: str):
    """The NumPy type of an array on the device: CuPy knows no fp8."""
    import numpy as np
    return np.dtype(np.uint8) if name.startswith("fp8") else numpy_dtype(name)


def decode(array, name: str):
    """The elements of a NumPy or CuPy array of that type, in float64.

    The bits of bf16 and fp8 are read by integer arithmetic: CuPy can do little with the types themselves.
    """
    xp = module_of(array)
    if name.startswith("fp8"):
        return xp.asarray(_fp8_values(name))[array.view(xp.uint8)]
    if name == "bf16":
        array = (array.view(xp.uint16).astype(xp.uint32) << 16).view(xp.float32)
    with _quiet():
        return array.astype(xp.float64)


def finite(array, name: str) -> bool:
    """Whether an array of that type holds neither NaN nor infinity."""
    xp = module_of(array)
    if name == "bf16":
        return not bool(((array.view(xp.uint16) & 0x7F80) == 0x7F80).any())
    return not is_float(name) or bool(xp.isfinite(decode(array, name) if name.startswith("fp8") else array).all())


def bits(array):
    """The same array as unsigned integers of its width: what CuPy can index whatever the type."""
    return array.view(f"u{array.itemsize}")


def encode(array, name: str):
    """An array of that type, of the numbers in a NumPy or CuPy array, rounded to nearest, ties to even; fp8 saturates.

    The numbers go through float32, so they must be exact in it, or far from the middle between two of the type.
    """
    xp = module_of(array)
    storage = numpy_dtype(name) if xp.__name__ == "numpy" else device_dtype(name)
    if name.startswith("fp8"):
        return _fp8_codes(array.astype(xp.float32), name, xp).view(storage)
    if name in ("bf16", "tf32"):
        bits = _drop(array.astype(xp.float32).view(xp.uint32), 24 - DTYPES[name].digits, xp)
        return (bits >> 16).astype(xp.uint16).view(storage) if name == "bf16" else bits.view(storage)
    return array.astype(storage, copy=False)


def module_of(array):
    """numpy or cupy: the module that the array belongs to."""
    return sys.modules[type(array).__module__.split(".")[0]]


def _drop(bits, count: int, xp):
    """float32 as uint32 with its `count` low bits rounded away, to nearest, ties to even; NaN stays NaN."""
    half = xp.uint32((1 << count - 1) - 1)
    rounded = (bits + half + ((bits >> count) & xp.uint32(1))) & xp.uint32(0x100000000 - (1 << count))
    return xp.where((bits & xp.uint32(0x7FFFFFFF)) > xp.uint32(0x7F800000), xp.uint32(0x7FC00000), rounded)


def _quiet():
    import numpy as np
    return np.errstate(invalid="ignore")  # a signalling NaN is a NaN like any other


@functools.cache
def _fp8_values(name: str):
    """float64 of each of the 256 codes."""
    import numpy as np
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float64)


def _fp8_codes(array, name: str, xp):
    """uint8 codes of float32 numbers: the code of the nearest value, found among the sorted positive ones, ties to the even code."""
    import numpy as np
    values = _fp8_values(name)[:128]
    values = values[np.isfinite(values)]
    middles = xp.asarray(((values[1:] + values[:-1]) / 2).astype(np.float32))  # exact: one bit more than the type has
    size = xp.abs(array)
    code = xp.searchsorted(middles, size.ravel(), side="left").reshape(size.shape)  # in the middle: the lower
    tie = (code < len(middles)) & (middles[xp.minimum(code, len(middles) - 1)] == size) & (code % 2 == 1)
    code = xp.where(xp.isnan(array), 0x7F, code + tie)
    return (code + 128 * xp.signbit(array)).astype(xp.uint8)
