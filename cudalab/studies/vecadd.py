"""Studies of part 2: what a launch is.  Sizes of blocks, occupancy, waves, paths of a warp, the cost of a launch."""

import math

from cudalab.spec import Plan
from cudalab.study import Study

SWEPT, COUNTED = 2**27, 4096  # elements: on a device, of which three arrays are far beyond L2; on the emulator
BATCHES = 8
COLOURS = ("#2f6ca3", "#b5532a", "#4f7d4f", "#7a5aa0")


def plan_of(step: str, sizes: dict, **config: int) -> Plan:
    from cudalab import registry  # the parts, which list these studies, are made before it
    step = registry.resolve_step(step)
    problem = step.op.problem(sizes)
    return step.plan(problem, step.config(problem, config))


def fit(plan: Plan, place):
    """What one multiprocessor holds of a plan's first launch (occupancy.Occupancy), and the registers of a thread."""
    from cudalab.build import build
    from cudalab.occupancy import occupancy
    launch = plan.launches[0]
    kernel = build(plan, place.target).kernels[launch.entry]
    smem = kernel.static_smem + launch.smem
    return occupancy(place.device.sm, math.prod(launch.block), kernel.registers, smem), kernel.registers


def moved(place, plan: Plan, batches: int = BATCHES, **more) -> dict:
    """Time and bandwidth of a plan on a GPU; nothing of the emulator."""
    if place.name == "emulator":
        return {}
    from cudalab.measure import time_plan
    timing, nbytes = time_plan(place, plan, batches=batches, **more), plan.step.op.bytes(plan.problem)
    return dict(time_s=timing.time_s, time_iqr_s=timing.time_iqr_s, bandwidth_bytes_per_s=nbytes / timing.time_s,
                sm_clock_mhz=timing.sm_clock_mhz)


def near(rows, name: str, share: float = 0.98) -> list:
    """The rows that come within `share` of the best of a field."""
    best = max(row[name] for row in rows)
    return [row for row in rows if row[name] >= share * best]


def text(value: float) -> str:
    from cudalab.report import scaled_text
    return scaled_text(value, "B/s")


def is_timed(rows) -> bool:
    return all(row.get("time_s") is not None for row in rows)


def from_zero(axes, heights) -> None:
    """The y axis from zero to a little above the highest point."""
    axes.set_ylim(0, 1.08 * max(heights))


def log2_ticks(axes, values) -> None:
    """A logarithmic x axis with the values as a person writes them."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


# -- block size

BLOCK_SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def block_size(place, progress):
    emulated = place.name == "emulator"
    for number, threads in enumerate(BLOCK_SIZES):
        progress(number, len(BLOCK_SIZES), "vecadd/block_size")
        plan = plan_of("vecadd/2", dict(N=COUNTED if emulated else SWEPT), THREADS=threads)
        held, registers = fit(plan, place)
        row = dict(threads=threads, warps=threads // 32, resident_blocks=held.blocks, resident_warps=held.warps,
                   occupancy_share=held.fraction, limits=", ".join(held.limits), **moved(place, plan))
        yield row | (counted_row(place, plan) if emulated else {})


def counted_row(place, plan: Plan) -> dict:
    from cudalab.counted import count_plan
    total = count_plan(plan, place)
    requests = total["global_load_requests"] + total["global_store_requests"]
    return dict(warp_instructions=total["warp_instructions"], requests=requests,
                sectors_per_request=(total["global_load_sectors"] + total["global_store_sectors"]) / requests)


def plot_block_size(axes, rows):
    field = "bandwidth_bytes_per_s" if is_timed(rows) else "occupancy_share"
    scale = 1e12 if is_timed(rows) else 0.01
    heights = [row[field] / scale for row in rows]
    axes.plot([row["threads"] for row in rows], heights, marker="o", color=COLOURS[0])
    log2_ticks(axes, [row["threads"] for row in rows])
    axes.set_xlabel("threads of a block")
    axes.set_ylabel("TB/s, two reads and a write" if is_timed(rows) else "occupancy, % of the warps")
    from_zero(axes, heights)


def conclude_block_size(rows):
    half = [row for row in rows if row["occupancy_share"] < 1]
    said = [f"Blocks that do not fill a multiprocessor's warps, by threads: {', '.join(_why(row) for row in half)}."] if half else []
    if is_timed(rows):
        good = near(rows, "bandwidth_bytes_per_s")
        best = max(rows, key=lambda row: row["bandwidth_bytes_per_s"])
        said.append(f"The fastest is {best['threads']} threads at {text(best['bandwidth_bytes_per_s'])}; within 2 % of it are "
                    f"{', '.join(str(row['threads']) for row in good)}; one warp a block reaches {text(rows[0]['bandwidth_bytes_per_s'])}.")
    return said


def _why(row) -> str:
    return f"{row['threads']} ({row['occupancy_share']:.0%}, limit: {row['limits']})"


# -- occupancy

HELD_REGISTERS = (0, 32, 40, 48, 64, 96, 128)
RESIDENT = (8, 6, 5, 4, 3, 2, 1)  # blocks that shared memory shall leave room for
LOADS = (1, 4)


def occupancy(place, progress):
    """Registers or shared memory as what limits the warps, for one load a thread and array and for several."""
    from cudalab.occupancy import SMEM_GRANULARITY, SMEM_RESERVED, limits
    smem = limits(place.device.sm).smem
    # the most that leaves room for so many blocks; none for as many as the warps allow
    shared = [smem // blocks // SMEM_GRANULARITY * SMEM_GRANULARITY - SMEM_RESERVED for blocks in RESIDENT]
    sweep = [("registers", dict(LOADS=loads, REGS=held)) for loads in LOADS for held in HELD_REGISTERS]
    sweep += [("shared memory", dict(LOADS=loads, SMEM=most)) for loads in LOADS for most in shared]
    for number, (limiter, config) in enumerate(sweep):
        progress(number, len(sweep), "vecadd/occupancy")
        plan = plan_of("residency/1", dict(N=COUNTED if place.name == "emulator" else SWEPT), **config)
        held, registers = fit(plan, place)
        under_way = held.warps * 32 * config["LOADS"] * 8  # two arrays of four bytes
        row = dict(limiter=limiter, loads=config["LOADS"], registers=registers, shared_bytes=config.get("SMEM", 0),
                   resident_blocks=held.blocks, resident_warps=held.warps, occupancy_share=held.fraction, in_flight_bytes=under_way)
        if place.name != "emulator":
            row["driver_blocks"] = place.resident_blocks(plan)
        yield row | moved(place, plan)


def plot_occupancy(axes, rows):
    field, scale = ("bandwidth_bytes_per_s", 1e12) if is_timed(rows) else ("in_flight_bytes", 1024)
    for limiter, loads in dict.fromkeys((row["limiter"], row["loads"]) for row in rows):
        mine = sorted((row["occupancy_share"], row[field]) for row in rows if (row["limiter"], row["loads"]) == (limiter, loads))
        look = dict(marker="o", markersize=5) if limiter == "registers" else dict(marker="s", markersize=9, fillstyle="none", linestyle=":")
        axes.plot([100 * x for x, _ in mine], [y / scale for _, y in mine], color=COLOURS[LOADS.index(loads)],
                  label=f"limited by {limiter}, {loads} load{'s' * (loads > 1)} an array and thread", **look)
    axes.set_xlabel("occupancy, % of the warps of a multiprocessor")
    axes.set_ylabel("TB/s, two reads and a write" if is_timed(rows) else "KiB a multiprocessor may have under way")
    from_zero(axes, [row[field] / scale for row in rows])
    axes.legend(frameon=False, loc="lower right" if is_timed(rows) else "upper left", fontsize=8)


def conclude_occupancy(rows):
    said = []
    if is_timed(rows):
        best = max(row["bandwidth_bytes_per_s"] for row in rows)
        for loads in LOADS:
            enough = [row for row in rows if row["loads"] == loads and row["bandwidth_bytes_per_s"] >= 0.95 * best]
            least = min(enough, key=lambda row: row["occupancy_share"], default=None)
            some = f"{loads} load{'s' * (loads > 1)} an array and thread"
            said.append(f"With {some}, an occupancy of {least['occupancy_share']:.0%} is enough for 95 % of the best bandwidth "
                        f"({text(best)})." if least else f"With {some}, no occupancy reaches 95 % of the best bandwidth ({text(best)}).")
    if all(row.get("driver_blocks") is not None for row in rows):
        other = [row for row in rows if row["driver_blocks"] != row["resident_blocks"]]
        said.append(f"The calculator and the driver agree on the blocks of a multiprocessor in all {len(rows)} configurations." if not other
                    else f"The calculator and the driver disagree in {len(other)} of {len(rows)} configurations, the first: "
                         f"{other[0]['resident_blocks']} against {other[0]['driver_blocks']} blocks.")
    return said


# -- waves

CHAIN = 8192  # rounds of a block: long beside the launch
BLOCKS_HELD = 2  # of a multiprocessor, so that two blocks share it without slowing each other


def waves(place, progress):
    """Blocks of equal length, in grids that fill the last wave or leave it nearly empty."""
    import numpy as np

    from cudalab.occupancy import SMEM_GRANULARITY, SMEM_RESERVED, limits
    smem = limits(place.device.sm).smem // BLOCKS_HELD // SMEM_GRANULARITY * SMEM_GRANULARITY - SMEM_RESERVED
    emulated, threads = place.name == "emulator", 128
    full = BLOCKS_HELD * place.device.sms
    grids = sorted({full // 4, full // 2, 3 * full // 4, 5 * full // 4, 3 * full // 2, 5 * full // 2} |
                   {n * full + more for n in (1, 2, 3, 4, 8, 16) for more in (0, 1)})
    for number, grid in enumerate(grids):
        progress(number, len(grids), "vecadd/waves")
        plan = plan_of("paths/1", dict(N=grid * threads), THREADS=threads, SMEM=smem)
        needed = -(-grid // full)
        row = dict(grid=grid, waves=grid / full, full_waves=needed, expected_share=grid / full / needed)
        if not emulated:
            inputs = dict(x=np.ones(grid * threads, np.float32), path=np.zeros(grid * threads, np.int32),
                          rounds=np.full(1, CHAIN, np.int32))
            row |= moved(place, plan, inputs=inputs, cold=False)
            row.pop("bandwidth_bytes_per_s")
            row["blocks_per_s"] = grid / row["time_s"]
        yield row


def plot_waves(axes, rows):
    axes.plot([row["waves"] for row in rows], [100 * row["expected_share"] for row in rows], color="#999999", linestyle="--",
              label="waves over waves rounded up")
    if is_timed(rows):
        best = max(row["blocks_per_s"] for row in rows)
        axes.plot([row["waves"] for row in rows], [100 * row["blocks_per_s"] / best for row in rows], marker="o", markersize=5,
                  color=COLOURS[0], label="measured, of the best")
    log2_ticks(axes, [0.25, 0.5, 1, 2, 4, 8, 16])
    axes.set_xlabel("blocks of the grid, in waves")
    axes.set_ylabel("blocks a second, %")
    axes.set_ylim(0, 105)
    axes.legend(frameon=False, loc="lower right")


def conclude_waves(rows):
    said = []
    for count in (1, 4, 16):
        whole = next(row for row in rows if row["waves"] == count)
        more = min((row for row in rows if row["waves"] > count), key=lambda row: row["waves"])
        sentence = f"One block more than {count} wave{'s' * (count > 1)}: "
        if is_timed(rows):
            said.append(f"{sentence}{more['time_s'] / whole['time_s']:.2f} times the time for {more['grid'] / whole['grid'] - 1:.2%} more "
                        f"work; a whole wave more would be {(count + 1) / count:.2f}.")
        else:
            said.append(f"{sentence}{more['full_waves']} waves of time, {more['expected_share']:.0%} of the device's blocks a second.")
    return said


# -- grid size

def grid_size(place, progress):
    """A grid-stride loop under grids from a quarter of the multiprocessors to a block a tile."""
    emulated, sms = place.name == "emulator", place.device.sms
    held = fit(plan_of("vecadd/4", dict(N=COUNTED)), place)[0].blocks
    blocks = sorted({sms // 4, sms // 2, sms, sms + 1, 2 * sms, 3 * sms, 4 * sms, held * sms, held * sms + 1, 3 * held * sms // 2,
                     2 * held * sms, 4 * held * sms, 16 * held * sms, plan_of("vecadd/4", dict(N=SWEPT), GRID=0).launches[0].grid[0]})
    for number, grid in enumerate(blocks):
        progress(number, len(blocks), "vecadd/grid_size")
        plan = plan_of("vecadd/4", dict(N=SWEPT), GRID=grid)
        pieces = SWEPT // (plan.config.LOADS * plan.config.THREADS)
        longest = -(-pieces // grid) * -(-grid // (held * sms))  # tiles one after the other, where a place has a block of each wave
        row = dict(grid=grid, blocks_per_sm=grid / sms, waves=grid / (held * sms), tiles_of_a_block=-(-pieces // grid),
                   expected_share=pieces / (held * sms * longest))
        yield row | ({} if emulated else moved(place, plan))


def plot_grid_size(axes, rows):
    timed = is_timed(rows)
    heights = [row["bandwidth_bytes_per_s"] / 1e12 if timed else 100 * row["expected_share"] for row in rows]
    axes.plot([row["waves"] for row in rows], heights, marker="o", markersize=5, color=COLOURS[0])
    log2_ticks(axes, [2.0**power for power in range(-5, 8)])
    axes.set_xlabel("blocks of the grid, in waves of what the device runs at once")
    axes.set_ylabel("TB/s, two reads and a write" if timed else "% of the places that have work, over the whole launch")
    from_zero(axes, heights)


def conclude_grid_size(rows):
    if not is_timed(rows):
        return []
    good = near(rows, "bandwidth_bytes_per_s")
    said = [f"{min(row['grid'] for row in good)} blocks, {min(row['blocks_per_sm'] for row in good):.3g} a multiprocessor, come within 2 % "
            f"of the best, {text(max(row['bandwidth_bytes_per_s'] for row in rows))}."]
    wave, passing = next(row for row in rows if row["waves"] == 1), rows[-1]
    return said + [f"As many blocks as run at once reach {text(wave['bandwidth_bytes_per_s'])}; a block a tile, {passing['grid']} of them, "
                   f"{text(passing['bandwidth_bytes_per_s'])}."]


# -- divergence

PATHS = (1, 2, 4, 8, 16, 32)
WALK = 512  # rounds on a device
WALK_COUNTED = 32


def divergence(place, progress):
    """The same number of paths, taken by neighbouring lanes or by whole warps."""
    import numpy as np
    emulated = place.name == "emulator"
    size, first = (COUNTED // 2, {}) if emulated else (2**22, {})
    x, index = np.ones(size, np.float32), np.arange(size)
    for number, (way, width, count) in enumerate((way, width, count) for way, width in (("lane", 1), ("warp", 32)) for count in PATHS):
        progress(number, 2 * len(PATHS), "vecadd/divergence")
        plan = plan_of("paths/1", dict(N=size))
        # the paths of a device's sweep are spread over all that there are, so that each way has as long a way to its loop
        chosen = (index // width % count * (PATHS[-1] // count)).astype(np.int32)
        inputs = dict(x=x, path=chosen, rounds=np.full(1, WALK_COUNTED if emulated else WALK, np.int32))
        row = dict(branch_by=way, paths=count)
        if emulated:
            from cudalab.counted import count_plan
            from cudalab.emulator.counters import derived
            total = count_plan(plan, place, inputs)
            row |= dict(warp_instructions=total["warp_instructions"], divergent_branches=total["divergent_branches"],
                        threads_per_warp=derived(total)["threads_per_warp"])
            cost = total["warp_instructions"]
        else:
            row |= moved(place, plan, inputs=inputs, cold=False)
            row.pop("bandwidth_bytes_per_s")
            cost = row["time_s"]
        yield row | dict(times_one_path=cost / first.setdefault(way, cost))


def plot_divergence(axes, rows):
    for colour, way in zip(COLOURS, ("lane", "warp")):
        mine = [row for row in rows if row["branch_by"] == way]
        axes.plot([row["paths"] for row in mine], [row["times_one_path"] for row in mine], marker="o", color=colour,
                  label=f"a branch by {way}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for ticks in (axes.set_xticks, axes.set_yticks):
        ticks(PATHS, [str(count) for count in PATHS])
    axes.minorticks_off()
    axes.set_xlabel("paths")
    axes.set_ylabel(f"{'time' if is_timed(rows) else 'instructions of warps'}, in those of one path")
    axes.legend(frameon=False, loc="upper left")


def conclude_divergence(rows):
    what = "time" if is_timed(rows) else "instructions of warps"
    last = {row["branch_by"]: row for row in rows if row["paths"] == PATHS[-1]}
    return [f"{PATHS[-1]} paths by lane take {last['lane']['times_one_path']:.3g} times the {what} of one; by warp, "
            f"{last['warp']['times_one_path']:.3g} times."]


# -- launch

KERNELS = (1, 10, 100, 1000)  # of one graph
MOVED = 64 * 1024 // 12  # elements of a launch that moves 64 KiB


def launch(place, progress):
    """What a launch of a small kernel costs by stream and by graph."""
    plan, ways = plan_of("vecadd/2", dict(N=MOVED)), [("stream", 1), *(("graph", count) for count in KERNELS)]
    for number, (way, count) in enumerate(ways):
        progress(number, len(ways), "vecadd/launch")
        row = dict(way=way, kernels_of_a_call=count, calls_for_1000=1000 // count)
        if place.name != "emulator":
            from cudalab.measure import time_plan
            from cudalab.trace.launch_cost import PENDING, launch_cost
            timing = time_plan(place, plan, cold=False, graph=count if way == "graph" else 0, batches=BATCHES)
            call = place.prepare(plan, place.allocate(plan.tensors.values(), str(plan.problem)))
            if way == "graph":
                call = place.capture(call, count, plan.step.path)
            cost = launch_cost(place, call, plan.step.path, max(1, min(PENDING, 20_000 // count)))
            row |= dict(queued_s=timing.time_s, stream_s=cost.stream_s / count, host_s=cost.host_s / count, alone_s=cost.alone_s,
                        sm_clock_mhz=timing.sm_clock_mhz)
        yield row


def plot_launch(axes, rows):
    labels = ["by stream" if row["way"] == "stream" else f"graph of {row['kernels_of_a_call']}" for row in rows]
    if rows[0].get("host_s") is None:
        axes.barh(labels, [row["calls_for_1000"] for row in rows], color=COLOURS[0])
        axes.set_xscale("log")
        axes.set_xlabel("calls of the driver for a thousand kernels")
    else:
        series = (("host_s", "the host, until its call returns"), ("stream_s", "the stream, at the host's pace"),
                  ("queued_s", "the stream, queued ahead"))
        for number, (field, label) in enumerate(series):
            places = [place + 0.27 * (number - 1) for place in range(len(rows))]
            axes.barh(places, [1e6 * row[field] for row in rows], height=0.25, color=COLOURS[number], label=label)
        axes.set_yticks(range(len(rows)), labels)
        axes.set_xlabel("µs a kernel")
        axes.legend(frameon=False, loc="lower right")
    axes.invert_yaxis()


def conclude_launch(rows):
    from cudalab.report import time_text
    stream, graphs = rows[0], [row for row in rows if row["way"] == "graph"]
    if stream.get("host_s") is None:
        return []
    best = max(graphs, key=lambda row: row["kernels_of_a_call"])
    return [f"By stream a kernel costs {time_text(stream['stream_s'])} at the host's pace and {time_text(stream['queued_s'])} where it was "
            f"queued ahead; in a graph of {best['kernels_of_a_call']}, {time_text(best['stream_s'])}.",
            f"One launch on an idle device takes {time_text(stream['alone_s'])} from the call until the host knows that it has ended."]


TIMED = ("time_s", "bandwidth_bytes_per_s")

STUDIES = (
    Study("vecadd/block_size", "threads of a block against bandwidth", block_size,
          ("threads", "resident_blocks", "resident_warps", "occupancy_share", "limits", "warp_instructions", "sectors_per_request", *TIMED),
          plot_block_size, conclude_block_size),
    Study("vecadd/occupancy", "warps that a multiprocessor holds against bandwidth", occupancy,
          ("limiter", "loads", "registers", "shared_bytes", "resident_blocks", "driver_blocks", "resident_warps", "occupancy_share",
           "in_flight_bytes", *TIMED), plot_occupancy, conclude_occupancy),
    Study("vecadd/waves", "blocks of equal length, in whole waves and in waves with a tail", waves,
          ("grid", "waves", "full_waves", "expected_share", "time_s", "blocks_per_s"), plot_waves, conclude_waves),
    Study("vecadd/grid_size", "blocks of a grid-stride loop against bandwidth", grid_size,
          ("grid", "blocks_per_sm", "waves", "tiles_of_a_block", "expected_share", *TIMED), plot_grid_size, conclude_grid_size),
    Study("vecadd/divergence", "paths that the lanes of a warp take, and that whole warps take", divergence,
          ("branch_by", "paths", "warp_instructions", "divergent_branches", "threads_per_warp", "time_s", "times_one_path"),
          plot_divergence, conclude_divergence),
    Study("vecadd/launch", "what a launch costs, by stream and by graph", launch,
          ("way", "kernels_of_a_call", "calls_for_1000", "queued_s", "stream_s", "host_s", "alone_s"), plot_launch, conclude_launch),
)
