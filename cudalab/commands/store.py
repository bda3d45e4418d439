"""Verbs about what is kept and what is installed: results, doctor."""

from pathlib import Path

import click

from cudalab.commands import options as opt
from cudalab.errors import LabError, UnknownName


@click.group(invoke_without_command=True)
@click.option("--step", "wanted", metavar="STEP|OP", help="Only rows of this step or op.")
@click.option("--device", metavar="TEXT", help="Only rows of devices whose name holds this.")
@click.option("--readme", is_flag=False, flag_value="", metavar="[FILE]",
              help="Write the tables, of the rows asked for, between the markers of README.md.")
@click.option("--plot", is_flag=False, flag_value="", metavar="[FOLDER]",
              help="Draw each ladder against its peers, and each study, as SVG, into docs/.")
@opt.as_json
@click.pass_context
def results(ctx, wanted, device, readme, plot, as_json):
    """Show what was measured: the newest row of each step, shape, device, peer and protocol.

    \b
    Example: python cli.py results --step step5
             python cli.py results merge rows.jsonl
             python cli.py results --readme
    """
    if ctx.invoked_subcommand:
        return
    from cudalab import registry, report
    from cudalab import results as store
    from cudalab.readme import write_readme
    from cudalab.roofline import roofs
    from cudalab.spec import KERNELS, Op
    store.require_root()
    everything, of_studies = roofs.by_present_roofs(store.rows()), store.study_rows()
    devices = dict.fromkeys([row["device"] for row in everything] + [on for _, on in of_studies])
    if device is not None and devices and not any(device.lower() in name.lower() for name in devices):
        raise UnknownName(f"no device with rows has '{device}' in its name; there are: {', '.join(devices)}")
    rows = [row for row in everything if device is None or device.lower() in row["device"].lower()]
    if wanted is not None:
        named = registry.resolve(wanted)
        rows = [r for r in rows if (r["op"] == named.name if isinstance(named, Op) else (r["op"], r["step"]) == (named.op.name, named.id))]
    studies = {(name, on): found for (name, on), found in of_studies.items()
               if wanted is None and (device is None or device.lower() in on.lower())}
    written = []
    if plot is not None:
        from cudalab import plot as drawing
        folder = Path(plot or KERNELS.parent / "docs")
        written += drawing.draw_studies(studies, folder)
        if rows or not written:
            written += drawing.draw(rows, folder)
    if readme is not None:
        written.append(write_readme(Path(readme or KERNELS.parent / "README.md"), rows, studies))
    if written:
        return opt.print_json([str(f) for f in written]) if as_json else click.echo("\n".join(map(str, written)))
    if as_json:
        return opt.print_json(rows + [row for found in studies.values() for row in found])
    if not rows and not studies:
        which = "rows of what was asked for" if device is not None or wanted is not None else "rows"
        return opt.note(f"no {which} in {store.root()} yet: 'bench STEP --save FILE' measures, 'results merge FILE' brings them in")
    for name in dict.fromkeys(row["device"] for row in rows):
        mine = sorted((r for r in rows if r["device"] == name), key=lambda r: (r["op"], r["step"], -r["flops"], r["peer"] or ""))
        click.echo(f"{name}\n\n{report.measured(mine)}\n")
    if studies:
        lines = [(name, name_of_device, len(found), found[0]["date"]) for (name, name_of_device), found in studies.items()]
        click.echo(report.table(lines, ("study", "device", "rows", "measured"), left=(0, 1, 3)))


@results.command()
@click.argument("file", type=click.Path(path_type=Path))
@opt.as_json
def merge(file, as_json):
    """Bring the rows of FILE, written by 'bench --save' or 'study --save', into results/.  One damaged row and none is taken.

    Rows of a study replace those of its last run.

    Example: python cli.py results merge rows.jsonl
    """
    from cudalab import results as store
    if not file.is_file():
        raise LabError(f"there is no file {file}; 'bench STEP --save FILE' writes one")
    added, kept = store.merge(file), store.merge_studies(file)
    if unknown := _unknown(store.read(file)):
        opt.note(f"{file} has rows of what this lab does not have, which only 'results' shows: {', '.join(unknown)}")
    if as_json:
        return opt.print_json({**added, **{f"{study} on {device}": count for (study, device), count in kept.items()}})
    if not added and not kept:
        opt.note(f"{file} holds no rows")
    for device, count in added.items():
        click.echo(f"{device}: {count} new row{'s' * (count != 1)} in {store.root() / store.slug(device)}.jsonl")
    for (study, device), count in kept.items():
        what = f"{count} row{'s' * (count != 1)} in" if count else "nothing newer than"
        click.echo(f"{study} on {device}: {what} {store.study_file(study, device)}")


def _unknown(rows) -> list[str]:
    """The ops, steps and studies of rows that are not the lab's: of a newer one, or of own files."""
    from cudalab import registry
    known = {(step.op.name, step.id) for step in registry.steps()}
    names = [row["study"] if "study" in row else f"{row['op']}/{row['step']}" for row in rows
             if (row["study"] not in registry.studies() if "study" in row else (row["op"], row["step"]) not in known)]
    return list(dict.fromkeys(names))


@click.command()
@opt.as_json
def doctor(as_json):
    """Say what this machine has and lacks, and what installs each thing that is missing.

    Example: python cli.py doctor
    """
    import dataclasses

    from cudalab import doctor as examination
    from cudalab import report
    findings = examination.examine()
    if as_json:
        return opt.print_json(dict(findings=[dataclasses.asdict(f) for f in findings], warnings=examination.warnings()))
    lines = [(f.what, "found" if f.found else "missing", f.detail) for f in findings]
    click.echo(report.table(lines, ("what", "", "which, or why not"), left=range(3), wrap=2))
    missing = [f for f in findings if not f.found]
    if missing:
        click.echo("\nWhat gets what is missing:")
    for f in missing:
        click.echo(f"\n  {f.what}, for {f.needed_for}:\n      {f.install}")
    for warning in examination.warnings():
        opt.note(f"Warning: {warning}")
