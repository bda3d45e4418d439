"""What the results say of a ladder or a study: the tables of the README, and the figures that the picture draws."""

import itertools
import math
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cudalab import parts, report, results
from cudalab.errors import BadResults
from cudalab.problem import kind_words
from cudalab.results import slug
from cudalab.spec import Op
from cudalab.study import Study

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
EMPTY = types.MappingProxyType({})
LARGE_FLOPS = 1e10  # from here on a shape counts as large in the geometric mean


def usual(op: Op) -> tuple[str, str | None]:
    """The kind (dtype, variant) that an op is shown in where none is named."""
    return op.dtypes[0], op.variants[0]


def kinds(op: Op, device: str, rows: Iterable[Mapping]) -> list[tuple[str, str | None]]:
    """The kinds of the op that were measured on the device, in the op's order."""
    found = {(row["dtype"], row["variant"]) for row in rows if (row["op"], row["device"]) == (op.name, device)}
    return [kind for kind in itertools.product(op.dtypes, op.variants) if kind in found]


def picture(op: Op, device: str, kind: tuple[str, str | None]) -> str:
    """The name of a ladder's picture, without a suffix."""
    return "-".join([op.name, *([] if kind == usual(op) else filter(None, kind)), slug(device)])


def at_first_shape(op: Op, device: str, rows: Iterable[Mapping],
                   kind: tuple[str, str | None] | None = None) -> dict[str, dict[str, Mapping]]:
    """Step id -> peer -> row, in the order of the ladder, at the op's first benchmark shape under the steady protocol."""
    found = {step.id: {} for step in op.steps}
    for row in _of(op, device, rows, kind or usual(op)):
        if row["shape"] == dict(op.shapes["bench"][0]) and row["step"] in found:
            found[row["step"]][row["peer"]] = row
    return {step: by_peer for step, by_peer in found.items() if by_peer}


def best_by_shape(op: Op, device: str, rows: Iterable[Mapping],
                  kind: tuple[str, str | None] | None = None) -> list[dict[str, Mapping]]:
    """For each benchmark shape that was measured, in their order: peer -> row of the step that is fastest (beside the first peer)."""
    rows, best = list(_of(op, device, rows, kind or usual(op))), []
    for shape in map(dict, op.shapes["bench"]):
        here = [row for row in rows if row["shape"] == shape]
        first = [row for row in here if row["peer"] in op.peers[:1]] or here
        if first:
            step = min(first, key=lambda row: row["time_s"])["step"]
            best.append({row["peer"]: row for row in here if row["step"] == step})
    return best


def headline(op: Op, by_peer: Mapping[str, Mapping]) -> Mapping:
    """The row beside the op's first peer, or beside whatever was there."""
    return next((by_peer[peer] for peer in op.peers if peer in by_peer), None) or next(iter(by_peer.values()))


def _of(op: Op, device: str, rows: Iterable[Mapping], kind: tuple[str, str | None]):
    steps = {step.id for step in op.steps}
    wanted = (op.name, device, "steady", *kind)
    return (r for r in rows if tuple(r[name] for name in ("op", "device", "protocol", "dtype", "variant")) == wanted and r["step"] in steps)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def tables(rows: Sequence[Mapping], pictures: Path | None = None, studies: Mapping[tuple[str, str], Sequence[Mapping]] = EMPTY) -> str:
    """Markdown: for every op and device its ladder and its best step at all shapes, for every study what it found, part by part, each above
    the command that makes it.

    pictures: a folder beside the file that the text is for; a picture of a ladder or a study in it (see `plot`) stands before its table.
    studies: kept rows by (study, device).
    """
    sections = []
    for part in parts.PARTS:
        before = len(sections)
        for op in part.ops:
            for device in dict.fromkeys(row["device"] for row in rows if row["op"] == op.name):
                for kind in kinds(op, device, rows):
                    sections += _of_op(op, device, rows, pictures, kind)
        for study in getattr(part, "studies", ()):
            sections += [_study(study, device, found, pictures) for (name, device), found in studies.items() if name == study.name]
        if len(sections) > before:
            sections.insert(before, f"### {part.__name__.rpartition('_')[2]}: {part.TITLE}")
    return "\n\n".join(sections)


def _of_op(op: Op, device: str, rows: Sequence[Mapping], pictures: Path | None, kind: tuple[str, str | None]) -> list[str]:
    sections, ladder, best = [], at_first_shape(op, device, rows, kind), best_by_shape(op, device, rows, kind)
    drawn = f"{picture(op, device, kind)}.svg"
    if ladder and pictures and (pictures / drawn).exists():
        name = " ".join([op.name, *kind_words(*kind)])
        sections.append(f"![{name}: every step beside its peers on {device}]({pictures.name}/{drawn})\n\n`python cli.py results --plot`")
    if ladder:
        sections.append(_ladder(op, device, ladder, kind))
    if best:
        sections.append(_best(op, device, best, kind))
    return sections


def _options(op: Op, kind: tuple[str, str | None]) -> str:
    """What the command needs to measure this kind."""
    words = zip(("--dtype", "--variant"), kind, usual(op))
    return "".join(f" {option} {name}" for option, name, default in words if name != default)


def _said(kind: tuple[str, str | None]) -> str:
    return "".join(f", {word}" for word in kind_words(*kind))


def _study(study: Study, device: str, rows: Sequence[Mapping], pictures: Path | None) -> str:
    """A study's picture and what follows from its rows, else their table, above its command; and the file that holds the rows."""
    lines = [f"`{study.name}` on {device}: {study.title}."]
    drawn = f"{study.file_stem}-{slug(device)}.svg"
    if pictures and (pictures / drawn).exists():
        lines.append(f"![{study.name} on {device}]({pictures.name}/{drawn})")
    said = study.conclusions(rows)
    lines.append(" ".join(said) if len(said) <= 3 else "\n".join(f"- {sentence}" for sentence in said))
    if not (said and study.plot):
        cells, heads, left = report.study_table(study.columns, rows)
        rule = ["---" if i in left else "---:" for i in range(len(heads))]
        lines.append("\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *cells)))
    kept = f"results/{results.study_file(study.name, device).relative_to(results.root())}"
    draw = f" --plot {study.file_stem}.svg" if study.plot else ""
    lines.append(f"`python cli.py study {study.name}{draw}` ([{len(rows)} rows]({kept}))")
    return "\n\n".join(filter(None, lines))


def _ladder(op: Op, device: str, ladder: Mapping[str, Mapping[str, Mapping]], kind: tuple[str, str | None]) -> str:
    titles = {step.id: step.header[0] for step in op.steps}
    peers = [peer for peer in op.peers if all(peer in by_peer for by_peer in ladder.values())] or op.peers
    rows = [headline(op, by_peer) for by_peer in ladder.values()]
    unit, rates = report.rate_column(rows)
    lines = [(f"`{step}`", titles[step], report.time_text(row["time_s"]), rate, report.share_text(row), *_ratios(peers, by_peer))
             for (step, by_peer), row, rate in zip(ladder.items(), rows, rates)]
    head = (f"`{op.name}` on {device}, {report.shape_text(dict(op.shapes['bench'][0]))}{_said(kind)}, every step "
            f"(a ratio above 1 is faster than the library):")
    table = _markdown(lines, ("step", "idea", "time", unit, "share of the roof", *(f"× {peer}" for peer in peers)), text=2)
    shape = "x".join(map(str, op.shapes["bench"][0].values()))
    return f"{head}\n\n{table}\n\n`python cli.py bench {op.name} --shape {shape}{_options(op, kind)} --save rows.jsonl && {_AFTER}`"


def _best(op: Op, device: str, best: Sequence[Mapping[str, Mapping]], kind: tuple[str, str | None]) -> str:
    rows = [headline(op, by_peer) for by_peer in best]
    peers = list(dict.fromkeys([*op.peers, *sorted(peer for by_peer in best for peer in by_peer if peer)]))  # those of users' files, too
    unit, rates = report.rate_column(rows)
    _, theirs = report.rate_column([by_peer.get(peers[0], row) if peers else row for by_peer, row in zip(best, rows)], "peer_time_s")
    peer = [f"{peers[0]} {unit}"] if peers else []
    lines = [(report.shape_text(row["shape"]), f"`{row['step']}`", report.time_text(row["time_s"]), rate, report.share_text(row),
              *([its] if peer else []), *_ratios(peers, by_peer)) for by_peer, row, rate, its in zip(best, rows, rates, theirs)]
    head = f"`{op.name}` on {device}{_said(kind)}, the fastest step at each shape ({'×'.join(op.dims)}):"
    table = _markdown(lines, ("shape", "step", "time", unit, "share of the roof", *peer, *(f"× {peer}" for peer in peers)), text=2)
    said = "".join(f"\n\n{sentence}" for sentence in filter(None, (_standing(best, peer) for peer in peers)))
    beside = "".join(f" --peer {peer}" for peer in peers) if set(peers) - set(op.peers) else ""
    command = f"python cli.py bench {op.name} --all-shapes{_options(op, kind)}{beside} --save rows.jsonl"
    return f"{head}\n\n{table}{said}\n\n`{command} && {_AFTER}`"


_AFTER = "python cli.py results merge rows.jsonl && python cli.py results --readme"


def _standing(best: Sequence[Mapping[str, Mapping]], peer: str) -> str:
    """What the ratios to a peer come to, as a sentence or two; empty where there are none."""
    rows = [by_peer[peer] for by_peer in best if peer in by_peer and by_peer[peer]["ratio"]]
    if not rows:
        return ""
    ratios = [row["ratio"] for row in rows]
    behind = [report.shape_text(row["shape"]) for row in rows if row["ratio"] < 1]
    text = (f"Beside {peer}: {min(ratios):.3f} to {max(ratios):.3f} times as fast, "
            + (f"slower at {', '.join(behind)}." if behind else f"slower at none of the {len(rows)} shapes."))
    large = [row["ratio"] for row in rows if row["flops"] >= LARGE_FLOPS]
    return text + (f" The geometric mean over the {len(large)} shapes of at least {LARGE_FLOPS / 1e9:.0f} GFLOP is "
                   f"{geometric_mean(large):.3f}." if len(large) > 1 else "")


def _ratios(peers: Sequence[str], by_peer: Mapping[str, Mapping]) -> list[str]:
    return [report.ratio_text(by_peer[peer]["ratio"]) if peer in by_peer else "-" for peer in peers]


def _markdown(lines: Sequence[Sequence[str]], headers: Sequence[str], text: int) -> str:
    """A Markdown table whose first `text` columns are text and the rest right-aligned."""
    rule = ["---" if i < text else "---:" for i in range(len(headers))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headers, rule, *lines))


def with_tables(text: str, rows: Sequence[Mapping], pictures: Path | None = None,
                studies: Mapping[tuple[str, str], Sequence[Mapping]] = EMPTY) -> str:
    """The README's text with the tables of `rows` between the two markers.  Raises BadResults if the markers are not there."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise BadResults(f"the file needs the lines {BEGIN} and {END}, once each and in this order, where the tables shall stand")
    head, tail = text[:text.index(BEGIN)], text[text.index(END):]
    return f"{head}{BEGIN}\n\n{tables(rows, pictures, studies) or 'Nothing has been measured yet.'}\n\n{tail}"


def write_readme(path: Path, rows: Sequence[Mapping], studies: Mapping[tuple[str, str], Sequence[Mapping]] = EMPTY) -> Path:
    """Write the tables into the file, whole or not at all.  Returns the path.  Raises BadResults."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        text = with_tables(path.read_text(encoding="utf-8"), rows, path.parent / "docs", studies)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise BadResults(f"cannot write {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return path
