"""The study of part 1: one cupy.matmul, from the call to the kernel, as rows that can be kept."""

from cudalab.study import Study

SIZE = 1024  # short enough that what the host pays shows
COLOURS = dict(python="#7a5aa0", runtime="#b5532a", driver="#b5532a", kernel="#2f6ca3", memcpy="#4f7d4f", memset="#4f7d4f")


def matmul(place, progress):
    """The events of one call on a GPU, the figures of the call in the first; on the emulator what this lab would launch for it."""
    from cudalab import registry
    op = registry.ops()["sgemm"]
    problem = op.problem(dict.fromkeys(op.dims, SIZE))
    if place.name == "emulator":
        from cudalab.report import compiled
        step = op.steps[-1]
        for launch in compiled(step.plan(problem), place.target)["actions"]:
            if launch["kind"] == "launch":
                yield dict(what=f"{step.path}: {launch['entry']}", kind="planned", grid="x".join(map(str, launch["grid"])),
                           block="x".join(map(str, launch["block"])), registers=launch["registers"],
                           shared_bytes=launch["static_smem"] + launch["dynamic_smem"])
        return
    from cudalab.trace import follow, timeline
    found = follow.run(place, follow.MATMUL, problem, progress=progress)
    figures = found.figures
    for line in timeline.lines(found.call):
        shared = None if line["static_smem_bytes"] is None else line["static_smem_bytes"] + line["dynamic_smem_bytes"]
        yield dict(what="· " * line["depth"] + line["name"], kind=line["kind"], start_s=line["start_s"], time_s=line["time_s"],
                   own_s=line["own_s"], correlation=line["correlation"], grid=line.get("grid"), block=line.get("block"),
                   registers=line["registers"], shared_bytes=shared, **figures)
        figures = {}


def plot(axes, rows):
    names = [row["what"][:44] for row in rows]
    if rows[0].get("time_s") is None:
        axes.barh(names, [row["registers"] for row in rows], color=COLOURS["kernel"], height=0.4)
        axes.set_ylim(-1, len(rows))
        axes.set_xlabel("registers a thread, as planned")
        return
    for number, row in enumerate(rows):
        axes.barh(number, 1e6 * row["time_s"], left=1e6 * row["start_s"], color=COLOURS[row["kind"]], height=0.7)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("µs since the call")


def conclude(rows):
    from cudalab.trace.follow import sentences
    return sentences(rows[0]) if "first_s" in rows[0] else []


STUDIES = (
    Study("trace/matmul", "one cupy.matmul of 1024³ in FP32, from the call to the kernel", matmul,
          ("what", "kind", "start_s", "time_s", "own_s", "correlation", "grid", "block", "registers", "shared_bytes"), plot, conclude),
)
