"""What a device could do at most, and how near to it a measurement came.

A roof is measured where `results/` holds the study roofline/roofs of the device; where it does not, it is the architecture's own figure:
lanes or tensor cores times clock, memory clock times bus width.  A measured roof is what a kernel that does nothing else reaches, under the
same protocol and at the clock that it had there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cudalab import results
from cudalab.devices import L2_PER_CYCLE, NAMED, Device, per_cycle
from cudalab.errors import LabError
from cudalab.problem import Problem
from cudalab.spec import Op

STUDY = "roofline/roofs"  # whose rows are the measured roofs
SCHEDULERS = 4  # of an SM
SHARED_BYTES = 128  # of shared memory an SM and cycle: 32 banks of 4 bytes (CUDA C++ Programming Guide, "Compute Capabilities")
# the roof of a type of element; others have their own name
COMPUTE = dict(f32="fp32", f64="fp64", fp8_e4m3="fp8", fp8_e5m2="fp8", i8="int8")


@dataclass(frozen=True)
class Roof:
    """A limit of a device: value in `unit` a second, and where it comes from.  per_cycle: the same an SM and cycle."""

    name: str
    value: float
    unit: str
    source: str
    per_cycle: float
    measured: bool = False


def architecture(device: Device) -> dict[str, Roof]:
    """The architecture's own figures by name: fp32, fp64 and the tensor cores' tf32, f16, bf16, fp8, int8 in FLOP/s; dram_read, dram_write,
    dram_copy, l2 (where it is published), shared in bytes/s."""
    cycles = device.sms * device.clock_hz
    rates, source = per_cycle(device)
    clock = f"{device.sms} SMs x {device.clock_hz / 1e6:.0f} MHz; {device.source}"
    found = [Roof(name, rate * cycles, "FLOP", f"{rate} an SM and cycle ({source}) x {clock}", rate) for name, rate in rates.items()]
    found += [Roof(name, device.dram_bytes_per_s, "byte", f"memory clock x bus width; {device.source}", device.dram_bytes_per_s / cycles)
              for name in ("dram_read", "dram_write", "dram_copy")]
    if device.sm in L2_PER_CYCLE:
        rate = L2_PER_CYCLE[device.sm]
        found.append(Roof("l2", rate * device.clock_hz, "byte", f"{rate} a cycle ({source}); {device.source}", rate / device.sms))
    found.append(Roof("shared", SHARED_BYTES * cycles, "byte", f"{SHARED_BYTES} an SM and cycle x {clock}", SHARED_BYTES))
    return {roof.name: roof for roof in found}


def measured(device: Device, protocol: str = "steady", rows: Sequence[Mapping] | None = None) -> dict[str, Roof]:
    """The measured roofs by name, of the protocol or, where that has none, steady; of several ways to do the same the fastest.

    rows: of the study, by default those kept for the device.
    """
    if rows is None:
        rows = next((found for (_, name), found in results.study_rows(STUDY).items() if name == device.name), ())
    found = {}
    for wanted in dict.fromkeys(("steady", protocol)):
        for row in sorted((row for row in rows if row["protocol"] == wanted), key=lambda row: row["rate_per_s"]):
            source = f"measured, {wanted}, by {row['through']}, {row['date'][:10]}"
            found[row["roof"]] = Roof(row["roof"], row["rate_per_s"], row["unit"], source, row["per_cycle"], True)
    return found


def roofs(device: Device, protocol: str = "steady") -> dict[str, Roof]:
    """The device's roofs by name: measured ones where there are, the architecture's for the rest."""
    return architecture(device) | measured(device, protocol)


def compute_roof(problem: Problem, known: Mapping[str, Roof]) -> str:
    """Which roof the arithmetic is under: the fastest units that multiply its type of elements (what only moves bytes stays far below)."""
    name = COMPUTE.get(problem.dtype, problem.dtype)
    return name if name in known else "fp32"


def traffic(op: Op, problem: Problem) -> tuple[int, int]:
    """Compulsory bytes read and written."""
    total = op.bytes(problem)
    written = min(total, sum(t.nbytes for t in op.tensors(problem).values() if t.role == "out"))
    return total - written, written


def dram_time(read: float, written: float, known: Mapping[str, Roof]) -> float:
    """Seconds in which DRAM gives and takes so many bytes at best."""
    return read / known["dram_read"].value + written / known["dram_write"].value


def floor(op: Op, problem: Problem, device: Device, protocol: str = "steady") -> tuple[str, float]:
    """Which roof bounds the op at this size, and the time in seconds below which the device cannot go."""
    return _floor(op, problem, roofs(device, protocol))


def _floor(op: Op, problem: Problem, known: Mapping[str, Roof]) -> tuple[str, float]:
    compute = compute_roof(problem, known)
    times = {compute: op.flops(problem) / known[compute].value, "dram": dram_time(*traffic(op, problem), known)}
    name = max(times, key=times.get)
    return name, times[name]


def share(op: Op, problem: Problem, device: Device, time_s: float, protocol: str = "steady") -> tuple[str, float, bool]:
    """Which roof bounds the op, what share of it a time of `time_s` seconds reaches (1 is the roof), and whether it was measured."""
    return _share(op, problem, roofs(device, protocol), time_s)


def _share(op: Op, problem: Problem, known: Mapping[str, Roof], time_s: float) -> tuple[str, float, bool]:
    name, least = _floor(op, problem, known)
    return name, least / time_s, known["dram_read" if name == "dram" else name].measured


def by_present_roofs(rows: Iterable[Mapping]) -> list[Mapping]:
    """Rows of results with their share of the roofs that are known now, which may be of a later day than they: so that shares of one table
    can be compared.  As they are where the lab no longer has the op or the size, or does not know the device."""
    from cudalab import registry  # the parts import this module
    kept, found = {}, []
    for row in rows:
        op, device, key = registry.ops().get(row["op"]), NAMED.get(row["device"]), (row["device"], row["protocol"])
        if op and device:
            if key not in kept:
                kept[key] = roofs(device, row["protocol"])
            try:
                name, share, measured = _share(op, op.problem(row["shape"], row["dtype"], row["variant"]), kept[key], row["time_s"])
                row = {**row, "roof": name, "roof_share": share, "roof_measured": measured}
            except LabError:
                pass
        found.append(row)
    return found


@dataclass(frozen=True)
class Demand:
    """What counted work asks of one limit of a device: `work` in `unit`, against at most `roof` of them a second; share: how much of the
    busiest limit's time this one is busy, 1 for the busiest itself."""

    name: str
    work: int
    unit: str
    roof: float
    share: float

    @property
    def time_s(self) -> float:
        """Seconds that this limit is busy at least."""
        return self.work / self.roof


def demands(counts: Mapping[str, int], device: Device, dtype: str = "f32") -> list[Demand]:
    """The limits of a device under counted work (emulator.counters.Counters.total), the busiest first.

    dtype: of the elements that tensor cores multiplied.  Beside arithmetic and DRAM: a wavefront of shared memory an SM and cycle, and an
    instruction of a warp a scheduler and cycle, four schedulers an SM (CUDA C++ Programming Guide, "Compute Capabilities").  What wgmma
    reads of shared memory, no warp asks for; it counts as wavefronts of 128 bytes.  Bytes of DRAM are those that must move even with a
    perfect cache.
    """
    known, cycles = roofs(device), device.sms * device.clock_hz
    tensor = COMPUTE.get(dtype, dtype)
    if tensor in ("fp32", "fp64") and counts["flops_tensor"]:
        tensor = "tf32"
    wavefronts = counts["shared_load_wavefronts"] + counts["shared_store_wavefronts"] + counts["async_shared_bytes"] // SHARED_BYTES
    found = [("fp32", counts["flops_f32"], "FLOP", known["fp32"].value),
             ("dram", counts["dram_bytes"], "byte", known["dram_read"].value),
             ("shared", wavefronts, "wavefront", cycles),
             ("issue", counts["warp_instructions"], "instruction", SCHEDULERS * cycles)]
    if counts["flops_f64"] and "fp64" in known:
        found.append(("fp64", counts["flops_f64"], "FLOP", known["fp64"].value))
    if counts["flops_tensor"] and tensor in known:
        found.append((tensor, counts["flops_tensor"], "FLOP", known[tensor].value))
    longest = max(work / roof for _, work, _, roof in found) or 1.0
    return sorted((Demand(name, work, unit, roof, work / roof / longest) for name, work, unit, roof in found), key=lambda d: -d.share)
