"""Where a curve leaves a level: sizes of caches read off a measurement, not off a data sheet.

The curve is a cost (latency, or time a byte) over the size of the working set.  While the set fits a level, the cost stays flat; past its
size it climbs and settles at the next level's.  So:

1. Go through the points by size.  A plateau grows while the next point lies within `flat` of the median of its points; one stray point is
   passed over if the two behind it are inside again.  It ends, too, where the median has drifted away from its first point, and it begins
   where beginning a point later would not let it reach further: the rest of a climb is no part of it.
2. It counts if it has at least three points and spans at least the factor `span` in size; neighbours that are not `APART` in cost are one.
3. Its last size is the level's: the largest working set that still fitted.  The next size measured is the least that did not, so the true
   size lies between; `finer` gives sizes to measure between the two.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

FLAT, SPAN, APART = 0.08, 1.4, 1.15


@dataclass(frozen=True)
class Plateau:
    """A level of a curve.  cost: median over its points.  first, last: the sizes it spans.  beyond: the next size measured, which is off
    it; None where the curve ends."""

    cost: float
    first: float
    last: float
    beyond: float | None


def plateaus(sizes: Sequence[float], costs: Sequence[float], flat: float = FLAT, span: float = SPAN) -> list[Plateau]:
    """The levels of a curve, in the order of its sizes."""
    points = sorted(zip(sizes, costs))
    found, start = [], 0
    while start < len(points):
        end = _grow(points, start, flat)
        if end < len(points) and _grow(points, start + 1, flat) > end:
            start += 1
        elif end - start >= 3 and points[end - 1][0] >= span * points[start][0]:
            found.append((start, end))
            start = end
        else:
            start += 1
    return [_plateau(points, start, end) for start, end in _joined(points, found)]


def median(values: Iterable[float]) -> float:
    """As `statistics.median`, which is slow to import: `list` need not."""
    import statistics
    return statistics.median(values)


def _grow(points, start: int, flat: float) -> int:
    """One past the last point of the plateau that starts there."""
    def inside(index: int, level: float) -> bool:
        return index < len(points) and abs(points[index][1] / level - 1) <= flat
    end = start + 1
    while end < len(points):
        level = median(cost for _, cost in points[start:end])
        if not inside(end, level) and not (inside(end + 1, level) and inside(end + 2, level)):
            break
        grown = median(cost for _, cost in points[start:end + 1])
        if not inside(start, grown):
            break
        end += 1
    return end


def _joined(points, found):
    """Runs of points, neighbours of one level made one."""
    result = []
    for start, end in found:
        level = median(cost for _, cost in points[start:end])
        if result:
            before = median(cost for _, cost in points[result[-1][0]:result[-1][1]])
            if max(level, before) / min(level, before) < APART:
                result[-1] = result[-1][0], end
                continue
        result.append((start, end))
    return result


def _plateau(points, start: int, end: int) -> Plateau:
    beyond = points[end][0] if end < len(points) else None
    return Plateau(median(cost for _, cost in points[start:end]), points[start][0], points[end - 1][0], beyond)


def finer(found: Sequence[Plateau], count: int) -> list[float]:
    """Sizes at equal ratios between each plateau's last and the next one measured: `count` for each knee."""
    return [level.last * (level.beyond / level.last) ** (step / (count + 1))
            for level in found if level.beyond for step in range(1, count + 1)]


def discover(measure: Callable[[int], float], sizes: Sequence[int], count: int, unit: int) -> Iterator[tuple[int, float]]:
    """Measure a curve: first at these sizes, then finer around its knees.  Yields (size, cost) as measured, sizes multiples of `unit`."""
    curve = {}
    for size in sizes:
        curve[size] = measure(size)
        yield size, curve[size]
    for size in finer(plateaus(list(curve), list(curve.values())), count):
        rounded = max(unit, round(size / unit) * unit)
        if rounded not in curve:
            curve[rounded] = measure(rounded)
            yield rounded, curve[rounded]


def spaced(first: int, last: int, per_octave: int, unit: int) -> list[int]:
    """Sizes at equal ratios from first to last, multiples of `unit`, each once."""
    ratio, sizes, size = 2 ** (1 / per_octave), [], float(first)
    while size <= last * 1.0001:
        sizes.append(max(unit, round(size / unit) * unit))
        size *= ratio
    return list(dict.fromkeys(sizes))
