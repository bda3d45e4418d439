"""What stops an emulation: text that is not PTX or not supported, and faults of the kernel itself."""

from cudalab.errors import LabError


class PtxError(LabError):
    """PTX that is damaged, or holds what the emulator does not support; names the instruction, its PTX line and the .cu line."""


class KernelFault(LabError):
    """What a GPU would answer with an error, or silently get wrong; names the kernel, block, thread and the .cu line."""


class Deadlock(KernelFault):
    """No thread can go on; says who waits for what."""
