"""The picture of a ladder: what each step reaches at the op's first benchmark shape, with the peers as lines across."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudalab import ladder, registry, report
from cudalab.errors import BadResults, MissingTool

INK, BAR, BEST, LINES = "#333333", "#9fb8cf", "#2f6ca3", (("#b5532a", "-"), ("#222222", (0, (2, 3))), ("#4f7d4f", (0, (6, 3))))

STYLE = {"font.size": 9, "svg.hashsalt": "cudalab", "svg.fonttype": "none", "text.color": INK, "axes.edgecolor": INK}


def draw(rows: Sequence[Mapping], folder: Path) -> list[Path]:
    """A bar picture for every op and device in `rows`, as <op>-<device>.svg and .png in `folder`.  Returns the files.

    Raises MissingTool without matplotlib, BadResults if there is nothing to draw or the folder cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingTool('matplotlib is not installed, so nothing can be drawn: pip install -e ".[plot]"') from None
    files = []
    for op in registry.ops().values():
        for device in dict.fromkeys(row["device"] for row in rows if row["op"] == op.name):
            for kind in ladder.kinds(op, device, rows):
                steps = ladder.at_first_shape(op, device, rows, kind)
                if not steps:
                    continue
                with rc_context(STYLE):
                    figure = Figure(figsize=(8, 0.42 * len(steps) + 1.6), layout="constrained")
                    _bars(figure.subplots(), op, device, steps)
                    files += _save(figure, folder / ladder.picture(op, device, kind))
    if not files:
        raise BadResults("nothing measured at any op's first benchmark shape: 'bench OP --save FILE' and 'results merge FILE' bring it in")
    return files


def _save(figure, path: Path) -> list[Path]:
    """As SVG and PNG beside each other; no date inside: the same rows give the same files."""
    files = [path.with_name(f"{path.name}.{suffix}") for suffix in ("svg", "png")]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for file in files:
            figure.savefig(file, dpi=160, metadata={"Date": None} if file.suffix == ".svg" else {"Software": None})
    except OSError as error:
        raise BadResults(f"cannot write into {path.parent}: {error.strerror}") from None
    return files


def _bars(axes, op, device: str, steps: Mapping[str, Mapping[str, Mapping]]) -> None:
    rows = [ladder.beside_first_peer(op, by_peer) for by_peer in steps.values()]
    amount, scale = (op.rate, 1e9 if op.rate == "bytes" else 1e12)
    rates = [row[amount] / row["time_s"] / scale for row in rows]
    axes.barh(list(steps), rates, color=[BEST if rate == max(rates) else BAR for rate in rates], height=0.7)
    for place, row in enumerate(rows):  # figures in a column of their own, where no line crosses them
        axes.text(1.06, place, report.rate_text(row), transform=axes.get_yaxis_transform(), va="center", ha="right")
    axes.invert_yaxis()
    for peer, (colour, dashes) in zip(op.peers, itertools.cycle(LINES)):
        times = [by_peer[peer]["peer_time_s"] for by_peer in steps.values() if peer in by_peer and by_peer[peer]["peer_time_s"]]
        if times:
            rate = rows[0][amount] / sorted(times)[len(times) // 2] / scale  # the median of the peer's own measurements
            axes.axvline(rate, color=colour, linewidth=1.5, linestyle=dashes, label=f"{peer} {rate:.{0 if op.rate == 'bytes' else 1}f}")
    axes.set_title(f"{op.name} {report.case_text(rows[0])} on {device}", loc="left")
    axes.set_xlabel(report.rate_unit(op.name))
    axes.margins(x=0.05, y=0.02)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=max(1, len(op.peers)), frameon=False)
