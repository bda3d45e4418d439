"""Types of PTX and the NumPy types that hold them.

PTX ISA, "Fundamental Types", "Alternate Floating-Point Data Formats", "Packed Data Types".

A register is held by the unsigned integer of its width, except pred (bool), f32 and f64.  Small floating-point formats and packed types
are held as their bits.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Type:
    """A type: its bits, its kind (pred, bits, unsigned, signed, float, packed) and the NumPy type of a value of it."""

    name: str
    bits: int
    kind: str
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)


PAIR = np.dtype([("low", "u8"), ("high", "u8")])  # b128


def _types():
    yield Type("pred", 1, "pred", np.dtype(bool))
    for bits in (8, 16, 32, 64):
        yield Type(f"b{bits}", bits, "bits", np.dtype(f"u{bits // 8}"))
        yield Type(f"u{bits}", bits, "unsigned", np.dtype(f"u{bits // 8}"))
        yield Type(f"s{bits}", bits, "signed", np.dtype(f"i{bits // 8}"))
    yield Type("b128", 128, "bits", PAIR)
    for bits in (16, 32, 64):
        yield Type(f"f{bits}", bits, "float", np.dtype(f"f{bits // 8}"))
    yield Type("bf16", 16, "float", np.dtype("u2"))
    yield Type("tf32", 32, "float", np.dtype("u4"))
    for name in ("e4m3", "e5m2", "e3m2", "e2m3", "ue8m0"):
        yield Type(name, 8, "float", np.dtype("u1"))
    for name in ("f16x2", "bf16x2", "u16x2", "s16x2"):
        yield Type(name, 32, "packed", np.dtype("u4"))
    yield Type("f32x2", 64, "packed", np.dtype("u8"))
    for name in ("e4m3x2", "e5m2x2", "ue8m0x2"):
        yield Type(name, 16, "packed", np.dtype("u2"))
    for name in ("e2m1x2", "e2m3x2", "e3m2x2"):
        yield Type(name, 16 if name != "e2m1x2" else 8, "packed", np.dtype("u2" if name != "e2m1x2" else "u1"))
    for name in ("e4m3x4", "e5m2x4"):
        yield Type(name, 32, "packed", np.dtype("u4"))


TYPES = {t.name: t for t in _types()}
INTEGERS = "u16 s16 u32 s32 u64 s64"


def register_dtype(name: str) -> np.dtype:
    """The NumPy type of a register declared with PTX type `name`."""
    kind = TYPES[name]
    if kind.name in ("pred", "f32", "f64", "b128"):
        return kind.dtype
    return np.dtype(f"u{kind.bytes}")
