"""What the sanitizer finds: faults of a kernel that a GPU would mostly pass over in silence."""

from cudalab.emulator.errors import KernelFault


class Race(KernelFault):
    """Two threads touch the same byte, one of them writes, and nothing orders them; names both lines."""


class Uninitialised(KernelFault):
    """A read of bytes that nobody has written."""


class ChangedInput(KernelFault):
    """A write into an input, which the next run would find changed."""


class EndedBlock(KernelFault):
    """An access to the shared memory of another block of the cluster, which may have ended by then."""


class InFlight(KernelFault):
    """An access to bytes that an asynchronous copy is still to write."""


class MissingFence(KernelFault):
    """Registers that wgmma uses, written without a wgmma.fence between them."""


class MissingProxyFence(KernelFault):
    """Plain writes where TMA or wgmma reads, or TMA writes, without a fence.proxy.async between them."""


class DivergentBarrier(KernelFault):
    """A barrier that some threads of a warp or block never reach, or that the threads of a warp reach at different places."""
