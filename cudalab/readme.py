"""The results as Markdown, between two markers of the README: a line a part, then its ladders and studies, each above its command."""

import contextlib
import os
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cudalab import ladder, parts, report, results
from cudalab.errors import BadResults
from cudalab.peers import PEERS
from cudalab.problem import kind_words
from cudalab.results import slug
from cudalab.spec import Op
from cudalab.study import Study

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
EMPTY = types.MappingProxyType({})
MANY = 3  # kinds and studies of a part; in one with more, what comes second is folded
PARAGRAPH, SENTENCES = 3, 5  # sentences of a study that make a paragraph, not a list; that are never folded
Kind = tuple[str, str | None]  # dtype and variant


def tables(rows: Sequence[Mapping], pictures: Path | None = None, studies: Mapping[tuple[str, str], Sequence[Mapping]] = EMPTY) -> str:
    """Markdown: a list of what the parts come to; then, part by part, for every op and device its ladder and its best step at all shapes,
    for every study what it found, each above the command that makes it.

    pictures: a folder beside the file that the text is for; a picture of a ladder or a study in it (see `plot`) stands before its table.
    studies: kept rows by (study, device).
    """
    devices = list(dict.fromkeys([*(row["device"] for row in rows), *(device for _, device in studies)]))
    lines, sections = {device: [] for device in devices}, []
    for part in parts.PARTS:
        title, inside = f"{part.__name__.rpartition('_')[2]}: {part.TITLE}", []
        for device in devices:
            found, headline = _of_part(part, device, rows, pictures, studies)
            if found:
                inside += found
                lines[device].append(f"- [{title}](#{anchor(title)}){f': {headline}' if headline else ''}")
        sections += [f"### {title}", *inside] if inside else []
    lists = [f"On {device}: {_LIST}:\n\n" + "\n".join(found) for device, found in lines.items() if found]
    return "\n\n".join([*lists, *sections])


_LIST = ("the fastest step at each ladder's first shape, and how many times as fast as a peer it is, as the geometric mean over the shapes "
         f"of at least {ladder.LARGE_FLOPS / 1e9:.0f} GFLOP (over all where none is so large)")


def anchor(heading: str) -> str:
    """What GitHub makes of a heading, for links to it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _of_part(part, device: str, rows: Sequence[Mapping], pictures: Path | None,
             studies: Mapping[tuple[str, str], Sequence[Mapping]]) -> tuple[list[str], str]:
    """What a part has on a device: its sections, and what they come to in one line."""
    kinds = {op: found for op in part.ops if (found := ladder.kinds(op, device, rows))}
    kept = [(study, studies[study.name, device]) for study in getattr(part, "studies", ()) if (study.name, device) in studies]
    many = sum(map(len, kinds.values())) + len(kept) > MANY
    sections = [section for op, found in kinds.items() for section in _of_op(op, device, rows, found, pictures, many)]
    sections += [_study(study, device, found, pictures, many) for study, found in kept]
    words = [_headline(op, device, rows, found) for op, found in kinds.items()]
    headline = "; ".join(filter(None, words)) or (f"{len(kept)} stud{'ies' if len(kept) > 1 else 'y'}" if kept else "")
    return sections, headline


def _headline(op: Op, device: str, rows: Sequence[Mapping], kinds: Sequence[Kind]) -> str:
    """The op's best step, of the kind that was measured at most shapes; empty where only single steps were measured."""
    led = [ladder.best_by_shape(op, device, rows, kind) for kind in kinds if ladder.is_led(op, device, rows, kind)]
    best = max(led, key=len, default=())
    if not best:
        return ""
    row = ladder.headline(op, best[0])
    speed = f"{report.rate_text(row)} {report.rate_unit(row)}, {report.share_text(row)}"
    return "; ".join(filter(None, (f"`{op.name}/{row['step']}` {speed}, at {report.case_text(row)}", _means_text(op, best))))


def _means_text(op: Op, best: Sequence[Mapping[str, Mapping]]) -> str:
    """The geometric means beside all peers: 1.077 × cublas over 6 shapes, 1.073 × cublaslt over 6."""
    words = []
    for peer in ladder.peers_of(op, best):
        ratios = [row["ratio"] for row in ladder.counted_in_mean(ladder.beside(best, peer))]
        if ratios:
            count = f"{len(ratios)}" if words else f"{len(ratios)} shape{'s' * (len(ratios) > 1)}"
            words.append(f"{ladder.geometric_mean(ratios):.3f} × {peer} over {count}")
    return ", ".join(words)


def _of_op(op: Op, device: str, rows: Sequence[Mapping], kinds: Sequence[Kind], pictures: Path | None, many: bool) -> list[str]:
    """Pictures and tables of the op's kinds; in a part of many sections those tables folded that are not of its first kind."""
    sections, apart = [], []
    for kind in kinds:
        steps, best = ladder.at_first_shape(op, device, rows, kind), ladder.best_by_shape(op, device, rows, kind)
        if not ladder.is_led(op, device, rows, kind):
            apart.append((kind, best))
            continue
        drawn = f"{ladder.picture(op, device, kind)}.svg"
        found = ([_ladder(op, device, steps, kind)] if steps else []) + ([_best(op, device, best, kind)] if best else [])
        found += [_sustained(op, by_peers, kind)] if best and (by_peers := ladder.sustained(op, device, rows, kind)) else []
        if found and many and sections:
            means = _means_text(op, best)
            which = f"{_which(op, steps, kind)}, and " if steps else ""
            what = f"{op.name}{_said(kind)}: {which}the fastest at each shape{f'; {means}' if means else ''}"
            found = [_folded(what, found)]
        if steps and pictures and (pictures / drawn).exists():
            name = " ".join([op.name, *kind_words(*kind)])
            sections.append(f"![{name}: {_which(op, steps, kind)} beside its peers on {device}]({pictures.name}/{drawn})\n\n"
                            f"`python cli.py results --plot`")
        sections += found
    return sections + ([_apart(op, device, apart)] if any(best for _, best in apart) else [])


def _which(op: Op, steps: Iterable[str], kind: Kind) -> str:
    return "every step" if ladder.is_whole(op, steps, kind) else "the steps measured"


def _folded(summary: str, sections: Sequence[str]) -> str:
    """Sections that a click unfolds; the empty lines make Markdown of what is inside."""
    return "\n\n".join([f"<details><summary>{summary}</summary>", *sections, "</details>"])


def _apart(op: Op, device: str, found: Sequence[tuple[Kind, Sequence[Mapping[str, Mapping]]]]) -> str:
    """What was measured of single steps that are not the ladder's best, in one table."""
    all_best = [by_peer for _, best in found for by_peer in best]
    rows, peers = [ladder.headline(op, by_peer) for by_peer in all_best], ladder.peers_of(op, all_best)
    unit, rates = report.rate_column(rows)
    lines = [(f"`{row['step']}`", report.case_text(row), rate, report.share_text(row), *_ratios(peers, by_peer))
             for by_peer, row, rate in zip(all_best, rows, rates)]
    table = _markdown(lines, ("step", "shape", unit, "share of the roof", *(f"× {peer}" for peer in peers)), text=2)
    numbers, commands = {step.id: step.number for step in op.steps}, []
    for kind, best in found:
        if best:
            here = [ladder.headline(op, by_peer) for by_peer in best]
            shapes = " ".join("x".join(map(str, row["shape"].values())) for row in here)
            commands.append(f"python cli.py bench {op.name}/{numbers[here[0]['step']]} --shape "
                            + (f'"{shapes}"' if " " in shapes else shapes) + f"{_options(op, kind)} --save rows.jsonl")
    return f"`{op.name}` on {device}, also measured:\n\n{table}\n\n`{' && '.join([*commands, _AFTER])}`"


def _options(op: Op, kind: Kind) -> str:
    """What the command needs to measure this kind."""
    words = zip(("--dtype", "--variant"), kind, ladder.usual(op))
    return "".join(f" {option} {name}" for option, name, default in words if name != default)


def _said(kind: Kind) -> str:
    return "".join(f", {word}" for word in kind_words(*kind))


def _study(study: Study, device: str, rows: Sequence[Mapping], pictures: Path | None, many: bool) -> str:
    """A study's picture and what follows from its rows, else their table, above its command; and the file that holds the rows.

    many: it is one of many, so its table, and what it says after a few sentences, are folded.
    """
    lines = [f"`{study.name}` on {device}: {study.title}."]
    drawn = f"{study.file_stem}-{slug(device)}.svg"
    if pictures and (pictures / drawn).exists():
        lines.append(f"![{study.name} on {device}]({pictures.name}/{drawn})")
    said = study.conclusions(rows)
    bullets = [f"- {sentence}" for sentence in said]
    lines.append(" ".join(said) if len(said) <= PARAGRAPH else "\n".join(bullets[:SENTENCES] if many else bullets))
    if many and len(said) > SENTENCES:
        lines.append(_folded(f"{len(said) - SENTENCES} more of {study.name}", ["\n".join(bullets[SENTENCES:])]))
    if not (said and study.plot):
        cells, heads, left = report.study_table(study.columns, rows)
        rule = ["---" if i in left else "---:" for i in range(len(heads))]
        table = "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *cells))
        lines.append(_folded(f"the rows of {study.name}", [table]) if many else table)
    kept = f"results/{results.study_file(study.name, device).relative_to(results.root())}"
    draw = f" --plot {study.file_stem}.svg" if study.plot else ""
    lines.append(f"`python cli.py study {study.name}{draw}` ([{len(rows)} rows]({kept}))")
    return "\n\n".join(filter(None, lines))


def _ladder(op: Op, device: str, steps: Mapping[str, Mapping[str, Mapping]], kind: Kind) -> str:
    titles = {step.id: step.header[0] for step in op.steps}
    peers = [peer for peer in op.peers if all(peer in by_peer for by_peer in steps.values())] or ladder.peers_of(op, steps.values())
    rows = [ladder.headline(op, by_peer) for by_peer in steps.values()]
    unit, rates = report.rate_column(rows)
    lines = [(f"`{step}`", titles[step], report.time_text(row["time_s"]), rate, report.share_text(row), *_ratios(peers, by_peer))
             for (step, by_peer), row, rate in zip(steps.items(), rows, rates)]
    head = (f"`{op.name}` on {device}, {report.shape_text(dict(op.shapes['bench'][0]))}{_said(kind)}, {_which(op, steps, kind)} "
            f"(a ratio above 1 is faster than the library):")
    table = _markdown(lines, ("step", "idea", "time", unit, "share of the roof", *(f"× {peer}" for peer in peers)), text=2)
    shape = "x".join(map(str, op.shapes["bench"][0].values()))
    return f"{head}\n\n{table}\n\n`python cli.py bench {op.name} --shape {shape}{_options(op, kind)} --save rows.jsonl && {_AFTER}`"


def _best(op: Op, device: str, best: Sequence[Mapping[str, Mapping]], kind: Kind) -> str:
    rows = [ladder.headline(op, by_peer) for by_peer in best]
    peers = ladder.peers_of(op, best)
    unit, rates = report.rate_column(rows)
    alone = [{**row, "peer_time_s": None} for row in rows]  # for a shape that the first peer was not measured at
    _, theirs = report.rate_column([by_peer.get(peers[0], row) if peers else row for by_peer, row in zip(best, alone)], "peer_time_s")
    peer = [f"{peers[0]} {unit}"] if peers else []
    lines = [(report.shape_text(row["shape"]), f"`{row['step']}`", report.time_text(row["time_s"]), rate, report.share_text(row),
              *([its] if peer else []), *_ratios(peers, by_peer)) for by_peer, row, rate, its in zip(best, rows, rates, theirs)]
    head = f"`{op.name}` on {device}{_said(kind)}, the fastest step at each shape ({'×'.join(op.dims)}):"
    table = _markdown(lines, ("shape", "step", "time", unit, "share of the roof", *peer, *(f"× {peer}" for peer in peers)), text=2)
    said = "".join(f"\n\n{sentence}{_begun_early(op, rows, peer)}" for peer in peers if (sentence := _standing(best, peer)))
    command = f"python cli.py bench {op.name} --all-shapes{_options(op, kind)}{_own_peers(op, peers)} --save rows.jsonl"
    return f"{head}\n\n{table}{said}\n\n`{command} && {_AFTER}`"


def _sustained(op: Op, by_peers: Sequence[Mapping[str, Mapping]], kind: Kind) -> str:
    """What of the kind was measured over two seconds on end, in one line, above its commands."""
    numbers, words, shapes = {step.id: step.number for step in op.steps}, [], {}
    for by_peer in by_peers:
        row = ladder.headline(op, by_peer)
        peers = [peer for peer in ladder.peers_of(op, [by_peer]) if by_peer[peer]["ratio"]]
        beside = ", ".join(f"{report.ratio_text(by_peer[peer]['ratio'])} × {peer}" for peer in peers)
        words.append(f"{report.shape_text(row['shape'])} `{row['step']}` "
                     + (beside or f"{report.rate_text(row)} {report.rate_unit(row)}, {report.share_text(row)}"))
        shapes.setdefault(row["step"], []).append("x".join(map(str, row["shape"].values())))
    own = _own_peers(op, ladder.peers_of(op, by_peers))
    commands = [f"python cli.py bench {op.name}/{numbers[step]} --shape " + (f'"{" ".join(found)}"' if len(found) > 1 else found[0])
                + f"{_options(op, kind)}{own} --sustained --save rows.jsonl" for step, found in shapes.items()]
    return f"Sustained ([two seconds on end](#how-it-is-measured)): {'; '.join(words)}.\n\n`{' && '.join([*commands, _AFTER])}`"


def _own_peers(op: Op, peers: Sequence[str]) -> str:
    """The options that name the peers, where some are not the op's own."""
    return "".join(f" --peer {peer}" for peer in peers) if set(peers) - set(op.peers) else ""


_AFTER = "python cli.py results merge rows.jsonl && python cli.py results --readme"


def _standing(best: Sequence[Mapping[str, Mapping]], peer: str) -> str:
    """What the ratios to a peer come to, as a sentence or two; empty where there are none."""
    rows = ladder.beside(best, peer)
    if not rows:
        return ""
    ratios = [row["ratio"] for row in rows]
    if len(rows) == 1:
        return f"Beside {peer}: {ratios[0]:.3f} times as fast, at {report.shape_text(rows[0]['shape'])}."
    behind = [report.shape_text(row["shape"]) for row in rows if round(row["ratio"], 3) < 1]
    text = (f"Beside {peer}: {min(ratios):.3f} to {max(ratios):.3f} times as fast, "
            + (f"slower at {', '.join(behind)}." if behind else f"slower at none of the {len(rows)} shapes."))
    counted = [row["ratio"] for row in ladder.counted_in_mean(rows)]
    which = f" of at least {ladder.LARGE_FLOPS / 1e9:.0f} GFLOP" if any(row["flops"] >= ladder.LARGE_FLOPS for row in rows) else ""
    return text + (f" The geometric mean over the {len(counted)} shapes{which} is {ladder.geometric_mean(counted):.3f}."
                   if len(counted) > 1 else "")


def _begun_early(op: Op, rows: Sequence[Mapping], peer: str) -> str:
    """What a ratio to a peer that only moves bytes owes to steps that begin early, as that peer does not; empty where none does."""
    if peer not in PEERS or PEERS[peer].computes:
        return ""
    steps = {step.id: step for step in op.steps}
    early = list(dict.fromkeys(f"`{row['step']}`" for row in rows if any(
        launch.early for launch in steps[row["step"]].plan(op.problem(row["shape"], row["dtype"], row["variant"])).launches)))
    return (f" The {peer} is a plain launch, which begins when the call before it has ended; {' and '.join(early)} may begin while that "
            f"one ends (programmatic dependent launch), so part of a ratio near or above 1 is that.") if early else ""


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
    except UnicodeDecodeError:
        raise BadResults(f"{path} is not UTF-8") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return path
