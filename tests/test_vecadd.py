"""Part 2: what the ladder promises of its machine code, what the studies count, and what they conclude from rows.  No GPU."""

import re

import pytest

from cudalab import registry, report, sass
from cudalab import study as studying
from cudalab.build import build
from cudalab.devices import NAMED
from cudalab.emulator import Emulator
from cudalab.studies import vecadd as studies
from cudalab.studies import vecadd_roofs as roofs

H200 = NAMED["NVIDIA H200"]
BENCH = registry.ops()["vecadd"].shapes["bench"][0]


def rows_of(name, device=H200):
    target = "sm_90a" if device.sm == 90 else f"sm_{device.sm}"
    return list(studying.run(registry.studies()[name], Emulator(target, device=device)))


def opcodes(step, **config):
    step = registry.resolve_step(step)
    built = build(step.plan(BENCH, step.config(BENCH, config)), "sm_90a")
    (listing,) = sass.functions(built.sass).values()
    return [instruction.opcode for instruction in listing]


# The ladder

@pytest.mark.parametrize("step, loads", [("vecadd/2", 1), ("vecadd/3", 1), ("vecadd/4", 4), ("vecadd/4", 8), ("vecadd/5", 2),
                                         ("vecadd/5", 4), ("vecadd/6", 1)])
def test_all_loads_of_a_thread_are_made_before_the_first_sum(step, loads):
    """Two arrays, LOADS each: the compiler has neither put them off nor made them one by one."""
    codes = opcodes(step, **({"LOADS": loads} if loads > 1 else {}))
    before = codes[:next(i for i, code in enumerate(codes) if code.startswith("FADD"))]
    assert sum(code.startswith("LDG") for code in before) == 2 * loads


@pytest.mark.parametrize("step", ["vecadd/5", "vecadd/6"])
def test_vectors_move_sixteen_bytes(step):
    codes = [code for code in opcodes(step) if code.startswith(("LDG", "STG"))]
    assert sum("128" in code for code in codes) == len(codes) - 3, "but for the floats behind the last whole vector"


@pytest.mark.parametrize("first, written", [(1, r"STG\.E\.EF\b.*128"), (0, r"STG\.E\.128")])
def test_sums_leave_l2_first_if_asked(first, written):
    assert any(re.match(written, code) for code in opcodes("vecadd/6", EVICT_FIRST=first))


def test_the_grid_is_as_asked_or_as_large_as_the_work():
    step, problem = registry.resolve_step("vecadd/5"), registry.ops()["vecadd"].problem(dict(N=4 * 256 * 10))
    for grid, blocks in ((0, 10), (7, 7), (1000, 10)):
        config = step.config(problem, dict(GRID=grid, LOADS=1, THREADS=256))
        assert step.plan(problem, config).launches[0].grid[0] == blocks
    for name in ("vecadd/5", "vecadd/6"):
        step = registry.resolve_step(name)
        assert step.plan(step.op.problem(dict(N=1))).launches[0].grid[0] == 1, "one float alone is no vector"


@pytest.mark.parametrize("number", (3, 4, 5))
def test_blocks_that_stay_run_at_once(number):
    """On an H200: as many as its multiprocessors hold, so that no block waits for the end of another."""
    fits, _ = studies.fit(studies.plan_of(f"vecadd/{number}", dict(BENCH)), Emulator("sm_90a", device=H200))
    plan = studies.plan_of(f"vecadd/{number}", dict(BENCH))
    assert plan.launches[0].grid[0] == fits.blocks * H200.sms


# What the studies count

def test_occupancy_is_limited_as_asked():
    rows = rows_of("vecadd/occupancy")
    for row in rows:
        assert row["in_flight_bytes"] == row["resident_warps"] * 32 * 8 * row["loads"]
    for loads in studies.LOADS:
        by_registers, by_shared = ([row for row in rows if row["loads"] == loads and row["limiter"] == limiter]
                                   for limiter in ("registers", "shared memory"))
        assert [row["resident_blocks"] for row in by_shared] == list(studies.RESIDENT)
        assert [row["resident_blocks"] for row in by_registers] == [8, 6, 5, 4, 3, 2, 1]
        assert len({row["registers"] for row in by_shared}) == 1 and by_registers[0]["registers"] == by_shared[0]["registers"]


def test_a_smaller_device_holds_fewer():
    rows = rows_of("vecadd/block_size", NAMED["NVIDIA GeForce RTX 4060"])
    held = {row["threads"]: row for row in rows}
    assert held[1024]["resident_blocks"] == 1 and held[1024]["occupancy_share"] == pytest.approx(2 / 3)
    assert held[32]["resident_blocks"] == 24 and held[32]["limits"] == "blocks"
    assert all(row["sectors_per_request"] == pytest.approx(4) for row in rows)


def test_a_warp_runs_every_path_that_a_lane_takes():
    rows = {(row["branch_by"], row["paths"]): row for row in rows_of("vecadd/divergence")}
    for count in studies.PATHS:
        lane, warp = rows["lane", count], rows["warp", count]
        assert warp["divergent_branches"] == 0 and warp["threads_per_warp"] == 32
        assert (lane["divergent_branches"] > 0) == (count > 1)
        assert 0.8 * count <= lane["times_one_path"] <= 1.2 * count and warp["times_one_path"] < 1.3


def test_a_wave_too_many_costs_a_whole_wave():
    rows = rows_of("vecadd/waves")
    assert next(row for row in rows if row["grid"] == 264)["expected_share"] == 1
    assert next(row for row in rows if row["grid"] == 265)["expected_share"] == pytest.approx(265 / 528)
    said = studies.conclude_waves(rows)
    assert len(said) == 3 and said[0].startswith("One block more than 1 wave: 2 waves of time, 50%")


# What they conclude

def timed(name, time_of, nbytes=12 * 2**27):
    """A study's rows with times: what a device would have given."""
    found = []
    for row in rows_of(name):
        time_s = time_of(row)
        found.append(row | dict(device=H200.name, time_s=time_s, bandwidth_bytes_per_s=nbytes / time_s,
                                blocks_per_s=row.get("grid", 0) / time_s))
    return found


def saturating(row):
    return 12 * 2**27 / (4.4e12 * min(1, row["in_flight_bytes"] / 40_000))


def test_enough_occupancy_is_found_for_each_number_of_loads():
    rows = [row | dict(driver_blocks=row["resident_blocks"]) for row in timed("vecadd/occupancy", saturating)]
    said = studies.conclude_occupancy(rows)
    assert said[0] == "With 1 load an array and thread, no occupancy reaches 95 % of the best bandwidth (4.4 TB/s)."
    assert said[1] == "With 4 loads an array and thread, an occupancy of 62% is enough for 95 % of the best bandwidth (4.4 TB/s)."
    assert said[2] == "The calculator and the driver agree on the blocks of a multiprocessor in all 28 configurations."
    rows[5]["driver_blocks"] += 1
    said = studies.conclude_occupancy(rows)[2]
    assert said.startswith("The calculator and the driver disagree in 1 of 28 configurations, the first: 2 against 3")


def test_sizes_are_ranked_by_what_they_reach():
    said = studies.conclude_block_size(timed("vecadd/block_size", lambda row: 1e-3 if row["threads"] == 32 else 4e-4))
    assert "by threads: 32 (50%, limit: blocks), " in said[0]
    assert "The fastest is 64 threads" in said[1] and "one warp a block reaches 1.611 TB/s" in said[1]
    said = studies.conclude_grid_size(timed("vecadd/grid_size", lambda row: 4e-4 if row["grid"] >= 264 else 1e-3))
    assert said == ["264 blocks, 2 a multiprocessor, come within 2 % of the best, 4.027 TB/s.",
                    "As many blocks as run at once reach 4.027 TB/s; a block a tile, 131072 of them, 4.027 TB/s."]


def test_waves_and_paths_and_launches_say_what_was_measured():
    said = studies.conclude_waves(timed("vecadd/waves", lambda row: 1e-5 * row["full_waves"]))
    assert said[0] == "One block more than 1 wave: 2.00 times the time for 0.38% more work; a whole wave more would be 2.00."
    rows = [row | dict(times_one_path=row["paths"]) for row in timed("vecadd/divergence", lambda row: 1e-5)]
    assert studies.conclude_divergence(rows) == ["32 paths by lane take 32 times the time of one; by warp, 32 times."]
    rows = [row | dict(queued_s=1e-6, stream_s=2.5e-6 if row["way"] == "stream" else 1.3e-6, host_s=2e-6, alone_s=9e-6)
            for row in rows_of("vecadd/launch")]
    assert "costs 2.500 µs at the host's pace" in studies.conclude_launch(rows)[0] and "1.300 µs" in studies.conclude_launch(rows)[0]
    assert report.studied(registry.studies()["vecadd/launch"], rows)


def test_the_ladder_is_held_against_two_reads_and_a_write():
    speed = dict(read=4.5e12, write=4.5e12 / 2, add=3.3e12)
    assert roofs.weighted(4.5e12, 4.5e12) == pytest.approx(4.5e12) and roofs.weighted(4.5e12, 2.25e12) == pytest.approx(3.375e12)
    rows = [row | dict(time_s=1e-3, bandwidth_bytes_per_s=speed[row["what"]], roof_share=3.3 / 3.375) for row in rows_of("vecadd/roofs")]
    assert all(row["read_sectors"] * 4 == 4096 and row["written_sectors"] * 8 == 4096 for row in rows if row["what"] == "add")
    said = roofs.conclude(rows)
    assert "two reads and a write, one after the other, would be 3.375 TB/s" in said[0]
    assert said[1] == "vecadd/06_one_pass reaches 3.3 TB/s, 97.8% of that."
