"""How long one load takes, by the size of what is walked through: pointer chases through the caches, shared memory and pages.

On the emulator the same chains at small sizes: how many loads, sectors and bytes of DRAM they ask for.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from cudalab.devices import Device
from cudalab.report import bytes_text
from cudalab.spec import Step
from cudalab.studies.memory import knees, published
from cudalab.studies.memory.knees import Plateau
from cudalab.study import Progress, Study

LINE, SHARED_LINE = 128, 32  # bytes from one line of the chain to the next: a cache line; any number
HOPS = 2**16
SHARED_KB = (1, 4, 16, 48, 96, 160, 220)
IN_L1, IN_L2 = 2**15, 2**23  # bytes, where one size will do
COARSE, FINE = 3, 5  # sizes an octave, and extra ones for each knee
LARGEST = 2**29  # bytes walked through
PAGE = 2**21  # what the driver maps at once
PAGE_STRIDE = PAGE + 5 * LINE  # a page further and to another set of the caches
MOST_PAGES = 2**15
EMULATED = (1, 2, 8, 32, 128)  # lines

# compute capability -> bytes that L1 and shared memory have together: CUDA C++ Programming Guide, "Compute Capabilities", the sizes of the
# unified data cache
UNIFIED = {sm: kb * 1024 for sm, kb in {80: 192, 86: 128, 87: 192, 89: 128, 90: 256, 100: 256, 103: 256, 120: 128, 121: 128}.items()}


def study(through_caches: Step, shared: Step) -> Study:
    """Latency over the working set: through L1, past it, and of shared memory; hops by address, and by index as most code has them."""
    return Study("memory/latency", "latency of one load over the size of what is walked through",
                 lambda place, progress: _measure(through_caches, shared, place, progress),
                 ("curve", "hop", "working_set_bytes", "latency_cycles", "loads", "sectors_per_load", "dram_bytes"), _plot, _conclude)


def reach_study(through_caches: Step) -> Study:
    """Latency over the number of pages: how far the translation of addresses reaches."""
    return Study("memory/reach", "latency of L2 over how many pages the lines lie in",
                 lambda place, progress: _measure_reach(through_caches, place, progress),
                 ("pages", "span_bytes", "latency_cycles", "loads", "sectors_per_load"), _plot_reach, _conclude_reach)


# -- measuring

def _plan(step: Step, lines: int, hops: int, **config):
    problem = step.op.problem(dict(L=lines, H=hops))
    return step.plan(problem, step.config(problem, config))


def _row(curve: str, hop: str, size: int, device: Device, **more) -> dict:
    """l2_bytes, l1_bytes: what the device reports of itself, in every row, so that the sentences need nothing else."""
    return dict(curve=curve, hop=hop, working_set_bytes=size, l2_bytes=device.l2_bytes, l1_bytes=UNIFIED.get(device.sm), **more)


def _measure(through_caches: Step, shared: Step, place, progress: Progress) -> Iterator[dict]:
    from cudalab.studies.memory import checked
    # (curve, hop, step, configuration, sizes)
    kinds = [("through L1", "address", through_caches, dict(CACHE=0), knees.spaced(8 * LINE, LARGEST, COARSE, LINE)),
             ("through L1", "index", through_caches, dict(CACHE=0, INDEXED=1), [IN_L1]),
             ("past L1", "address", through_caches, dict(CACHE=1), [IN_L1, IN_L2]),
             ("past L1", "index", through_caches, dict(CACHE=1, INDEXED=1), [IN_L2]),
             ("shared", "address", shared, {}, [1024 * kb for kb in SHARED_KB]),
             ("shared", "index", shared, dict(INDEXED=1), [IN_L1])]
    if place.name == "emulator":
        yield from _count(kinds, place, progress)
        return
    for number, (curve, hop, step, config, sizes) in enumerate(kinds):
        unit = SHARED_LINE if step is shared else LINE

        def cycles(size, step=step, config=config, unit=unit):
            repeats = 3 if size <= IN_L2 else 1
            plan = _plan(step, size // unit, HOPS, **config)
            return knees.median(checked.cycles_per(checked.run(place, plan, seed=seed), HOPS) for seed in range(repeats))
        sizes = [size for size in sizes if curve != "shared" or size <= _shared_limit(place.device)]
        for size, latency in knees.discover(cycles, sizes, FINE, unit):
            progress(number, len(kinds), f"{curve}, by {hop}: {bytes_text(size)}")
            yield _row(curve, hop, size, place.device, latency_cycles=latency, hops=HOPS)


def _shared_limit(device: Device) -> int:
    from cudalab.occupancy import limits
    return limits(device.sm).smem_per_block


def _count(kinds, place, progress: Progress) -> Iterator[dict]:
    from cudalab.counted import count_plan
    for number, (curve, hop, step, config, _) in enumerate(kinds):
        progress(number, len(kinds), f"{curve}, by {hop}")
        for lines in EMULATED:
            plan = _plan(step, lines, 2 * lines, **config)
            total = count_plan(plan, place)
            space = "shared" if curve == "shared" else "global"
            # what the kernels load besides the chain: the order, twice a line, and once to begin
            loads = total[f"{space}_load_requests"]
            yield _row(curve, hop, lines * plan.config.STRIDE, place.device, hops=2 * lines, loads=loads, dram_bytes=total["dram_bytes"],
                       sectors_per_load=total["global_load_sectors"] / loads if space == "global" else None)


def _measure_reach(step: Step, place, progress: Progress) -> Iterator[dict]:
    from cudalab.counted import count_plan
    from cudalab.studies.memory import checked
    if place.name == "emulator":
        for pages in EMULATED[:4]:
            total = count_plan(_plan(step, pages, 2 * pages, CACHE=1, STRIDE=4096 + LINE), place)
            yield dict(pages=pages, span_bytes=pages * (4096 + LINE), loads=total["global_load_requests"],
                       sectors_per_load=total["global_load_sectors"] / total["global_load_requests"])
        return
    most = min(MOST_PAGES, int(0.8 * place.free_bytes()) // PAGE_STRIDE)

    def cycles(pages):
        plan = _plan(step, pages, 2**14, CACHE=1, STRIDE=PAGE_STRIDE)
        return checked.cycles_per(checked.run(place, plan), 2**14)
    for pages, latency in knees.discover(cycles, knees.spaced(4, most, 2, 1), FINE, 1):
        progress(pages.bit_length(), most.bit_length(), f"{pages} pages")
        yield dict(pages=pages, span_bytes=pages * PAGE_STRIDE, latency_cycles=latency)


# -- what follows

def levels(rows: Sequence[Mapping]) -> list[tuple[str, Plateau]]:
    """The plateaus of the chase through L1 with their names: the first is L1, the second L2, the last DRAM, what lies between is part of
    both."""
    found = _plateaus(_chase(rows), "working_set_bytes")
    names = ["L1", "L2"] + ["L2 in part"] * (len(found) - 3) + ["DRAM"]
    return list(zip(names[:len(found)] if len(found) < 3 else names, found))


def _plateaus(rows: Sequence[Mapping], size: str) -> list[Plateau]:
    return knees.plateaus([row[size] for row in rows], [row["latency_cycles"] for row in rows])


def _single(rows: Sequence[Mapping], curve: str, hop: str) -> float | None:
    found = [row["latency_cycles"] for row in rows if (row["curve"], row["hop"]) == (curve, hop)]
    return knees.median(found) if found else None


def _conclude(rows: Sequence[Mapping]) -> list[str]:
    if rows[0].get("latency_cycles") is None:
        loads = sum(row["loads"] for row in rows)
        return [f"Every hop is one load of one thread; the {loads:,} loads counted here lead to the right line. Cycles need a GPU."]
    found = levels(rows)
    sentences = [_level_sentence(name, level) for name, level in found] + _climbs(found, rows)
    sentences += _sizes(found, rows[0])
    ours = {(name, "address"): level.cost for name, level in found}
    shared = {hop: _single(rows, "shared", hop) for hop in ("address", "index")}
    if all(shared.values()):
        sentences.append(f"Shared memory: {shared['address']:.1f} cycles by address, {shared['index']:.1f} by index; the difference is the "
                         f"arithmetic that makes an address of a number.")
    ours |= {("shared", hop): cycles for hop, cycles in shared.items()}
    ours |= {("L1", "index"): _single(rows, "through L1", "index"), ("L2", "index"): _single(rows, "past L1", "index")}
    ours[("DRAM", "index")] = ours.get(("DRAM", "address"))  # a few instructions among hundreds of cycles
    return sentences + _comparison(ours)


def _level_sentence(name: str, level: Plateau) -> str:
    end = f"up to {bytes_text(level.last)} (no longer at {bytes_text(level.beyond)})" if level.beyond else "to the end of the curve"
    return f"{name}: {level.cost:.1f} cycles from {bytes_text(level.first)} {end}."


def _climbs(found: Sequence[tuple[str, Plateau]], rows: Sequence[Mapping]) -> list[str]:
    """What lies between two levels, as it was observed, where that is a range of sizes and no step."""
    curve, sentences = _chase(rows), []
    for (name, level), (following, after) in itertools.pairwise(found):
        between = [(row["working_set_bytes"], row["latency_cycles"]) for row in curve
                   if level.last < row["working_set_bytes"] < after.first]
        if len(between) >= 3 and between[-1][0] > 1.4 * between[0][0]:
            cycles = [value for _, value in between]
            sentences.append(f"Between {name} and {following}: {min(cycles):.1f} to {max(cycles):.1f} cycles from "
                             f"{bytes_text(between[0][0])} to {bytes_text(between[-1][0])}; the curve does not tell what serves "
                             f"which load.")
    return sentences


def _chase(rows: Sequence[Mapping]) -> list[Mapping]:
    """The chase through L1 by address, by size."""
    mine = [row for row in rows if row["curve"] == "through L1" and row["hop"] == "address"]
    return sorted(mine, key=lambda row: row["working_set_bytes"])


def _sizes(found: Sequence[tuple[str, Plateau]], row: Mapping) -> list[str]:
    """Sizes read off the knees beside what is known of the device."""
    sentences = []
    known = {"L1": (row["l1_bytes"], "that L1 and shared memory have together by the programming guide"),
             "L2": (row["l2_bytes"], "of L2 that the driver reports")}
    for name, level in found:
        if name in known and level.beyond and known[name][0]:
            size, what = known[name]
            sentence = (f"By the knee {name} holds between {bytes_text(level.last)} and {bytes_text(level.beyond)}: "
                        f"{level.last / size:.0%} of the {bytes_text(size)} {what}")
            if name == "L2" and level.beyond < 0.75 * size:
                sentence += "; this is what one multiprocessor finds alone, and memory/bandwidth shows what all find together"
            sentences.append(sentence + ".")
    return sentences


def _comparison(ours: Mapping[tuple[str, str], float | None]) -> list[str]:
    """Each published figure beside ours of the same kind of hop, and why they differ where they do."""
    sentences = []
    for one in published.LATENCIES:
        value = ours.get((one.level, one.hop))
        if value is None:
            continue
        away = value / one.cycles - 1
        text = f"{one.level} by {one.hop}: {value:.1f} cycles here, {one.cycles:.1f} on {one.device} ({one.source}), {away:+.1%}"
        if abs(away) > published.WITHIN:
            text += f": {_reason(one, value, ours)}"
        sentences.append(text + ".")
    return sentences


def _reason(one: published.Published, value: float, ours: Mapping[tuple[str, str], float | None]) -> str:
    """What the study itself shows of a difference: the address arithmetic of a hop, the other hop's figure, the memory's clock."""
    by_address = ours.get((one.level, "address"))
    if one.level in ("L1", "shared") and by_address and ours.get((one.level, "index")):
        step = ours[one.level, "index"] - by_address
        return (f"the address arithmetic of a hop by index is {step:.1f} cycles here ({by_address:.1f} without it), and whoever computes "
                f"it in more or fewer instructions has another figure")
    if one.level == "DRAM":
        return "another device with another memory and another clock; nothing measured here tells these apart"
    return "lines lie nearer to some multiprocessors than to others: memory/l2_parts shows the spread on this device"


def _conclude_reach(rows: Sequence[Mapping]) -> list[str]:
    if rows[0].get("latency_cycles") is None:
        return ["Each hop goes to another page. Cycles need a GPU."]
    found = _plateaus(rows, "pages")
    top = max(row["latency_cycles"] for row in rows)
    if len(found) < 2 and top < 1.15 * found[0].cost:
        return [f"No knee: translation takes no time that shows up to {bytes_text(max(row['span_bytes'] for row in rows))}."]
    sentences = []
    for level in found:
        if level.beyond:
            sentences.append(f"{level.cost:.0f} cycles while the lines lie in up to {level.last:.0f} pages of 2 MiB "
                             f"({bytes_text(level.last * PAGE_STRIDE)}), more from {level.beyond:.0f} on: so far a level of the TLB "
                             f"reaches.")
        else:
            sentences.append(f"{level.cost:.0f} cycles from {level.first:.0f} pages to the end of the curve.")
    return sentences or [f"Latency climbs from {min(row['latency_cycles'] for row in rows):.0f} to {top:.0f} cycles without a plateau."]


# -- pictures

def _plot(axes, rows: Sequence[Mapping]) -> None:
    value = "latency_cycles" if rows[0].get("latency_cycles") is not None else "loads"
    for (curve, hop), style in zip(dict.fromkeys((row["curve"], row["hop"]) for row in rows), ("o-", "D", "s--", "v", "^-", "x")):
        mine = sorted((row["working_set_bytes"], row[value]) for row in rows if (row["curve"], row["hop"]) == (curve, hop))
        axes.plot(*zip(*mine), style, markersize=4, linewidth=1.2, label=f"{curve}, by {hop}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    size_axis(axes, [row["working_set_bytes"] for row in rows])
    axes.set_xlabel("working set")
    axes.set_ylabel("latency of a load, cycles" if value == "latency_cycles" else "loads counted")
    if value == "latency_cycles":
        for name, level in levels(rows):
            below = name == "L2 in part"  # between two levels, where the curve climbs past a label above it
            axes.annotate(f"{name} {level.cost:.0f}", (level.last if below else level.first, level.cost), xytext=(2, -14 if below else 6),
                          textcoords="offset points", fontsize=8)
        axes.set_yticks(ticks := [20, 30, 50, 100, 200, 300, 500, 1000], map(str, ticks))
        axes.set_ylim(15, 1500)
        axes.minorticks_off()
    axes.grid(True, which="major", linewidth=0.4, alpha=0.5)
    axes.legend(loc="upper left", frameon=False)


def _plot_reach(axes, rows: Sequence[Mapping]) -> None:
    value = "latency_cycles" if rows[0].get("latency_cycles") is not None else "loads"
    mine = sorted((row["span_bytes"], row[value]) for row in rows)
    axes.plot(*zip(*mine), "o-", markersize=4, linewidth=1.2)
    axes.set_xscale("log", base=2)
    size_axis(axes, [row["span_bytes"] for row in rows])
    axes.set_ylim(0, 1.15 * max(cost for _, cost in mine))
    axes.set_xlabel("address range in which the lines lie, one a page of 2 MiB")
    axes.set_ylabel("latency of a load, cycles" if value == "latency_cycles" else "loads counted")
    axes.grid(True, which="major", linewidth=0.4, alpha=0.5)


def size_axis(axes, sizes: Sequence[int]) -> None:
    """Ticks of a logarithmic axis of bytes, at powers of two, at most ten of them."""
    first, last = min(sizes).bit_length() - 1, max(sizes).bit_length()
    step = max(1, -(-(last - first) // 9))
    ticks = [2**exponent for exponent in range(first, last + 1, step)]
    axes.set_xticks(ticks, [bytes_text(tick) for tick in ticks])
    axes.minorticks_off()
