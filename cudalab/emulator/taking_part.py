"""Who executes an instruction under its guard, with which values, at which places of shared memory."""

import numpy as np

from cudalab.emulator.memory import Place


def participants(chunk, lanes, count: int, mask) -> tuple[np.ndarray, np.ndarray | None]:
    """(numbers of the lanes that a guard lets through, their positions in the group; None for all of them)."""
    every = chunk.all_lanes if lanes is None else lanes
    if mask is None:
        return every, None
    positions = np.broadcast_to(mask, count).nonzero()[0]
    return every[positions], positions


def values_of(value, count: int, positions) -> np.ndarray:
    """An operand's values in the lanes that take part, one each, as int64."""
    values = np.broadcast_to(value, count)
    values = values if positions is None else values[positions]
    return values.astype(np.int64)


def indices(memory, place: Place, offset: int, count: int, positions, size: int, what: str, site: int, space: str = "shared") -> np.ndarray:
    """Flat indices of the places of the lanes that take part, one each, checked: `size` bytes, aligned to as many, in a state space."""
    if positions is not None:
        place = place.only(positions, count)
        count = len(positions)
    if place.parts or place.space != space:
        lane = memory.chunk.all_lanes if place.lanes is None else place.lanes
        raise memory.chunk.fault(int(lane[0]), site, f"{what} that is not in {space} memory")
    memory.check(place, offset, size, what, site)
    return np.broadcast_to(np.asarray(place.index) + offset, count)
