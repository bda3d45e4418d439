"""The sanitizer: what a GPU hides.  Emulator(sanitize=True) turns it on.

- writes to inputs, unset bytes: watch.py (global outputs and scratch, shared and local memory, by the byte)
- races: races.py over shadow.py and touch.py, by the byte, in shared and global memory
- order: clocks.py (barriers, __syncwarp), flags.py (fences and flags), proxies.py (mbarriers, TMA, wgmma)
- copies that read one place together, reductions that add to one: crowds.py
- blocks that may have ended while others of the cluster use their shared memory: lifetimes.py
- registers that wgmma still uses, or uses too early: registers.py
- barriers that not all threads reach: convergence.py

Out of bounds, misalignment, copies still in flight, barrier counts and deadlocks are checked by the emulator itself, always.
"""

from cudalab.emulator.sanitizer.faults import (ChangedInput, DivergentBarrier, EndedBlock, InFlight, MissingFence, MissingProxyFence,
                                               Race, Uninitialised)
from cudalab.emulator.sanitizer.watch import Sanitizer

__all__ = ["ChangedInput", "DivergentBarrier", "EndedBlock", "InFlight", "MissingFence", "MissingProxyFence", "Race", "Sanitizer",
           "Uninitialised"]
