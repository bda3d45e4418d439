"""The picture of a ladder: what each step reaches at the op's first benchmark shape, with the peers as lines across."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudalab import ladder, registry, report
from cudalab.errors import BadResults, MissingTool
from cudalab.results import slug

INK, BAR, BEST, LINES = "#333333", "#9fb8cf", "#2f6ca3", (("#b5532a", "-"), ("#222222", (0, (2, 3))), ("#4f7d4f", (0, (6, 3))))


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
            steps = ladder.at_first_shape(op, device, rows)
            if not steps:
                continue
            with rc_context({"font.size": 9, "svg.hashsalt": "cudalab", "svg.fonttype": "none", "text.color": INK, "axes.edgecolor": INK}):
                figure = Figure(figsize=(8, 0.42 * len(steps) + 1.6), layout="constrained")
                _bars(figure.subplots(), op, device, steps)
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    for suffix in ("svg", "png"):
                        files.append(folder / f"{op.name}-{slug(device)}.{suffix}")
                        # no date inside: the same rows give the same file
                        figure.savefig(files[-1], dpi=160, metadata={"Date": None} if suffix == "svg" else {"Software": None})
                except OSError as error:
                    raise BadResults(f"cannot write into {folder}: {error.strerror}") from None
    if not files:
        raise BadResults("nothing measured at any op's first benchmark shape: 'bench OP --save FILE' and 'results merge FILE' bring it in")
    return files


def _bars(axes, op, device: str, steps: Mapping[str, Mapping[str, Mapping]]) -> None:
    rows = [by_peer.get(op.peers[0]) or next(iter(by_peer.values())) for by_peer in steps.values()]
    rates = [row["flops"] / row["time_s"] / 1e12 for row in rows]
    axes.barh(list(steps), rates, color=[BEST if rate == max(rates) else BAR for rate in rates], height=0.7)
    for place, row in enumerate(rows):  # figures in a column of their own, where no line crosses them
        axes.text(1.06, place, report.rate_text(row), transform=axes.get_yaxis_transform(), va="center", ha="right")
    axes.invert_yaxis()
    for peer, (colour, dashes) in zip(op.peers, itertools.cycle(LINES)):
        times = [by_peer[peer]["peer_time_s"] for by_peer in steps.values() if peer in by_peer and by_peer[peer]["peer_time_s"]]
        if times:
            rate = rows[0]["flops"] / sorted(times)[len(times) // 2] / 1e12  # the median of the peer's own measurements
            axes.axvline(rate, color=colour, linewidth=1.5, linestyle=dashes, label=f"{peer} {rate:.1f}")
    axes.set_title(f"{op.name} {report.shape_text(dict(op.shapes['bench'][0]))} on {device}", loc="left")
    axes.set_xlabel("TFLOP/s")
    axes.margins(x=0.05, y=0.02)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(op.peers), frameon=False)
