"""Part 3: knees on curves that were recorded elsewhere and on made ones, and what the studies conclude from rows.  No GPU."""

import math

import numpy as np
import pytest

from cudalab import devices, measure, plot, registry, report, sass
from cudalab.build import build
from cudalab.emulator import Emulator
from cudalab.studies.memory import (access_order, bandwidth, bank_conflicts, constant_cache, knees, l2_parts, latency, published,
                                    register_file, spilling)

KB, MB = 2**10, 2**20

# RRZE-HPC/gpu-benches, gpu-latency/gh200.txt and gpu-l2-cache/h200.txt, every few lines: KiB, cycles; KiB, GB/s
GH200 = ((2, 32.0), (4.1, 32.1), (8.5, 32.1), (16.6, 32.2), (32.8, 32.3), (58.6, 32.5), (104, 32.9), (151.8, 33.2), (183.1, 33.5),
         (212.9, 33.7), (221, 74.5), (266.8, 183.2), (321.9, 281.1), (468.1, 280.5), (820.2, 280.3), (1731, 280.5), (3651.9, 280.4),
         (7701.4, 280.4), (13476.2, 280.4), (19568.6, 280.4), (23580.5, 280.3), (28414.8, 287.9), (34240.1, 458.2), (41259.6, 520.6),
         (49718, 481.4), (59910.5, 531.7), (72192.4, 621.9), (86992.1, 624.3), (104825.8, 617.6), (138947, 680.4), (181146.1, 680.4),
         (307885.5, 682.2), (523298.6, 685.4), (889426, 687.4), (1970834.4, 689.0))
H200_L2 = ((2048, 11745), (4096, 10619.2), (6144, 10260), (8192, 10251.9), (12288, 9716), (16896, 9765.2), (21504, 9739.7), (28160, 9780),
           (33792, 9628.8), (40448, 9666), (44032, 9105.3), (48128, 7542.5), (52736, 6467.1), (57856, 5053.8), (63488, 4463.9),
           (69632, 4201.3), (76288, 4017.5), (91648, 3916.1), (120832, 3889.9), (175616, 3888.2), (340480, 3887.7), (1064448, 3888.8))


# Knees

def test_the_levels_of_a_recorded_latency_curve():
    l1, l2, part, dram = knees.plateaus(*zip(*GH200))
    assert (round(l1.cost), l1.last, l1.beyond) == (32, 212.9, 221)
    assert (round(l2.cost), l2.last, l2.beyond) == (280, 28414.8, 34240.1)
    assert 450 < part.cost < 540 and part.last == 59910.5, "past half of L2, while the far half still has room"
    assert 670 < dram.cost < 690 and dram.beyond is None


def test_the_levels_of_a_recorded_bandwidth_curve():
    l2, dram = knees.plateaus([size for size, _ in H200_L2], [1 / rate for _, rate in H200_L2])
    assert 40448 <= l2.last <= 44032 and l2.beyond <= 48128 and 3885 < 1 / dram.cost < 3895


@pytest.mark.parametrize("seed", range(3))
def test_noise_and_a_stray_point_move_no_knee(seed):
    rng = np.random.default_rng(seed)
    sizes = [2 ** (exponent / 4) for exponent in range(80)]
    costs = [(30 if size <= 100 else 300) * rng.uniform(0.97, 1.03) for size in sizes]
    costs[10] = 50
    first, second = knees.plateaus(sizes, costs)
    assert first.last <= 100 < first.beyond and second.first == first.beyond and second.beyond is None


def test_a_slope_is_no_level():
    assert knees.plateaus([2**n for n in range(20)], [1.3**n for n in range(20)]) == []
    assert [p.last for p in knees.plateaus([1, 2, 4, 8], [5, 5, 5, 5])] == [8]
    assert knees.plateaus([1, 2], [5, 5]) == [], "two points are no level"


def test_a_knee_is_closed_in_on():
    def measured(size):
        return 30.0 if size <= 217 * KB else 280.0
    coarse = list(knees.discover(measured, knees.spaced(KB, 16 * MB, 2, 128), 0, 128))
    fine = list(knees.discover(measured, knees.spaced(KB, 16 * MB, 2, 128), 5, 128))
    assert len({size for size, _ in fine}) == len(fine) == len(coarse) + 5 and all(size % 128 == 0 for size, _ in fine)
    widths = [math.log2(p.beyond / p.last) for curve in (coarse, fine) for p in knees.plateaus(*zip(*curve))[:1]]
    assert widths[1] < widths[0] / 4
    level = knees.plateaus(*zip(*fine))[0]
    assert level.last <= 217 * KB < level.beyond


# Latency

def latency_rows(l1=33.0, shared=23.0, dram=1.0):
    common = dict(l2_bytes=60 * MB, l1_bytes=256 * KB)
    walked = [(round(kb * KB), cost * (l1 / 33 if kb < 220 else dram if kb > 60e3 else 1)) for kb, cost in GH200]
    rows = [dict(curve="through L1", hop="address", working_set_bytes=size, latency_cycles=cost, **common) for size, cost in walked]
    single = [("through L1", "index", 32 * KB, l1 + 8), ("past L1", "address", 8 * MB, 281.0), ("past L1", "index", 8 * MB, 290.0),
              ("shared", "address", 16 * KB, shared), ("shared", "index", 32 * KB, shared + 6)]
    return rows + [dict(curve=c, hop=h, working_set_bytes=s, latency_cycles=v, **common) for c, h, s, v in single]


def test_latency_names_levels_and_holds_sizes_against_the_device():
    sentences = latency._conclude(latency_rows())
    text = " ".join(sentences)
    assert [name for name, _ in latency.levels(latency_rows())] == ["L1", "L2", "L2 in part", "DRAM"]
    assert "By the knee L1 holds between 212.9 KiB and 221 KiB: 83% of the 256 KiB" in text
    assert "By the knee L2 holds between 27.75 MiB and 33.44 MiB: 46% of the 60 MiB of L2 that the driver reports" in text
    assert "what one multiprocessor finds alone" in text
    assert len([s for s in sentences if any(p.source in s for p in published.LATENCIES)]) == len(published.LATENCIES)


def test_latency_gives_the_reason_where_it_differs_from_what_is_published():
    def about(level, hop, **changed):
        return next(s for s in latency._conclude(latency_rows(**changed)) if s.startswith(f"{level} by {hop}"))
    assert about("L1", "index").endswith("+3.5%.") and about("L1", "address").endswith("%.")
    assert "the address arithmetic of a hop by index is 8.7 cycles here (39.3 without it)" in about("L1", "index", l1=40.0)
    assert "another memory" in about("DRAM", "index", dram=0.8) and about("DRAM", "index").endswith("%.")


def test_what_lies_between_two_levels_is_said():
    between = [s for s in latency._conclude(latency_rows()) if s.startswith("Between")]
    assert between == [], "each level of that curve begins where the one before ends"
    rows = latency_rows()
    for row in rows:
        if 30 * MB < row["working_set_bytes"] < 65 * MB:
            row["latency_cycles"] = 280 + 400 * math.log2(row["working_set_bytes"] / (30 * MB))
    assert any("Between L2 and DRAM" in s and "does not tell" in s for s in latency._conclude(rows))


@pytest.mark.parametrize("lines", (5, 2**20, 2**21))
def test_a_chase_counts_hops_that_the_warm_up_has_not_just_walked(lines):
    """The warm-up ends where the counting begins; of a chain that no cache holds it has walked other lines."""
    step = registry.resolve_step("chase/1")
    *_, hops, warm, start = step.plan(step.op.problem(dict(L=lines, H=2**16))).launches[-1].args
    assert (start.value + warm.value) % lines == 0
    assert warm.value == lines or start.value >= hops.value


def test_latency_of_a_device_with_fewer_levels():
    """A curve that ends inside L2 has an L1 and an L2, and no DRAM."""
    rows = [row for row in latency_rows() if row["working_set_bytes"] < 20 * MB]
    assert [name for name, _ in latency.levels(rows)] == ["L1", "L2"]
    assert latency._conclude(rows)


def test_reach_says_when_there_is_no_knee():
    rows = [dict(pages=2**n, span_bytes=2**n * latency.PAGE_STRIDE, latency_cycles=280.0 + n) for n in range(2, 14)]
    assert "No knee" in latency._conclude_reach(rows)[0]
    for row in rows[7:]:
        row["latency_cycles"] = 700.0
    assert "280" in latency._conclude_reach(rows)[0] or "285" in latency._conclude_reach(rows)[0]
    assert "in up to 256 pages" in latency._conclude_reach(rows)[0]


# Parts of L2

def test_two_sides_of_l2_are_found():
    rng = np.random.default_rng(0)
    home, side = rng.integers(0, 2, 512), rng.permutation(np.arange(20) % 2)
    measured = np.where(home[None, :] == side[:, None], 260.0, 420.0) + rng.normal(0, 10, (20, 512))
    rows = list(l2_parts.histogram(measured, np.arange(20)))
    assert sum(row["pairs"] for row in rows) == 20 * 512 and all(row["pairs"] == row["side_a_pairs"] + row["side_b_pairs"] for row in rows)
    row = rows[0]
    assert row["side_a_multiprocessors"] == 10 and row["same_side_share"] > 0.99 and row["other_side_share"] < 0.01
    assert abs(row["near_cycles"] - 260) < 3 and abs(row["far_cycles"] - 420) < 3
    assert "two sides, of 10 and 10" in l2_parts._conclude(rows)[2]


def test_one_part_stays_one():
    rows = list(l2_parts.histogram(np.random.default_rng(0).normal(280, 4, (8, 64)), np.arange(8)))
    assert rows[0]["near_cycles"] == rows[0]["far_cycles"] and "one group" in l2_parts._conclude(rows)[1]


# Patterns

@pytest.mark.parametrize("width", bank_conflicts.WIDTHS)
def test_strides_reach_the_worst_that_a_width_allows(width):
    """Lanes that are served together (32, 16 or 8 of them) all want another word of one bank, and places stay inside the table."""
    words = width // 4
    found = bank_conflicts.patterns(width, 64)
    together = 128 // width
    worst = max(len(set(place[:together])) if len(set(place[:together] % 32)) == 1 else 0 for place in found.values())
    assert worst == together
    for place in found.values():
        assert place.max() + 32 * (bank_conflicts.READS - 1) + words <= 2048 and not (place % words).any()


@pytest.mark.parametrize("width", bank_conflicts.WIDTHS)
def test_loads_of_shared_memory_stay_in_their_loop(width, tmp_path):
    """A load that is the same in every round is one that a compiler likes to make once."""
    step = registry.resolve_step("banks/1")
    built = build(step.plan(step.op.problem(dict(T=64, R=2, V=width // 4))), "sm_90a", dumps=tmp_path)
    load = "LDS" if width == 4 else f"LDS.{8 * width}"
    loop = sass.main_loop(sass.functions(built.sass)["banks"], load)
    assert sum(i.opcode == load for i in loop) == bank_conflicts.READS


def test_bank_conflicts_hold_cycles_against_wavefronts():
    rows = [dict(width_bytes=w, places=places, wavefronts=n, ways=n, load_cycles=cycles, bytes_per_cycle=32 * w / cycles)
            for w in bank_conflicts.WIDTHS
            for places, n, cycles in (("all the same", 1, 1.01), ("stride 1", w // 4, w / 4), ("stride 8", 8, 12))]
    text = " ".join(bank_conflicts._conclude(rows))
    assert "agree within 10% in 6 of 9 cases; cycles over wavefronts are 1.00 to 1.50, 1.50 where they differ most" in text
    assert "128 bytes a cycle" in text


# Bandwidth

def bandwidth_rows():
    common = dict(l2_bytes=60 * MB, l1_bytes=256 * KB, multiprocessors=132, peak_bytes_per_s=4.8e12, time_s=1e-3)

    def row(curve, size, rate):
        return dict(curve=curve, working_set_bytes=size, per_multiprocessor_bytes=size // 132, bandwidth_bytes_per_s=rate,
                    bytes_per_cycle=rate / 1.98e9 / 132, **common)
    through = [row("through L1", 132 * 16 * KB * n, 28e12 if n <= 13 else 9e12) for n in (1, 2, 3, 4, 6, 8, 11, 13, 14, 16, 23, 32)]
    return through + [row(curve, size * KB, rate * 1e9) for curve in ("from L2 on", "in bulk") for size, rate in H200_L2]


def test_bandwidth_names_knees_and_levels():
    text = " ".join(bandwidth._conclude(bandwidth_rows()))
    assert "The knee of L1 lies between 208 KiB and 224 KiB, 81% of the 256 KiB" in text
    assert "L2 in bulk, sets of 4 to 40 MB: 9.629 TB/s (33 MiB) to 10.62 TB/s (4 MiB)" in text
    assert "The knee of L2 lies between 43 MiB and 47 MiB" in text and "DRAM: 3.889 TB/s" in text
    assert "More than memory can give" not in text
    more = " ".join(bandwidth._conclude([row | dict(peak_bytes_per_s=3.8e12) for row in bandwidth_rows()]))
    assert "102.3% of memory clock times bus width. More than memory can give: part of it still comes from the 60 MiB of L2." in more


def test_a_curve_without_a_knee_says_why():
    flat = [row for row in bandwidth_rows() if row["curve"] == "through L1"][:6]
    assert "flat to its end" in " ".join(bandwidth._conclude(flat))
    for n, row in enumerate(flat):
        row["bandwidth_bytes_per_s"] *= 1.5**n
    assert "no part of the curve is flat" in " ".join(bandwidth._conclude(flat))


def test_every_pattern_of_access_reads_each_column_once():
    for name, (pattern, elements) in access_order.patterns(512).items():
        assert len(np.unique(pattern)) == 512 and 0 <= pattern.min() and pattern.max() < elements, name


def test_every_figure_that_is_published_has_its_source():
    for one in published.LATENCIES:
        assert one.cycles > 0 and one.hop in ("address", "index") and one.source and one.device


# The path of a device, played: kernels run in the emulator, and clocks say what a formula says

class Played:
    """A GPU whose kernels run in the emulator.  What kernels count in cycles is not read from a clock, which would count steps."""

    name, target, device = "gpu", "sm_90a", devices.NAMED["NVIDIA H200"]

    def run(self, plan, inputs):
        outputs = Emulator(self.target).run(plan, inputs)
        size = sum(t.nbytes for t in plan.tensors.values() if t.name == "chain") or 4096
        if "sm" in outputs:
            outputs["cycles"][:] = 8 * np.where((np.arange(outputs["cycles"].size) % 2).reshape(outputs["cycles"].shape), 260, 420)
            outputs["sm"][:] = np.arange(len(outputs["sm"]))
        elif "cycles" in outputs:
            outputs["cycles"][:] = (30 if size <= 5000 else 280) * plan.problem.get("H", 1000)
        return outputs

    def free_bytes(self):
        return 10 * latency.PAGE_STRIDE


def played_time(gpu, plan, *, inputs=None, cold=True, batches=16, **more):
    p = plan.problem
    moved = plan.step.op.bytes(p) * p.get("P", 1)
    return measure.Timing(moved / (10e12 if moved < 2**24 else 4.5e12), 0.0, 1980.0, {}, None, None, None)


SMALL = {latency: dict(LARGEST=2**13, HOPS=20, COARSE=2, FINE=2, SHARED_KB=(1, 2), IN_L1=2048, IN_L2=4096, PAGE_STRIDE=4096 + 128),
         bank_conflicts: dict(THREADS=64, ROUNDS=2), constant_cache: dict(BANK=512, HOPS=20, FINE=0), l2_parts: dict(LINES=32),
         spilling: dict(PROMISED=(4, 16)), register_file: dict(TILES=((4, 8),)), access_order: dict(STRIDES=(1, 8, 16, 32)),
         bandwidth: dict(FINE=2)}


@pytest.mark.parametrize("study", [s for s in registry.studies().values() if s.part == "memory"], ids=lambda study: study.name)
def test_a_study_on_a_played_device(study, monkeypatch, tmp_path):
    """Rows have the columns of a device, and sentences and a picture come of them."""
    for module, constants in SMALL.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(measure, "time_plan", played_time)
    rows = [row | dict(device=Played.device.name) for row in study.measure(Played(), lambda done, total, what: None)]
    for name in study.columns:
        if name not in ("loads", "sectors_per_load", "dram_bytes", "flops", "warp_instructions"):  # what only the emulator counts
            assert any(row.get(name) is not None for row in rows), name
    assert study.conclusions(rows) and report.studied(study, rows)
    assert plot.draw_study(study, rows, tmp_path / "study.png").stat().st_size > 5000
