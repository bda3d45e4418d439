"""Devices as plain data: what the roofline and the static report need to know of one, measured on it or taken from its data sheet."""

import difflib
import re
from dataclasses import dataclass

from cudalab.errors import UnknownName


@dataclass(frozen=True)
class Device:
    """One GPU.  name: as the driver calls it.  sm: compute capability times ten (90).  clock_hz: highest SM clock.

    dram_bytes_per_s: theoretical, memory clock times bus width.  driver: newest CUDA version the driver supports ("13.0"),
    None where the figures come from a data sheet; source: where they come from.
    """

    name: str
    sm: int
    sms: int
    clock_hz: float
    l2_bytes: int
    memory_bytes: int
    dram_bytes_per_s: float
    driver: str | None = None
    source: str = "the driver"


def _named(name, sm, sms, clock_mhz, l2_mb, memory_gb, dram_gb_per_s, source) -> Device:
    return Device(name, sm, sms, clock_mhz * 1e6, int(l2_mb * 2**20), memory_gb * 2**30, dram_gb_per_s * 1e9, None, source)


# SMs, boost clock and L2 from the comparison tables of the architecture whitepapers, memory size and bandwidth from the data sheets,
# both by NVIDIA, where not said otherwise.  A clock given by a FLOP/s figure is that figure over 2 x 128 lanes x SMs.
NAMED: dict[str, Device] = {d.name: d for d in (
    _named("NVIDIA A100-SXM4-40GB", 80, 108, 1410, 40, 40, 1555, "NVIDIA A100 Tensor Core GPU Architecture whitepaper"),
    _named("NVIDIA A100-SXM4-80GB", 80, 108, 1410, 40, 80, 2039, "NVIDIA A100 80GB data sheet; A100 whitepaper for the rest"),
    _named("NVIDIA GeForce RTX 3090", 86, 82, 1695, 6, 24, 936, "NVIDIA Ampere GA102 GPU Architecture whitepaper"),
    _named("NVIDIA RTX A6000", 86, 84, 1800, 6, 48, 768, "NVIDIA RTX A6000 data sheet; GA102 whitepaper"),
    _named("NVIDIA GeForce RTX 4060", 89, 24, 2460, 24, 8, 272,
           "NVIDIA GeForce RTX 4060 specifications (3072 CUDA cores, 128 bit at 17 Gbit/s)"),
    _named("NVIDIA GeForce RTX 4090", 89, 128, 2520, 72, 24, 1008, "NVIDIA Ada GPU Architecture whitepaper"),
    _named("NVIDIA L4", 89, 58, 2040, 48, 24, 300, "NVIDIA L4 data sheet (30.3 TFLOP/s FP32 gives the clock)"),
    _named("NVIDIA L40S", 89, 142, 2520, 96, 48, 864, "NVIDIA L40S data sheet; Ada whitepaper for the full AD102"),
    _named("NVIDIA H100 PCIe", 90, 114, 1755, 50, 80, 2039, "NVIDIA H100 Tensor Core GPU Architecture whitepaper"),
    _named("NVIDIA H100 80GB HBM3", 90, 132, 1980, 50, 80, 3352,
           "H100 whitepaper; NVIDIA H100 data sheet (66.9 TFLOP/s FP32 gives the clock)"),
    _named("NVIDIA H200", 90, 132, 1980, 60, 141, 4800,
           "NVIDIA H200 data sheet (66.9 TFLOP/s FP32 gives the clock); L2 as its driver reports it"),
    _named("NVIDIA GeForce RTX 5090", 120, 170, 2407, 96, 32, 1792, "NVIDIA RTX Blackwell GPU Architecture whitepaper"),
)}


# Operations that an SM completes in a cycle, by compute capability times ten; a multiply-add counts as two.  fp32, fp64: on its lanes.  The
# rest: on its tensor cores, dense, with sums in FP32 or INT32.  From the peak figures of the sources over SMs and boost clock.
_PER_CYCLE = {
    80: (dict(fp32=128, fp64=64, tf32=1024, f16=2048, bf16=2048, int8=4096), "NVIDIA A100 Tensor Core GPU Architecture whitepaper"),
    86: (dict(fp32=256, fp64=4, tf32=512, f16=1024, bf16=1024, int8=2048), "NVIDIA Ampere GA102 GPU Architecture whitepaper"),
    89: (dict(fp32=256, fp64=4, tf32=512, f16=1024, bf16=1024, fp8=2048, int8=2048), "NVIDIA Ada GPU Architecture whitepaper"),
    90: (dict(fp32=256, fp64=128, tf32=2048, f16=4096, bf16=4096, fp8=8192, int8=8192),
         "NVIDIA H100 Tensor Core GPU Architecture whitepaper"),
    100: (dict(fp32=256, fp64=128, tf32=4096, f16=8192, bf16=8192, fp8=16384, int8=16384), "NVIDIA HGX B200 data sheet"),
    120: (dict(fp32=256, fp64=4, tf32=512, f16=1024, bf16=1024, fp8=2048, int8=2048), "NVIDIA RTX Blackwell GPU Architecture whitepaper"),
}
_HALVED = ("tf32", "f16", "bf16", "fp8")  # with FP32 sums on a GeForce: the tables of the same whitepapers
L2_PER_CYCLE = {80: 5120}  # bytes of the whole device: NVIDIA A100 whitepaper; not published for later ones


def per_cycle(device: Device) -> tuple[dict[str, int], str]:
    """Operations an SM and cycle by the name of their roof, and the source; FP32 alone for an architecture that is not in the table."""
    if device.sm not in _PER_CYCLE:
        return dict(fp32=256), "CUDA C++ Programming Guide, throughput of native arithmetic instructions"
    rates, source = _PER_CYCLE[device.sm]
    halved = _HALVED if "GeForce" in device.name and device.sm != 80 else ()
    return {name: rate // (1 + (name in halved)) for name, rate in rates.items()}, source


def find_device(text: str) -> Device:
    """The named device that a loose name means: "4060", "h200", "RTX 4090".  Raises UnknownName with the nearest, or the candidates."""
    full = {_plain(prefix + text) for prefix in ("", "NVIDIA ", "NVIDIA GeForce ")}
    exact = [d for name, d in NAMED.items() if _plain(name) in full]
    found = exact or [d for name, d in NAMED.items() if _plain(text) and _plain(text) in _plain(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownName(f"'{text}' fits several devices: {', '.join(d.name for d in found)}")
    plain = {_plain(name).replace("nvidia", "").replace("geforce", ""): name for name in NAMED}
    near = difflib.get_close_matches(_plain(text), plain, n=3, cutoff=0.4)
    known = f"nearest: {', '.join(plain[n] for n in near)}" if near else f"there are {', '.join(NAMED)}"
    raise UnknownName(f"no device is called '{text}'; {known}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
