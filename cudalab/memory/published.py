"""Latencies that others have published for Hopper, in cycles of the multiprocessor, to hold ours against.

hop: what one hop of their chain is, an "address" that is loaded and used as it is, or an "index" from which the address must be computed:
that takes instructions of its own, which their figure holds.
"""

from dataclasses import dataclass

WITHIN = 0.10  # that far from a published figure ours counts as the same


@dataclass(frozen=True)
class Published:
    """level: as the study names it.  cycles: of one hop.  source: where it stands (github.com/..., arxiv.org/abs/...)."""

    level: str
    cycles: float
    hop: str
    device: str
    source: str


GPU_BENCHES = "RRZE-HPC/gpu-benches, gpu-latency/gh200.txt"
HOPPER_2024 = "arXiv 2402.13499"
LATENCIES = (
    Published("L1", 32.1, "address", "GH200", GPU_BENCHES),
    Published("L2", 280.4, "address", "GH200", GPU_BENCHES),
    Published("DRAM", 687.0, "address", "GH200", GPU_BENCHES),
    Published("L1", 40.7, "index", "H100 PCIe", HOPPER_2024),
    Published("shared", 29.0, "index", "H100 PCIe", HOPPER_2024),
    Published("L2", 263.0, "index", "H100 PCIe", HOPPER_2024),
    Published("DRAM", 478.8, "index", "H100 PCIe", HOPPER_2024),
)
