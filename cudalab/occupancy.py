"""How many blocks of a kernel one SM holds, and what stops it from holding more."""

from dataclasses import dataclass

from cudalab.errors import BadLaunch

WARP = 32
REGISTERS = 65536  # of an SM, and the most that one block may take
REGISTERS_PER_THREAD = 255
PARTITIONS = 4  # of an SM; a warp's registers come from one of them
REGISTER_GRANULARITY = 256  # registers, per warp
SMEM_GRANULARITY = 128  # bytes, per block
SMEM_RESERVED = 1024  # bytes that the system takes from every block on 8.0 and later


@dataclass(frozen=True)
class Limits:
    """What one SM holds at most.  smem: bytes of an SM that blocks share; a block may take all but the reserved 1 KB."""

    warps: int
    blocks: int
    smem: int

    @property
    def smem_per_block(self) -> int:
        return self.smem - SMEM_RESERVED


# CUDA C++ Programming Guide, "Compute Capabilities", technical specifications; blocks and granularities as in cuda_occupancy.h 13.0
LIMITS = {
    80: Limits(64, 32, 164 * 1024),
    86: Limits(48, 16, 100 * 1024),
    87: Limits(48, 16, 164 * 1024),
    89: Limits(48, 24, 100 * 1024),
    90: Limits(64, 32, 228 * 1024),
    100: Limits(64, 32, 228 * 1024),
    103: Limits(64, 32, 228 * 1024),
    120: Limits(48, 24, 100 * 1024),
    121: Limits(48, 24, 100 * 1024),
}


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of one SM; fraction of the warps it could hold; the resources that run out first.

    limits: names out of registers, shared memory, warps, blocks; several if they allow the same number of blocks.
    blocks is 0 if not even one fits.
    """

    blocks: int
    warps: int
    fraction: float
    limits: tuple[str, ...]


def limits(sm: int) -> Limits:
    """The limits of a compute capability such as 90.  Raises BadLaunch for one whose figures the lab does not know."""
    if sm not in LIMITS:
        raise BadLaunch(f"the limits of compute capability {sm / 10} are not known here; known: {', '.join(str(s / 10) for s in LIMITS)}")
    return LIMITS[sm]


def occupancy(sm: int, threads: int, registers: int, smem: int) -> Occupancy:
    """Occupancy of a kernel: sm such as 90, threads of a block, registers of a thread, smem of a block in bytes (static + dynamic).

    The calculation of NVIDIA's cuda_occupancy.h, with the shared memory carve-out as large as it can be.
    """
    limit = limits(sm)
    warps = -(-threads // WARP)
    registers_of_warp = _round_up(registers * WARP, REGISTER_GRANULARITY)
    allowed = {
        "registers": _blocks_by_registers(registers, registers_of_warp, warps),
        "shared memory": limit.smem // _round_up(smem + SMEM_RESERVED, SMEM_GRANULARITY),
        "warps": limit.warps // warps,
        "blocks": limit.blocks,
    }
    blocks = min(allowed.values())
    reasons = tuple(name for name, most in allowed.items() if most == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / limit.warps, reasons)


def _blocks_by_registers(registers: int, registers_of_warp: int, warps: int) -> int:
    # The hardware tests one block as if every partition held as many of its warps as the fullest one.
    if registers > REGISTERS_PER_THREAD or registers_of_warp * _round_up(warps, PARTITIONS) > REGISTERS:
        return 0
    if not registers_of_warp:
        return REGISTERS
    return REGISTERS // PARTITIONS // registers_of_warp * PARTITIONS // warps


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
