"""How tensor cores add up: products of A and B, and the accumulator.

PTX leaves the precision of mma and wgmma sums open ("at least single precision").  Three models, chosen by Emulator(mma=…):

float64    (default) every product exact, the sum of all of them and the accumulator in float64, rounded once to the type of D, to nearest.
fp8        as float64, except where hardware keeps fewer bits than single precision: mma of sm_89 and wgmma of sm_90, of e4m3 and e5m2.
hardware   the sums as published for each architecture.

What is published, and not NVIDIA's word: P. Xie et al., "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores",
arXiv:2511.10909; F. A. Khattak and M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv:2512.07004; for fp8 also DeepSeek-AI,
"DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.5.2.  A few neighbouring products at a time are added to the accumulator: all
are aligned to the largest exponent among them, cut off behind so many fraction bits, added, and the sum is cut off to the type of D
(rounded to nearest for f16).  The exponent of a product is the sum of its factors' exponents, so its significand may reach 4.
"""

from dataclasses import dataclass

import numpy as np

from cudalab.emulator.formats import FORMATS, encode
from cudalab.emulator.rounding import canonical
from cudalab.errors import BadConfig

MODELS = ("float64", "fp8", "hardware")
EIGHT = ("e4m3", "e5m2")
LOWEST = {"f32": -126, **{kind: FORMATS[kind].lowest for kind in FORMATS}}  # exponent of the smallest normal number
BYTES = dict(f16=2, bf16=2, tf32=4, e4m3=1, e5m2=1)


@dataclass(frozen=True)
class Adder:
    """Bytes of a row of A whose products are added at once, fraction bits that are kept in adding, and in an f32 result."""

    width: int
    fraction: int
    kept: int = 23


ADDERS = {"sm_80": Adder(16, 24), "sm_89": Adder(16, 24), "sm_90": Adder(32, 25), "sm_120": Adder(32, 25)}
NARROW = {("mma", "sm_89"): Adder(16, 13, 13), ("wgmma", "sm_90"): Adder(32, 13, 13)}  # for e4m3 and e5m2


class Accumulator:
    """The model that one run uses.  mma: one of MODELS; target: "sm_90a"."""

    def __init__(self, mma: str, target: str):
        if mma not in MODELS:
            raise BadConfig(f"no model of accumulation '{mma}'; take one of {', '.join(MODELS)}")
        self.mma, self.target = mma, target.rstrip("af")

    def adder(self, operation: str, kind: str) -> Adder | None:
        """What sums are made by; None: float64.  operation: "mma" or "wgmma"; kind: the type of A's elements."""
        if self.mma == "float64":
            return None
        narrow = NARROW.get((operation, self.target)) if kind in EIGHT else None
        if narrow is not None or self.mma == "fp8":
            return narrow
        if self.target not in ADDERS:
            raise BadConfig(f"no published model of accumulation for {self.target}; take mma='float64', or one of {', '.join(ADDERS)}")
        return ADDERS[self.target]

    def multiply_add(self, operation: str, kinds: tuple[str, str], a: np.ndarray, b: np.ndarray, c, result: str) -> np.ndarray:
        """a @ b + c, over any number of leading axes.

        a, b: float64 that hold elements of the two types in `kinds`; c: float32 or float16 (or 0.0); result: "f32" or "f16".
        Returns float32 or float16.
        """
        adder = self.adder(operation, kinds[0])
        if adder is None:
            total = np.matmul(a, b)
            total += c
            return rounded(total, result)
        step = adder.width // BYTES[kinds[0]]
        for start in range(0, a.shape[-1], step):
            c = fused(adder, kinds, a[..., start:start + step], b[..., start:start + step, :], c, result)
        return c


def rounded(total: np.ndarray, result: str) -> np.ndarray:
    """float64 to float32 or float16, to nearest, NaNs canonical."""
    if result == "f16":
        return np.ascontiguousarray(encode(total, "f16")).view(np.float16)
    single = total.astype(np.float32)
    canonical(single.reshape(-1))
    return single


def exponent(value: np.ndarray, kind: str) -> np.ndarray:
    """Of elements of a type: subnormals have that of the smallest normal number, zeros one so low that it never decides."""
    found = np.maximum(np.frexp(value)[1] - 1, LOWEST[kind])
    return np.where(value == 0, -1000, found)


def fused(adder: Adder, kinds: tuple[str, str], a, b, c, result: str) -> np.ndarray:
    """One step: the products of a few columns of a and rows of b added to c, all aligned to the largest and cut off."""
    c = np.broadcast_to(np.asarray(c, np.float64), (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
    largest = np.maximum(exponent(c, "f16" if result == "f16" else "f32"), LOWEST["f32"])
    left, right = exponent(a, kinds[0]), exponent(b, kinds[1])
    for k in range(a.shape[-1]):
        largest = np.maximum(largest, left[..., :, k, None] + right[..., None, k, :])
    shift = adder.fraction - largest
    total = np.trunc(np.ldexp(c, shift))
    for k in range(a.shape[-1]):
        total += np.trunc(np.ldexp(a[..., :, k, None] * b[..., None, k, :], shift))
    plain = np.matmul(a, b) + c  # not a number or infinite, as it would be without cutting off
    total = np.where(np.isfinite(plain), np.ldexp(total, -shift), plain)
    return rounded(total, "f16") if result == "f16" else cut_off(total, adder.kept)


def cut_off(total: np.ndarray, kept: int) -> np.ndarray:
    """float64 to float32 with so many fraction bits, towards zero."""
    quantum = np.maximum(np.frexp(total)[1] - 1, LOWEST["f32"]) - kept
    cut = np.where(np.isfinite(total), np.ldexp(np.trunc(np.ldexp(total, -quantum)), quantum), total)
    single = cut.astype(np.float32)  # exact but where it is too large
    over = np.isinf(single) & np.isfinite(cut)
    single = np.where(over, np.copysign(np.finfo(np.float32).max, single), single) if over.any() else single
    canonical(single.reshape(-1))
    return single
