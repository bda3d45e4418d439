"""Batches of calls, pairs of batches, and what they come to: the part of the timing protocol (see measure.py) that needs no device."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PAIRS = 16  # batches of each arm: eight times A B B A
BATCH_S = 1e-3  # a batch lasts at least this long, unless QUEUE forbids it
QUEUE = 400  # launches that are queued at once: the driver's queue holds about a thousand, and a full one would wait for the held stream
COLD = 3  # rotating sets together hold more than this many times L2
SETS = 64  # at most: beyond it a tiny problem would be measured on its address translation


@dataclass(frozen=True)
class Summary:
    """Medians and interquartile ranges (upper minus lower quartile) over the pairs.  Peer and ratio are None where there was no peer."""

    time_s: float
    time_iqr_s: float
    peer_time_s: float | None
    peer_time_iqr_s: float | None
    ratio: float | None
    ratio_iqr: float | None


def calls_per_batch(call_s: float, sets: int, launches: int) -> int:
    """How many calls make a batch: enough for BATCH_S, whole rotations of the sets where the queue has room for them."""
    most = max(1, QUEUE // launches)
    wanted = math.ceil(BATCH_S / call_s)
    return max(1, min(math.ceil(wanted / sets) * sets, most))


def set_count(set_bytes: int, l2_bytes: int) -> int:
    """How many buffer sets rotate, so that no call finds its inputs in L2."""
    return max(1, min(SETS, COLD * l2_bytes // set_bytes + 1))


def alternate(ours: Callable[[], float], peer: Callable[[], float] | None, pairs: int,
              tick: Callable[[], None]) -> list[tuple[float, float | None]]:
    """`pairs` measurements of each arm in the order A B B A …, as (ours, peer's); without a peer just ours."""
    measured = []
    for number in range(pairs):
        if peer is None:
            measured.append((ours(), None))
        elif number % 2 == 0:
            first = ours()
            measured.append((first, peer()))
        else:
            first = peer()
            measured.append((ours(), first))
        tick()
    return measured


def summarise(pairs: Sequence[tuple[float, float | None]]) -> Summary:
    """Statistics of the pairs (ours, peer's), in seconds."""
    ours = [a for a, _ in pairs]
    if pairs[0][1] is None:
        return Summary(statistics.median(ours), iqr(ours), None, None, None, None)
    theirs, ratios = [b for _, b in pairs], [b / a for a, b in pairs]
    return Summary(statistics.median(ours), iqr(ours), statistics.median(theirs), iqr(theirs), statistics.median(ratios), iqr(ratios))


def iqr(values: Sequence[float]) -> float:
    """Upper minus lower quartile."""
    if len(values) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return upper - lower
