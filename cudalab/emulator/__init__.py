"""PTX on the CPU: what the lab runs on where there is no GPU, and what sees more than a GPU shows."""

from cudalab.emulator.backend import Emulator
from cudalab.emulator.errors import Deadlock, KernelFault, PtxError

__all__ = ["Deadlock", "Emulator", "KernelFault", "PtxError"]
