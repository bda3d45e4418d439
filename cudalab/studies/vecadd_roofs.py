"""The ladder of part 2 beside what the memory allows: reading alone and writing alone, weighted as a vector add reads and writes."""

from cudalab.studies.memory.bandwidth import IN_BULK, ROW
from cudalab.studies.vecadd import BATCHES, COLOURS, COUNTED, is_timed, moved, plan_of, text
from cudalab.study import Study

SIZE = 2**28  # elements of a vector


def plans(place):
    """(what, plan, bytes moved): reads and writes of as many bytes as a vector add moves, by all the ways of part 4, then the steps."""
    from cudalab import registry
    emulated = place.name == "emulator"
    def own(what, plan):
        return what, plan, plan.step.op.bytes(plan.problem)

    def sheet(columns):
        return dict(H=8, W=2052) if emulated else dict(H=3 * SIZE // columns // 8 * 8, W=columns)
    wide = sheet(4096 * place.device.sms)
    yield own("read", plan_of("roof_read/1", wide | dict(R=1)))
    if place.device.sm >= 90 and not emulated:  # whose requests are no sectors of a load: nothing to count
        rows = 3 * SIZE // 64
        per_sm, config = IN_BULK.tuning(rows * ROW)
        yield own("read", plan_of("read/2", dict(R=rows, P=1), **config, BLOCKS=per_sm * place.device.sms))
    yield own("write", plan_of("roof_write/1", wide))
    yield own("write", plan_of("roof_write/2", sheet(4096)))
    for step in registry.ops()["vecadd"].steps:
        yield own("add", plan_of(step.path, dict(N=COUNTED if emulated else SIZE)))


def roofs(place, progress):
    found, made = {}, list(plans(place))
    for number, (what, plan, nbytes) in enumerate(made):
        progress(number, len(made), "vecadd/roofs")
        row = dict(what=what, step=plan.step.path, moved_bytes=nbytes)
        if place.name == "emulator":
            from cudalab.counted import count_plan
            total = count_plan(plan, place)
            row |= dict(read_sectors=total["global_load_sectors"], written_sectors=total["global_store_sectors"])
        else:
            row |= moved(place, plan, batches=2 * BATCHES)
            row["bandwidth_bytes_per_s"] = nbytes / row["time_s"]
            found[what] = max(found.get(what, 0), row["bandwidth_bytes_per_s"])
            if what == "add":
                row["roof_share"] = row["bandwidth_bytes_per_s"] / weighted(found["read"], found["write"])
        yield row


def weighted(read: float, write: float) -> float:
    """Bytes a second of two parts that are read and one that is written, one after the other."""
    return 3 / (2 / read + 1 / write)


def fastest(rows) -> tuple[float, float]:
    """The best rates of reading alone and of writing alone."""
    return tuple(max(row["bandwidth_bytes_per_s"] for row in rows if row["what"] == what) for what in ("read", "write"))


def plot(axes, rows):
    timed = is_timed(rows)
    heights = [row["bandwidth_bytes_per_s"] / 1e12 if timed else (row["read_sectors"] + row["written_sectors"]) * 32 / row["moved_bytes"]
               for row in rows]
    axes.barh([row["step"] for row in rows], heights, height=0.6, color=[COLOURS[0] if row["what"] == "add" else "#999999" for row in rows])
    for place, height in enumerate(heights):
        axes.text(1.08, place, f"{height:.3f}", transform=axes.get_yaxis_transform(), va="center", ha="right")
    axes.invert_yaxis()
    axes.set_xlabel("TB/s" if timed else "bytes of sectors asked for, over bytes that must move")
    if timed:
        roof = weighted(*fastest(rows)) / 1e12
        axes.axvline(roof, color=COLOURS[1], linestyle="--", label=f"two reads and a write: {roof:.3f}")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)


def conclude(rows):
    if not is_timed(rows):
        return []
    read, write = fastest(rows)
    last = rows[-1]
    return [f"Reading alone reaches {text(read)}, writing alone {text(write)}; two reads and a write, one after the other, would be "
            f"{text(weighted(read, write))}.",
            f"{last['step']} reaches {text(last['bandwidth_bytes_per_s'])}, {last['roof_share']:.1%} of that."]


STUDY = Study("vecadd/roofs", "the ladder beside reading and writing alone", roofs,
              ("what", "step", "moved_bytes", "read_sectors", "written_sectors", "time_s", "bandwidth_bytes_per_s", "roof_share"),
              plot, conclude)
