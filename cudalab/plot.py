"""Pictures: of a ladder, what each step reaches at the op's first benchmark shape, with the peers as lines across; of a study, its own."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudalab import ladder, registry, report
from cudalab.errors import BadResults, LabError, MissingTool
from cudalab.results import slug
from cudalab.study import Study

INK, BAR, BEST, LINES = "#333333", "#9fb8cf", "#2f6ca3", (("#b5532a", "-"), ("#222222", (0, (2, 3))), ("#4f7d4f", (0, (6, 3))))
RC = {"font.size": 9, "svg.hashsalt": "cudalab", "svg.fonttype": "none", "text.color": INK, "axes.edgecolor": INK}


def draw(rows: Sequence[Mapping], folder: Path) -> list[Path]:
    """A bar picture for every op and device in `rows`, as <op>-<device>.svg in `folder`.  Returns the files.

    Raises MissingTool without matplotlib, BadResults if there is nothing to draw or the folder cannot be written.
    """
    rc_context, Figure = matplotlib()
    files = []
    for op in registry.ops().values():
        for device in dict.fromkeys(row["device"] for row in rows if row["op"] == op.name):
            for kind in ladder.kinds(op, device, rows):
                steps = ladder.at_first_shape(op, device, rows, kind)
                if not steps:
                    continue
                with rc_context(RC):
                    figure = Figure(figsize=(8, 0.42 * len(steps) + 1.6), layout="constrained")
                    _bars(figure.subplots(), op, device, steps)
                    files.append(write(figure, folder / f"{ladder.picture(op, device, kind)}.svg"))
    if not files:
        raise BadResults("nothing measured at any op's first benchmark shape: 'bench OP --save FILE' and 'results merge FILE' bring it in")
    return files


def require(study: Study, file: Path) -> None:
    """Raise LabError for a study without a picture or a file that is not .svg or .png, MissingTool without matplotlib."""
    if study.plot is None:
        raise LabError(f"{study.name} has no picture: its table is all there is")
    require_file(file)


def require_file(file: Path) -> None:
    """Raise LabError for a file that is not .svg or .png or whose folder is not there, MissingTool without matplotlib."""
    if file.suffix not in (".svg", ".png"):
        raise LabError(f"'{file}' is not a picture: name a file that ends in .svg or .png")
    if not file.parent.is_dir():
        raise LabError(f"'{file}': there is no folder {file.parent}; make it, or name another file")
    matplotlib()


def draw_study(study: Study, rows: Sequence[Mapping], file: Path) -> Path:
    """The study's picture in `file`, .svg or .png.  Raises as `require` does, and BadResults if the file cannot be written."""
    require(study, file)
    with matplotlib()[0](RC):
        return write(_study_figure(study, rows), file)


def draw_studies(kept: Mapping[tuple[str, str], Sequence[Mapping]], folder: Path) -> list[Path]:
    """The picture of every kept study that has one, as <part>-<study>-<device>.svg in `folder`.  Returns the files."""
    files = []
    for (name, device), rows in kept.items():
        study = registry.studies().get(name)
        if study and study.plot:
            with matplotlib()[0](RC):
                files.append(write(_study_figure(study, rows), folder / f"{study.file_stem}-{slug(device)}.svg"))
    return files


def _study_figure(study: Study, rows: Sequence[Mapping]):
    figure = matplotlib()[1](figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    study.plot(axes, rows)
    axes.set_title(f"{study.title}\n{rows[0]['device']}", loc="left", fontsize=9)
    return figure


def matplotlib():
    """matplotlib's rc_context and Figure.  Raises MissingTool."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingTool('matplotlib is not installed, so nothing can be drawn: pip install -e ".[plot]"') from None
    return rc_context, Figure


def write(figure, file: Path) -> Path:
    """Save a figure, as its file's suffix says.  Returns the file.  Raises BadResults if it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # no date inside: the same rows give the same file
        figure.savefig(file, dpi=160, metadata={"Date": None} if file.suffix == ".svg" else {"Software": None})
    except OSError as error:
        raise BadResults(f"cannot write {file}: {error.strerror}") from None
    return file


def _bars(axes, op, device: str, steps: Mapping[str, Mapping[str, Mapping]]) -> None:
    rows = [ladder.headline(op, by_peer) for by_peer in steps.values()]
    rates, unit = [report.rate(row) for row in rows], report.rate_unit(rows[0])
    axes.barh(list(steps), rates, color=[BEST if rate == max(rates) else BAR for rate in rates], height=0.7)
    for place, row in enumerate(rows):  # figures in a column of their own, where no line crosses them
        axes.text(1.06, place, report.rate_text(row), transform=axes.get_yaxis_transform(), va="center", ha="right")
    axes.invert_yaxis()
    for peer, (colour, dashes) in zip(op.peers, itertools.cycle(LINES)):
        theirs = [report.rate(by_peer[peer], "peer_time_s") for by_peer in steps.values() if peer in by_peer]
        theirs = sorted(filter(None, theirs))
        if theirs:
            rate = theirs[(len(theirs) - 1) // 2]  # the median of the peer's own measurements
            axes.axvline(rate, color=colour, linewidth=1.5, linestyle=dashes, label=f"{peer} {report.number_text(rate, unit)}")
    axes.set_title(f"{op.name} {report.case_text(rows[0])} on {device}", loc="left")
    axes.set_xlabel(unit)
    axes.margins(x=0.05, y=0.02)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=max(1, len(op.peers)), frameon=False)
