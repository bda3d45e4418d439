"""What the results say of a ladder: the figures of its tables and its picture."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from cudalab.results import slug
from cudalab.spec import Op

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
    """Step id -> peer -> row, in the order of the ladder, at the op's first benchmark shape under the steady protocol; empty where that has
    fewer than two steps: one is no ladder."""
    found = {step.id: {} for step in op.steps}
    for row in _of(op, device, rows, kind or usual(op)):
        if row["shape"] == dict(op.shapes["bench"][0]) and row["step"] in found:
            found[row["step"]][row["peer"]] = row
    found = {step: by_peer for step, by_peer in found.items() if by_peer}
    return found if len(found) > 1 else {}


def is_whole(op: Op, steps: Iterable[str], kind: tuple[str, str | None]) -> bool:
    """Whether the steps are all those that take the op's first benchmark shape in this kind."""
    first = op.problem(dict(op.shapes["bench"][0]), *kind)
    return {step.id for step in op.steps if kind in step.kinds() and not step.refuses(first)} <= set(steps)


def sustained(op: Op, device: str, rows: Iterable[Mapping], kind: tuple[str, str | None]) -> list[dict[str, Mapping]]:
    """Peer -> row for each benchmark shape and step that was measured under the sustained protocol, in the op's order."""
    rows = list(_of(op, device, rows, kind, "sustained"))
    found = [{row["peer"]: row for row in rows if (row["shape"], row["step"]) == (dict(shape), step.id)}
             for shape in op.shapes["bench"] for step in op.steps]
    return [by_peer for by_peer in found if by_peer]


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


def is_led(op: Op, device: str, rows: Sequence[Mapping], kind: tuple[str, str | None]) -> bool:
    """Whether the fastest steps of a kind are the ladder's: not where one step alone was measured that is neither the last that takes the
    kind nor the fastest anywhere that several steps were measured."""
    alone = _alone(op, device, rows, kind)
    if alone is None or alone == [step.id for step in op.steps if kind in step.kinds()][-1:]:
        return True
    several = [other for other in kinds(op, device, rows) if _alone(op, device, rows, other) is None]
    return any(headline(op, by_peer)["step"] in alone for other in several for by_peer in best_by_shape(op, device, rows, other))


def _alone(op: Op, device: str, rows: Iterable[Mapping], kind: tuple[str, str | None]) -> list[str] | None:
    """The one step of a kind that was measured, in a list, or None where there are several."""
    found = list(dict.fromkeys(row["step"] for row in _of(op, device, rows, kind)))
    return found if len(found) == 1 else None


def headline(op: Op, by_peer: Mapping[str, Mapping]) -> Mapping:
    """The row beside the op's first peer, or beside whatever was there."""
    return next((by_peer[peer] for peer in op.peers if peer in by_peer), None) or next(iter(by_peer.values()))


def _of(op: Op, device: str, rows: Iterable[Mapping], kind: tuple[str, str | None], protocol: str = "steady"):
    steps = {step.id for step in op.steps}
    wanted = (op.name, device, protocol, *kind)
    return (r for r in rows if tuple(r[name] for name in ("op", "device", "protocol", "dtype", "variant")) == wanted and r["step"] in steps)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def peers_of(op: Op, best: Sequence[Mapping[str, Mapping]]) -> list[str]:
    """The op's peers and those of users' files, in this order, as far as it was measured beside them."""
    found = {peer for by_peer in best for peer in by_peer if peer}
    return [*(peer for peer in op.peers if peer in found), *sorted(found - set(op.peers))]


def beside(best: Sequence[Mapping[str, Mapping]], peer: str) -> list[Mapping]:
    """The rows with a ratio to the peer, one a shape."""
    return [by_peer[peer] for by_peer in best if peer in by_peer and by_peer[peer]["ratio"]]


def counted_in_mean(rows: Sequence[Mapping]) -> list[Mapping]:
    """Those rows whose ratios the geometric mean is of: the large ones, or all where none is large."""
    return [row for row in rows if row["flops"] >= LARGE_FLOPS] or list(rows)
