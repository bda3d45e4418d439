"""What the tests of Hopper's instructions share: a prelude of one-instruction functions, a way to run a kernel, the swizzles."""

from pathlib import Path

import numpy as np
import pytest

from cudalab.emulator import Emulator
from emulated import compile_cuda

KERNELS = Path(__file__).parent / "kernels"
PRELUDE = (KERNELS / "hopper.cuh").read_text()
BOTH = pytest.mark.parametrize("delivery", ["lazy", "eager"])


def run(body: str, grid, block, *args, parameters="u32* out", delivery="lazy", sanitize=True, **more):
    """Run a kernel `k` of this body with the prelude; the arrays afterwards."""
    text = body if "__global__" in body else f'extern "C" __global__ void k({parameters}) {{\n    int t = threadIdx.x;\n{body}\n}}\n'
    ptx = compile_cuda(PRELUDE + text)
    return Emulator(delivery=delivery, sanitize=sanitize).run_ptx(ptx, "k", grid, block, args, **more)


# PTX ISA, "Swizzling Modes": which sixteen bytes of a line of 128 lie where, line by line; the pattern repeats
LINES = {32: "01234567 10325476", 64: "01234567 10325476 23016745 32107654",
         128: "01234567 10325476 23016745 32107654 45670123 54761032 67452301 76543210"}


def swizzle(offset: int, width: int) -> int:
    """Where a byte of a box goes."""
    if not width:
        return offset
    lines = LINES[width].split()
    return offset // 128 * 128 + lines[offset // 128 % len(lines)].index(str(offset // 16 % 8)) * 16 + offset % 16


def words(count=64):
    """A buffer of zeros."""
    return np.zeros(count, np.uint32)
