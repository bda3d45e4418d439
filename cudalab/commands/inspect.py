"""Verbs that describe: list, show."""

import click

from cudalab.commands import options as opt
from cudalab.errors import UnknownName


@click.command("list")
@click.argument("op", required=False)
@opt.as_json
def list_(op, as_json):
    """List parts, ops, steps and studies, each step with its latest measured figure, each study with when it was measured.

    Example: python cli.py list sgemm
    """
    from cudalab import parts as lab
    from cudalab import registry, report, results
    if op is not None and op not in registry.ops():
        registry.resolve(op)  # raises, with the nearest names, unless it is a step
        raise UnknownName(f"'{op}' is a step, not an op; the ops are: {', '.join(registry.ops())} ('show {op}' describes the step)")
    latest = {(row["op"], row["step"]): row for row in _default_shape_rows(registry.ops(), results.rows())}
    parts = []
    kept = results.study_rows()
    for part in lab.PARTS:
        ops = [o for o in part.ops if op in (None, o.name)]
        studies = [s for s in getattr(part, "studies", ()) if op is None]
        if ops or studies:
            parts.append(dict(part=part.__name__.rpartition(".")[2], title=part.TITLE, ops=[dict(
                op=o.name, title=o.title, dims=list(o.dims), dtypes=list(o.dtypes), variants=list(o.variants), peers=list(o.peers),
                steps=[dict(step=s.id, title=s.header[0], measured=latest.get((o.name, s.id))) for s in o.steps]) for o in ops],
                studies=[dict(study=s.name, title=s.title, measured=[dict(device=device, date=rows[0]["date"])
                              for (name, device), rows in kept.items() if name == s.name]) for s in studies]))
    if as_json:
        return opt.print_json(parts)
    for part in parts:
        click.echo(report.fold(f"{part['part']}: {part['title']}"))
        for o in part["ops"]:
            click.echo("\n" + report.fold(f"{o['op']}: {o['title']}; dimensions {' '.join(o['dims'])}{_kinds(o)}"))
            click.echo(_steps(o["steps"], report))
        if part["studies"]:
            click.echo("\n" + study_lines(part["studies"], report))


def study_lines(studies, report) -> str:
    """Studies as a table, with where and when each was measured."""
    lines = [(s["study"], s["title"], ", ".join(f"{m['device']}, {m['date'][:10]}" for m in s["measured"])) for s in studies]
    heads = ("study", "what it shows", "measured")
    if not any(line[2] for line in lines):
        lines, heads = [line[:2] for line in lines], heads[:2]
    return report.table(lines, heads, left=range(len(heads)), wrap=1)


def _kinds(op) -> str:
    """The types and variants of an op, where there are several."""
    return "".join(f"; {what} {' '.join(name or 'none' for name in op[what])}" for what in ("dtypes", "variants") if len(op[what]) > 1)


def _default_shape_rows(ops, rows) -> list:
    """Rows at an op's first benchmark shape; where there are several peers, the one the op names first, which comes last here."""
    def rank(row):
        peers = ops[row["op"]].peers
        return -peers.index(row["peer"]) if row["peer"] in peers else -len(peers)
    from cudalab.ladder import usual
    kept = [r for r in rows if r["op"] in ops and r["shape"] == dict(ops[r["op"]].shapes["bench"][0]) and r["protocol"] == "steady"
            and (r["dtype"], r["variant"]) == usual(ops[r["op"]])]
    return sorted(kept, key=lambda row: (row["date"], rank(row)))


def _steps(steps, report) -> str:
    """The ladder as a table; what was measured beside it, where anything was."""
    rows = [s["measured"] for s in steps if s["measured"]]
    if not rows:
        return report.table([(s["step"], s["title"]) for s in steps], ("step", "idea"), left=(0, 1), wrap=1)
    devices = list(dict.fromkeys(row["device"] for row in rows))
    unit, rates = report.rate_column(rows)
    lines, rates = [], iter(rates)
    for s in steps:
        row = s["measured"]
        figure = (next(rates), report.ratio_text(row["ratio"]), row["peer"] or "-", row["device"]) if row else ("",) * 4
        lines.append((s["step"], s["title"], *figure[:3 + (len(devices) > 1)]))
    headers = ("step", "idea", unit, "ratio", "to", "device")[:5 + (len(devices) > 1)]
    where = f"Measured at {report.case_text(rows[0])}" + (f" on {devices[0]}" if len(devices) == 1 else "")
    return f"{report.table(lines, headers, left=(0, 1, 4, 5), wrap=1)}\n\n{where}; a ratio above 1 is faster than the library."


@click.command()
@click.argument("target", metavar="STEP|FILE.cu")
@opt.shape
@opt.kind
@opt.sets
@opt.arch
@opt.user_file
@opt.as_json
def show(target, shapes, dtypes, variants, sets, arch, as_json, **own):
    """Describe a step: its idea, its launches, the resources it takes, how many blocks fit an SM, its instruction mix.

    Example: python cli.py show step5 --arch sm_89
    """
    from cudalab import report
    settings = opt.assignments(sets)
    step = opt.one_step(target, settings, own)
    found = [report.compiled(plan, arch or opt.DEFAULT_ARCH) for plan in opt.plans(step, shapes, settings, dtypes, variants)]
    if as_json:
        return opt.print_json(found if len(found) > 1 else found[0])
    click.echo("\n\n".join(report.static(one, prose=True) for one in found))
