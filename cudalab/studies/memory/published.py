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
AI_KERNELS = "markdewing/AI_kernels, latency/data/h100sxm.dat"
LATENCIES = (
    Published("L1", 32.1, "address", "GH200", GPU_BENCHES),
    Published("L2", 280.4, "address", "GH200", GPU_BENCHES),
    Published("DRAM", 687.0, "address", "GH200", GPU_BENCHES),
    Published("L1", 39.6, "index", "H100 SXM", AI_KERNELS),
    Published("L2", 290.9, "index", "H100 SXM", AI_KERNELS),
    Published("DRAM", 694.8, "index", "H100 SXM", AI_KERNELS),
)
