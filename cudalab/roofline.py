"""What a device could do at most, and how near to it a measurement came.

The roofs here are architectural: lanes times clock, memory clock times bus width.  Nothing reaches them quite; a share is a share of that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cudalab.devices import Device
from cudalab.problem import Problem
from cudalab.spec import Op

SCHEDULERS = 4  # of an SM


@dataclass(frozen=True)
class Roof:
    """A limit of a device: value in `unit` a second, and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


def fp32_lanes(sm: int) -> int:
    """FP32 multiply-adds that one SM starts in a cycle (CUDA C++ Programming Guide, throughput of native arithmetic instructions)."""
    return 64 if sm in (60, 70, 72, 75, 80) else 128


def roofs(device: Device) -> dict[str, Roof]:
    """The device's roofs by name: "fp32" in FLOP/s, "dram" in bytes/s."""
    lanes = fp32_lanes(device.sm)
    return {roof.name: roof for roof in (
        Roof("fp32", 2.0 * lanes * device.sms * device.clock_hz, "FLOP",
             f"{device.sms} SMs x {lanes} lanes x 2 x {device.clock_hz / 1e6:.0f} MHz; {device.source}"),
        Roof("dram", device.dram_bytes_per_s, "byte", f"memory clock x bus width; {device.source}"))}


def floor(op: Op, problem: Problem, device: Device) -> tuple[str, float]:
    """Which roof bounds the op at this size, and the time in seconds below which the device cannot go."""
    limits = roofs(device)
    times = {"fp32": op.flops(problem) / limits["fp32"].value, "dram": op.bytes(problem) / limits["dram"].value}
    name = max(times, key=times.get)
    return name, times[name]


def share(op: Op, problem: Problem, device: Device, time_s: float) -> tuple[str, float]:
    """Which roof bounds the op, and what share of it a time of `time_s` seconds reaches (1 is the roof)."""
    name, least = floor(op, problem, device)
    return name, least / time_s


@dataclass(frozen=True)
class Demand:
    """What counted work asks of one limit of a device: `work` in `unit`, against at most `roof` of them a second; share: how much of the
    busiest limit's time this one is busy, 1 for the busiest itself."""

    name: str
    work: int
    unit: str
    roof: float
    share: float


def demands(counts: Mapping[str, int], device: Device) -> list[Demand]:
    """The limits of a device under counted work (emulator.counters.Counters.total), the busiest first.

    Beside FP32 and DRAM: a wavefront of shared memory an SM and cycle, and an instruction of a warp a scheduler and cycle, four schedulers
    an SM (CUDA C++ Programming Guide, "Compute Capabilities").  Bytes of DRAM are those that must move even with a perfect cache.
    """
    limits, cycles = roofs(device), device.sms * device.clock_hz
    found = [("fp32", counts["flops_f32"], "FLOP", limits["fp32"].value),
             ("dram", counts["dram_bytes"], "byte", limits["dram"].value),
             ("shared", counts["shared_load_wavefronts"] + counts["shared_store_wavefronts"], "wavefront", cycles),
             ("issue", counts["warp_instructions"], "instruction", SCHEDULERS * cycles)]
    longest = max(work / roof for _, work, _, roof in found) or 1.0
    return sorted((Demand(name, work, unit, roof, work / roof / longest) for name, work, unit, roof in found), key=lambda d: -d.share)
