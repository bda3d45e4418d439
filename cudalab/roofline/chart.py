"""The picture of a roofline: kernels as points over FLOP a byte, under the slope of DRAM and the ceilings of arithmetic."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudalab import plot
from cudalab.devices import Device
from cudalab.errors import BadResults, LabError
from cudalab.report import scaled_text
from cudalab.roofline import labels
from cudalab.roofline.roofs import Roof

COLOURS = ("#b5532a", "#2f6ca3", "#4f7d4f", "#7a4f8f", "#8a7a2f", "#3f8a8a", "#555555")
FONT = 7  # of labels; below that nobody reads them
CROWD = 120  # points whose labels fit
NEAR = 9  # pixels: points so near share a label
WIDE = 30  # characters of a label's line


def draw(points: Sequence[Mapping], known: Mapping[str, Roof], device: Device, file: Path) -> Path:
    """The picture in `file`, .svg or .png.  Returns the file.

    Raises MissingTool without matplotlib, LabError for another kind of file or more points than can be labelled, BadResults where there
    is nothing to draw or the file cannot be written.
    """
    plot.require_file(file)
    shown = [p for p in points if p["flops"]]
    if not shown:
        raise BadResults("none of these kernels does arithmetic: there is nothing to draw on a roofline")
    if len(shown) > CROWD:
        raise LabError(f"{len(shown)} points are more than can be labelled, at most {CROWD}: name fewer ops or steps")
    rc_context, _ = plot.matplotlib()
    with rc_context(plot.RC):
        figure, _ = make(shown, known, device)
        plot.write(figure, file)
    return file


def make(points: Sequence[Mapping], known: Mapping[str, Roof], device: Device):
    """The figure, and the boxes of its labels in pixels: those of the roofs first."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.ticker import FuncFormatter, NullFormatter
    figure = plot.matplotlib()[1](figsize=(9, 5.6), dpi=160)
    canvas, axes = FigureCanvasAgg(figure), figure.add_axes((0.09, 0.1, 0.89, 0.82))
    ceilings = {p["compute"]: known[p["compute"]] for p in points}
    slope, top = known["dram_read"].value, max(roof.value for roof in ceilings.values())
    ridges = [roof.value / slope for roof in ceilings.values()]
    left, right = min(*(p["intensity"] for p in points), *ridges) / 3, max(*(p["intensity"] for p in points), *ridges) * 6
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min(min(map(_rate, points)), left * slope) / 3, top * 3),
             xlabel="FLOP a byte of DRAM (compulsory bytes)", ylabel="TFLOP/s")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y / 1e12:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    lines = [[(left, left * slope), (top / slope, top)]]
    lines += [[(roof.value / slope, roof.value), (right, roof.value)] for roof in ceilings.values()]
    for line in lines:
        axes.plot(*zip(*line), color=plot.INK, linewidth=1.2)
    groups = list(dict.fromkeys(p["kernel"].split("/")[0] for p in points))
    for p in points:
        colour = COLOURS[groups.index(p["kernel"].split("/")[0]) % len(COLOURS)]
        axes.plot(p["intensity"], _rate(p), "o", markersize=4.5, color=colour, fillstyle="full" if p["time_s"] else "none", zorder=3)
    axes.spines[["top", "right"]].set_visible(False)
    hollow = "; hollow: as fast as its roof lets it be" if any(not p["time_s"] for p in points) else ""
    measured = "as measured" if known["dram_read"].measured else "of the architecture"
    axes.set_title(f"{device.name}: kernels under the roofs {measured}{hollow}", loc="left", fontsize=9)
    return figure, _label(axes, canvas.get_renderer(), points, lines, [known["dram_read"], *ceilings.values()])


def _rate(point: Mapping) -> float:
    """FLOP/s that were reached, or that the point's roofs allow."""
    return point["rate_per_s"] or point["flops"] / point["floor_s"]


def _label(axes, renderer, points, lines, roofs) -> list[labels.Box]:
    box, to_pixels, to_data = axes.get_window_extent(renderer), axes.transData.transform, axes.transData.inverted().transform
    (_, right), (x, y) = axes.get_xlim(), lines[0][0]
    at_roofs = [(x * 1.3, y * 1.3)] + [(right / (right / line[0][0]) ** 0.2, line[0][1]) for line in lines[1:]]
    near = labels.clusters([tuple(to_pixels((p["intensity"], _rate(p)))) for p in points], NEAR)
    anchors = [tuple(to_pixels(at)) for at in at_roofs] + [at for at, _ in near]
    words = [f"{'DRAM' if n == 0 else roof.name} {scaled_text(roof.value, 'B/s' if n == 0 else 'FLOP/s')}" for n, roof in enumerate(roofs)]
    words += [_joined([_short(points[i]["kernel"]) for i in members]) for _, members in near]
    taken = [piece for line in lines for piece in labels.along([tuple(to_pixels(at)) for at in line])]
    sizes, bounds = [_size(axes, renderer, text) for text in words], (box.x0 + 2, box.y0 + 2, box.x1, box.y1)
    boxes = labels.place(anchors, sizes, bounds, taken, radius=5.0)
    for number, (text, at, found) in enumerate(zip(words, anchors, boxes)):
        if found is None:
            raise LabError(f"there is no room for the label of {text}: name fewer ops or steps")
        middle = to_data(((found[0] + found[2]) / 2, (found[1] + found[3]) / 2))
        of_roof = number < len(roofs)
        axes.text(*middle, text, fontsize=FONT, ha="center", va="center", style="italic" if of_roof else "normal")
        if not of_roof and not labels.overlap((at[0] - 14, at[1] - 14, at[0] + 14, at[1] + 14), found):
            end = (min(max(at[0], found[0]), found[2]), min(max(at[1], found[1]), found[3]))
            axes.plot(*to_data([at, end]).T, color="#999999", linewidth=0.5, zorder=1)
    return boxes


def _joined(names: Sequence[str]) -> str:
    """One label for several: sgemm/6, 7, 8."""
    parts: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        head, _, rest = name.rpartition("/")
        parts.setdefault(head, []).append(rest)
    return "\n".join(textwrap.fill(f"{head}/" * bool(head) + ", ".join(rest), WIDE, break_on_hyphens=False) for head, rest in parts.items())


def _size(axes, renderer, text: str) -> tuple[float, float]:
    found = axes.text(0.5, 0.5, text, fontsize=FONT, transform=axes.transAxes)
    extent = found.get_window_extent(renderer)
    found.remove()
    return extent.width + 2, extent.height + 2


def _short(kernel: str) -> str:
    """sgemm/05_blocktile_2d -> sgemm/5; others as they are."""
    op, _, step = kernel.partition("/")
    number = step.partition("_")[0]
    return f"{op}/{int(number)}" if number.isdigit() else kernel
