"""The verb over studies: run them, show what they found, save it, draw it."""

import functools
from pathlib import Path

import click

from cudalab.commands import emulated
from cudalab.commands import options as opt
from cudalab.errors import LabError, NoDevice


@click.command()
@click.argument("target", metavar="NAME|PART", required=False)
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Add the rows to this file ('results merge FILE' brings them into results/).")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.svg|png", help="Draw the study.")
@opt.backend
@click.option("--device", metavar="NAME", help='On the emulator: whose limits count, such as "RTX 4060".  [default: H200]')
@opt.as_json
def study(target, save, picture, backend, device, as_json):
    """Measure one thing over a range, as a table, a picture and what follows from them; without a name, list the studies.

    Where there is no GPU a study runs on the emulator at small sizes and counts exactly what it would measure; nothing there is a time.

    Example: python cli.py study vecadd/occupancy --plot occupancy.svg
    """
    from cudalab import counted, gpu, plot, registry, report, results
    from cudalab import study as studying
    if target is None:
        return _list(as_json)
    studies = registry.resolve_studies(target)
    if picture:
        if len(studies) > 1:
            raise LabError(f"--plot draws one study, and '{target}' names {len(studies)}: {', '.join(s.name for s in studies)}")
        plot.require(studies[0], picture)
    arch = emulated.target_of(None, device)
    place = gpu.backend(backend, target=arch, device=counted.device_for(device, arch))
    if place.name == "emulator" and save:
        raise NoDevice("--save needs a measurement, and the emulator times nothing ('doctor' says what is missing for a GPU)")
    if place.name != "emulator" and device:
        raise click.UsageError(f"--device is for the emulator; this is {place.device.name}")
    if save:
        results.append(save, [])  # a file that cannot be written is said now, not after the measuring
    found, failed = [], []
    try:
        for one in studies:
            rows = []
            found.append(dict(study=one.name, title=one.title, rows=rows, conclusions=[]))
            try:
                for row in opt.with_bar(functools.partial(studying.run, one, place)):
                    rows.append(row)
            except LabError as error:
                if len(studies) == 1:
                    raise
                failed.append(error)
                opt.note(f"{one.name}: {error}")
                continue
            # a run is kept whole: part of one would replace what was kept, and nothing follows from part of one
            found[-1]["conclusions"] = one.conclusions(rows)
            if save:
                results.append(save, rows)
            if not as_json:
                click.echo(report.studied(one, rows) + "\n" * (one is not studies[-1]))
            if picture:
                opt.note(f"drawn in {plot.draw_study(one, rows, picture)}")
    finally:  # after Ctrl-C too; JSON is one document, and none where there is nothing but an error
        if as_json and any(one["rows"] for one in found):
            opt.print_json(found)
    if failed:
        raise LabError(f"{len(failed)} of {len(studies)} studies failed, the first: {failed[0]}")


def _list(as_json: bool) -> None:
    from cudalab import registry, report, results
    from cudalab.commands.inspect import study_lines
    kept = results.study_rows()
    lines = [dict(study=s.name, title=s.title, measured=[dict(device=device, date=rows[0]["date"])
                  for (name, device), rows in kept.items() if name == s.name]) for s in registry.studies().values()]
    opt.print_json(lines) if as_json else click.echo(study_lines(lines, report))
