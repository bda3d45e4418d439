"""What can be said of a step without running it, and how rows and reports look as text."""

import dataclasses
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from cudalab.errors import MissingTool
from cudalab.problem import Problem, kind_words
from cudalab.spec import Fill, Launch, Plan


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is, or that $COLUMNS says; None for a file or a pipe: there a line is as long as it is."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() or "COLUMNS" in os.environ else None


def table(rows: Sequence[Sequence], headers: Sequence[str], left: Sequence[int] = (0,), wrap: int | None = None) -> str:
    """A plain table; numbers and texts come formatted, `left` names the columns of text, `wrap` the one that takes what room is left."""
    from tabulate import tabulate
    widths, terminal = [None] * len(headers), terminal_width()
    if rows and terminal and wrap is not None:
        lengths = [max(len(head) + 2, *(len(str(cell)) for cell in cells)) for head, *cells in zip(headers, *rows)]  # tabulate adds the 2
        widths[wrap] = max(20, terminal - sum(lengths) + lengths[wrap] - 2 * (len(headers) - 1))
    # tabulate pads every line to the full width, which a narrower terminal would show as empty lines
    text = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, maxcolwidths=widths,
                    colalign=["left" if i in left else "right" for i in range(len(headers))] if rows else None)
    return "\n".join(line.rstrip() for line in text.splitlines())


def fold(text: str, indent: str = "") -> str:
    """The text with lines no longer than the terminal is wide, those behind the first after `indent`."""
    return textwrap.fill(text, terminal_width() or 10_000, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def time_text(seconds: float) -> str:
    """A time in the unit that a person would take, four digits: 2.740 ms."""
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1 or unit == "µs":
            return f"{format(seconds * scale, '#.4g').rstrip('.')} {unit}"


def shape_text(shape: Mapping[str, int]) -> str:
    """4096x4096x1024, or 4096³ where all three are the same."""
    sizes = list(shape.values())
    return f"{sizes[0]}³" if len(sizes) == 3 and len(set(sizes)) == 1 else "x".join(map(str, sizes))


def case_text(row: Mapping) -> str:
    """The shape of a row or a verdict with its kind: 4096x4096 bf16."""
    return " ".join([shape_text(row["shape"]), *kind_words(row["dtype"], row["variant"])])


def problem_text(problem: Problem) -> str:
    """The same of a problem."""
    return case_text(dict(shape=problem, dtype=problem.dtype, variant=problem.variant))


def rate_unit(row: Mapping) -> str:
    """What a row's speed is counted in: bytes where memory is its roof."""
    return "TB/s" if row.get("roof") == "dram" else "TFLOP/s"


def rate(row: Mapping, time: str = "time_s") -> float | None:
    """A row's speed in its unit (time: of ours, or "peer_time_s"); None where there is no such time."""
    if not row.get(time):
        return None
    return row["bytes" if rate_unit(row) == "TB/s" else "flops"] / row[time] / 1e12


def rate_text(row: Mapping, time: str = "time_s") -> str:
    value = rate(row, time)
    return "-" if value is None else number_text(value, rate_unit(row))


def number_text(value: float, unit: str) -> str:
    """A speed without its unit: 51.3 of TFLOP/s, 4.384 of TB/s."""
    return f"{value:.3f}" if unit == "TB/s" and value >= 0.1 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def rate_column(rows: Iterable[Mapping], time: str = "time_s") -> tuple[str, list[str]]:
    """Heading and cells of a column of speeds; the unit stands in the cells where it differs between them."""
    rows = list(rows)
    units = list(dict.fromkeys(map(rate_unit, rows)))
    if len(units) == 1:
        return units[0], [rate_text(row, time) for row in rows]
    return "rate", [f"{rate_text(row, time)} {rate_unit(row)}" for row in rows]


def bytes_text(count: float) -> str:
    """A number of bytes in powers of 1024, as sizes of memories are: 4096 -> 4 KiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.4g} B"


def scaled_text(value: float, unit: str) -> str:
    """A rate in powers of 1000: 4.549e12, "B/s" -> 4.549 TB/s."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


# how a field of a study is shown, by the end of its name: the first that fits
STUDY_UNITS = (("_bytes_per_s", lambda v: scaled_text(v, "B/s")), ("flops_per_s", lambda v: scaled_text(v, "FLOP/s")),
               ("_per_s", lambda v: scaled_text(v, "/s")), ("_bytes", bytes_text),
               ("_cycles", lambda v: f"{v:.1f}"), ("_share", lambda v: f"{v:.1%}"), ("_mhz", lambda v: f"{v:.0f} MHz"),
               ("_w", lambda v: f"{v:.0f} W"), ("_c", lambda v: f"{v:.0f} °C"), ("_s", time_text))


def study_cell(name: str, value) -> str:
    """A field of a study's row as text, by the unit in its name; "-" where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    for ending, text in STUDY_UNITS:
        if name.endswith(ending):
            return text(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def study_head(name: str) -> str:
    """The heading of a field: its name without the unit that the cells show."""
    ending = next((ending for ending, _ in STUDY_UNITS if name.endswith(ending) and ending != "_cycles"), "")
    return name.removesuffix(ending).replace("_", " ")


def study_table(columns: Sequence[str], rows: Sequence[Mapping]) -> tuple[list[list[str]], list[str], list[int]]:
    """Cells, headings and the numbers of the columns of text, of those columns that any row has."""
    names = [name for name in columns if any(row.get(name) is not None for row in rows)]
    left = [i for i, name in enumerate(names) if any(isinstance(row.get(name), str) for row in rows)]
    return [[study_cell(name, row.get(name)) for name in names] for row in rows], list(map(study_head, names)), left


def studied(study, rows: Sequence[Mapping]) -> str:
    """A study's rows as a table, and what follows from them."""
    cells, heads, left = study_table(study.columns, rows)
    sentences = [fold(sentence) for sentence in study.conclusions(rows)]
    parts = [fold(f"{study.name}: {study.title}; on {rows[0]['device']}"), table(cells, heads, left), "\n".join(sentences)]
    return "\n\n".join(filter(None, parts))


def finite(value: float) -> float | None:
    """A number as JSON takes it: None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


def ratio_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def share_text(row: Mapping) -> str:
    return "-" if row.get("roof_share") is None else f"{row['roof_share']:.0%} of {row['roof']}"


def measured(rows: Iterable[Mapping]) -> str:
    """The table of measured rows: ours beside the peer, with the share of the roof; the protocol where it is not always steady."""
    rows = list(rows)
    more = ("protocol",) if any(r["protocol"] != "steady" for r in rows) else ()
    unit, rates = rate_column(rows)
    lines = [(f"{r['op']}/{r['step']}", case_text(r), speed, share_text(r), ratio_text(r["ratio"]), r["peer"] or "-",
              time_text(r["time_s"]), time_text(r["peer_time_s"]) if r["peer_time_s"] else "-", *(r[name] for name in more))
             for r, speed in zip(rows, rates)]
    return table(lines, ("step", "shape", unit, "roof", "ratio", "to", "time", "its time", *more), left=(0, 1, 3, 5, 8))


def checked(verdicts: Sequence[Mapping]) -> str:
    """What `check` found: one line a step with its largest error and that error's bound, and every check that failed behind them.

    verdicts: mappings with op, step, shape, dtype, variant, inputs, passed, error (None: not a number), bound, reason.
    """
    lines, failures = [], []
    for name in dict.fromkeys((v["op"], v["step"]) for v in verdicts):
        mine = [v for v in verdicts if (v["op"], v["step"]) == name]
        wrong = [v for v in mine if not v["passed"]]
        rounded = [v for v in mine if v["error"] is not None and v["bound"] > 0]
        worst = max(rounded, key=lambda v: v["error"] / v["bound"], default=None)
        shapes = {case_text(v) for v in mine}
        lines.append(("/".join(name), len(shapes), f"{len(wrong)} of {len(mine)} WRONG" if wrong else "right",
                      *((f"{worst['error']:.2e}", f"{worst['bound']:.2e}", case_text(worst)) if worst else ("-", "-", ""))))
        failures += [("/".join(name), case_text(v), v["inputs"], v["reason"]) for v in wrong]
    text = table(lines, ("step", "shapes", "result", "worst error", "bound", "at"), left=(0, 2, 5))
    return text + ("\n\n" + table(failures, ("wrong", "shape", "inputs", "why"), left=range(4), wrap=3) if failures else "")


def compiled(plan: Plan, target: str) -> dict:
    """The static report: launches with their geometry, resources, occupancy and instruction mix.  Compiles, or takes from the cache.

    Raises CompileError, BadConfig (a static_assert) or BadLaunch as `build` and `verify` do.  Without nvdisasm the mix is None.
    """
    from cudalab.build import build, verify
    built = build(plan, target)
    verify(built, plan)
    title, prose = plan.step.header
    return dict(op=plan.step.op.name, step=plan.step.id, title=title, prose=prose, shape=dict(plan.problem), dtype=plan.problem.dtype,
                variant=plan.problem.variant, config=dict(plan.config),
                tunables={name: list(plan.step.tune.get(name, ())) for name in plan.step.tunables},
                capabilities=plan.step.capabilities(plan.problem), target=target,
                buffers=[dict(name=t.name, shape=list(t.shape), dtype=t.dtype, role=t.role, bytes=t.nbytes) for t in plan.tensors.values()],
                actions=[_action(a, built, target) for a in plan.actions], folder=str(built.folder), cached=built.cached,
                seconds=built.seconds)


def _action(action, built, target: str) -> dict:
    from cudalab.build import sm_of
    from cudalab.occupancy import occupancy
    if not isinstance(action, Launch):
        name = action.name if isinstance(action, Fill) else f"{action.source} to {action.target}"
        return dict(kind=type(action).__name__.lower(), of=name)
    kernel = built.kernels[action.entry]
    threads = action.block[0] * action.block[1] * action.block[2]
    fits = occupancy(sm_of(target), threads, kernel.registers, kernel.static_smem + action.smem)
    return dict(kind="launch", entry=action.entry, grid=list(action.grid), block=list(action.block), cluster=action.cluster,
                args=[_argument(a) for a in action.args], registers=kernel.registers, stack=kernel.stack, spill_stores=kernel.spill_stores,
                spill_loads=kernel.spill_loads, static_smem=kernel.static_smem, dynamic_smem=action.smem,
                occupancy=dict(blocks=fits.blocks, warps=fits.warps, fraction=fits.fraction, limits=list(fits.limits)),
                **_in_sass(built, kernel.symbol))


def _in_sass(built, symbol: str) -> dict:
    """mix: class of instruction -> how often it stands in the kernel, most frequent first.  register_banks: of the loop with the most
    FP32 multiply-adds.  None without nvdisasm, and without such a loop."""
    from cudalab import register_banks, sass
    try:
        instructions = sass.functions(built.sass)[symbol]
    except MissingTool:
        return dict(mix=None, register_banks=None)
    loop = sass.main_loop(instructions)
    return dict(mix=sass.mix(instructions), register_banks=dataclasses.asdict(register_banks.count(loop)) if loop else None)


def _argument(argument) -> str:
    if hasattr(argument, "name"):
        return argument.name + (f"+{argument.offset}" if argument.offset else "")
    return f"{argument.value}"


def static(report: Mapping, prose: bool = False) -> str:
    """The static report as text."""
    shape = " ".join(f"{name}={size}" for name, size in report["shape"].items())
    lines = [fold(f"{report['op']}/{report['step']}: {report['title']}")]
    if prose and report["prose"]:
        lines += ["", *_prose(report["prose"])]
    kind = "".join(f", {word}" for word in kind_words(report["dtype"], report["variant"]))
    lines += ["", f"shape      {shape}{kind}", f"target     {report['target']} (needs {report['capabilities']})",
              fold(f"tunables   {'  '.join(f'{name}={value}' for name, value in report['config'].items()) or 'none'}", " " * 11)]
    searched = ", ".join(f"{name} {' '.join(map(str, values))}" for name, values in report["tunables"].items() if values)
    lines += [fold(f"tune tries {searched}", " " * 11)] if prose and searched else []
    lines += [f"{b['role']:<10} {b['name']} {shape_text(dict(enumerate(b['shape'])))} {b['dtype']}, {b['bytes']} bytes"
              for b in report["buffers"] if b["role"] in ("scratch", "state")]
    for action in report["actions"]:
        lines += [""] + (_launch(action) if action["kind"] == "launch" else [f"{action['kind']}       {action['of']}"])
    return "\n".join([*lines, "", f"folder     {report['folder']}"])


def _prose(text: str) -> list[str]:
    """A header's prose, indented; on a narrow terminal its lines, which break where a sentence happens to, are joined and broken anew."""
    lines, width = text.splitlines(), (terminal_width() or 10_000) - 2
    if max(map(len, lines)) > width:
        sentences = re.sub(r"(?<![.:])\n(?!\n)", " ", text).splitlines()
        lines = [part for sentence in sentences for part in textwrap.wrap(sentence, width) or [""]]
    return ["  " + line if line else "" for line in lines]


def _launch(launch: Mapping) -> list[str]:
    fits = launch["occupancy"]
    lines = [f"launch     {launch['entry']}({', '.join(launch['args'])})",
             f"  grid     {_grid(launch['grid'])}" + (f", clusters of {_times(launch['cluster'])}" if launch["cluster"] else ""),
             f"  block    {_times(launch['block'])} threads",
             f"  memory   {launch['registers']} registers a thread; shared memory {_shared(launch)}",
             f"  spills   {launch['spill_stores']} bytes stored, {launch['spill_loads']} loaded, stack {launch['stack']}",
             f"  fits     {fits['blocks']} blocks = {fits['warps']} warps an SM, {fits['fraction']:.0%} of its warps; "
             f"limited by {', '.join(fits['limits'])}"]
    if launch["mix"] is None:
        return [*lines, "  mix      not known: nvdisasm is missing ('doctor' says what installs it)"]
    words = [f"{name} {count}" for name, count in launch["mix"].items()]
    width = max(map(len, words)) + 2
    a_line = max(1, ((terminal_width() or 100) - 11) // width)
    rows = ["".join(f"{word:<{width}}" for word in words[i:i + a_line]).rstrip() for i in range(0, len(words), a_line)]
    lines.append("  mix      " + f"\n{' ' * 11}".join(rows))
    if banks := launch["register_banks"]:
        read = "" if banks["nearest_read"] is None else f"; a shared read is {banks['nearest_read']} instructions ahead of its use or more"
        waiting = f"{banks['conflicts']} of the main loop's {banks['multiply_adds']} multiply-adds wait for a register"
        lines.append(fold(f"  banks    {waiting}{read}", " " * 11))
    return lines


def _shared(launch: Mapping) -> str:
    static, dynamic = launch["static_smem"], launch["dynamic_smem"]
    return f"{static} bytes static + {dynamic} dynamic a block" if static and dynamic else \
        f"{static or dynamic} bytes a block" + (" (dynamic)" if dynamic else "")


def _grid(sizes: Sequence[int]) -> str:
    text = _times(sizes)
    return f"{text} = {math.prod(sizes)} blocks" if "x" in text else f"{text} blocks"


def _times(sizes: Sequence[int]) -> str:
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return " x ".join(map(str, kept))
