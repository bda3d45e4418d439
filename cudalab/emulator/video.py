"""Bytes and halves of a register at once.  PTX ISA, "SIMD Video Instructions"; without selectors and masks, which CUDA C++ never uses."""

import numpy as np

from cudalab.emulator.table import instruction, runtime

OPERATIONS = ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")
NAMES = [f"{operation}{pieces}" for operation in OPERATIONS for pieces in (2, 4)]


@instruction(*NAMES, types="u32 s32", modifiers="sat add")
def simd(code, ins):
    """d = each piece of a with each of b; with .add their sum, and c."""
    target, *values = ins.operands
    result, one, other = ins.types
    operation, pieces = ins.parts[0][:-1], int(ins.parts[0][-1])
    signs = f"{result.kind == 'signed'}, {one.kind == 'signed'}, {other.kind == 'signed'}"
    code.assign(target, f"pieces({operation!r}, {pieces}, {signs}, {ins.has('sat')}, {ins.has('add')}, "
                        f"{', '.join(code.value(v, 'u32') for v in values)})", "u32")


@runtime
def pieces(operation, number, signed, signed_a, signed_b, sat, add, a, b, c):
    bits = 32 // number
    a, b = (_cut(v, bits, s) for v, s in ((a, signed_a), (b, signed_b)))
    result = dict(vadd=lambda: a + b, vsub=lambda: a - b, vavrg=lambda: (a + b + 1) >> 1, vabsdiff=lambda: np.abs(a - b),
                  vmin=lambda: np.minimum(a, b), vmax=lambda: np.maximum(a, b))[operation]()
    if sat:
        result = np.clip(result, *((-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)))
    if add:
        return (result.sum(axis=-1) + c.astype(np.int64)).astype(np.uint32)
    places = np.arange(number) * bits
    return ((result & (1 << bits) - 1) << places).sum(axis=-1).astype(np.uint32)


def _cut(value, bits: int, signed: bool) -> np.ndarray:
    """The pieces of a register along a new last axis."""
    pieces = np.asarray(value).astype(np.int64)[..., None] >> np.arange(32 // bits) * bits & (1 << bits) - 1
    return pieces - ((pieces >> bits - 1) << bits) if signed else pieces
