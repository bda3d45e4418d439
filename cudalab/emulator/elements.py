"""Elements of matrices as tensor cores take them: from raw bits to float64, in which products are exact.  PTX ISA, "Matrix Data-types"."""

import numpy as np

from cudalab.emulator.formats import decode

EIGHT = {kind: decode(np.arange(256, dtype=np.uint8), kind) for kind in ("e4m3", "e5m2")}


def elements(raw: np.ndarray, kind: str) -> np.ndarray:
    """The elements in contiguous raw bits (of any unsigned type), along the last axis.  f32, s32 and f64 stay as they are."""
    match kind:
        case "f32" | "s32" | "f64":
            return raw
        case "f16":
            return raw.view(np.float16).astype(np.float64)
        case "bf16":
            return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        case "tf32":  # the low 13 bits are ignored
            return (raw.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        case "e4m3" | "e5m2":
            return EIGHT[kind].take(raw.view(np.uint8))
        case "s8":
            return raw.view(np.int8).astype(np.float64)
        case "u8":
            return raw.view(np.uint8).astype(np.float64)
        case "s4":
            return (nibbles(raw) ^ 8).astype(np.float64) - 8
        case "u4":
            return nibbles(raw).astype(np.float64)
        case "b1":
            return np.unpackbits(raw.view(np.uint8), axis=-1, bitorder="little").astype(np.float64)
    raise KeyError(kind)


def nibbles(raw: np.ndarray) -> np.ndarray:
    """Values of 4 bits, the low ones of a byte first."""
    octets = raw.view(np.uint8)
    return np.stack([octets & 15, octets >> 4], axis=-1)
