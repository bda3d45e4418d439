"""The verb that shows which lane holds which element."""

from pathlib import Path

import click

from cudalab.commands import emulated
from cudalab.commands import options as opt


@click.command()
@click.argument("what", metavar="INSTRUCTION")
@click.argument("dtype", metavar="[DTYPE]", required=False)
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.svg|png", help="Draw it.")
@opt.backend
@opt.as_json
def fragments(what, dtype, picture, backend, as_json):
    """Show which lane holds which element of an instruction's matrices, found by running it.

    m16n8k16, m16n8k8 and m16n8k32 are mma.sync; m64n8k16 to m64n256k16, and so on, are wgmma; ldmatrix and ldmatrix.trans are the loads;
    swizzle128, swizzle64 and swizzle32 show where TMA puts the sixteen-byte units of a tile.

    \b
    Example: python cli.py fragments m16n8k16 bf16 --plot fragments.svg
             python cli.py fragments m64n16k32 fp8_e4m3
             python cli.py fragments swizzle128
    """
    from cudalab import fragments as probing
    from cudalab import gpu, plot
    if picture:
        plot.require_file(picture)
    place = gpu.backend(backend, target=emulated.target_of(None, None))
    found = probing.layouts(what, dtype, place)
    if as_json:
        opt.print_json([layout.as_dict() for layout in found])
    else:
        cells = "line:place" if found[0].holder == "line" else f"{found[0].holder}:element"
        opt.note(f"{cells}, found by running it on {'the emulator' if place.name == 'emulator' else place.device.name}")
        click.echo("\n\n".join("\n".join(layout.lines()) for layout in found))
    if picture:
        probing.draw(found, f"{what} {dtype or ''}", picture)
        opt.note(f"drawn in {picture}")
