"""Where labels go in a picture, so that none covers a point, another label, or stands outside.  Plain rectangles, in pixels."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

Box = tuple[float, float, float, float]  # left, bottom, right, top

STEPS, TURNS = 40, 16  # rings of candidate places, places of the first ring


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes share more than an edge."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def place(points: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], bounds: Box, taken: Sequence[Box] = (),
          radius: float = 4.0, gap: float = 2.0) -> list[Box | None]:
    """A box of each size for each point, near it, in `bounds`, clear of all points (discs of `radius`), of `taken` and of each other.

    The first points choose first.  None where there is no room left.
    """
    obstacles = np.array([(x - radius, y - radius, x + radius, y + radius) for x, y in points] + list(taken))
    found: list[Box | None] = []
    for (x, y), (width, height) in zip(points, sizes, strict=True):
        box = next((box for box in _candidates(x, y, width, height, radius + gap)
                    if _inside(box, bounds) and _clear(_grown(box, gap), obstacles)), None)
        found.append(box)
        if box:
            obstacles = np.vstack([obstacles, box])
    return found


def _clear(box: Box, others: np.ndarray) -> bool:
    """Whether a box overlaps none of the others."""
    left, bottom, right, top = box
    return not ((left < others[:, 2]) & (others[:, 0] < right) & (bottom < others[:, 3]) & (others[:, 1] < top)).any()


def clusters(points: Sequence[tuple[float, float]], near: float) -> list[tuple[tuple[float, float], list[int]]]:
    """Points nearer to each other than that, chained: each group's middle and its members' numbers, in the order of their first."""
    groups: list[list[int]] = []
    for number, (x, y) in enumerate(points):
        touching = [g for g in groups if any(math.hypot(x - points[i][0], y - points[i][1]) < near for i in g)]
        groups = [g for g in groups if g not in touching] + [sorted([number, *(i for g in touching for i in g)])]
    groups.sort()
    return [((sum(points[i][0] for i in g) / len(g), sum(points[i][1] for i in g) / len(g)), g) for g in groups]


def along(points: Sequence[tuple[float, float]], width: float = 3.0) -> list[Box]:
    """Boxes that cover a line through these points."""
    boxes = []
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        pieces = max(1, int(math.hypot(x1 - x0, y1 - y0) / width))
        for i in range(pieces + 1):
            x, y = x0 + (x1 - x0) * i / pieces, y0 + (y1 - y0) * i / pieces
            boxes.append((x - width / 2, y - width / 2, x + width / 2, y + width / 2))
    return boxes


def _candidates(x: float, y: float, width: float, height: float, away: float) -> Iterator[Box]:
    """Boxes around a point: first to the right and left, then on rings that widen."""
    yield x + away, y - height / 2, x + away + width, y + height / 2
    yield x - away - width, y - height / 2, x - away, y + height / 2
    for step in range(STEPS):
        reach = away + step * height / 2
        turns = TURNS + 4 * step
        for turn in range(turns):
            angle = math.pi / 4 + 2 * math.pi * turn / turns
            # the box's own corner or edge faces the point
            cx, cy = x + (reach + width / 2) * math.cos(angle), y + (reach + height / 2) * math.sin(angle)
            yield cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2


def _grown(box: Box, by: float) -> Box:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _inside(box: Box, bounds: Box) -> bool:
    return bounds[0] <= box[0] and bounds[1] <= box[1] and box[2] <= bounds[2] and box[3] <= bounds[3]
