"""What a function that comes to call itself still needs behind the call: kept per lane, last in, first out."""

import numpy as np

DEEPEST = 10_000  # calls within one another; devices have far less stack


class Frames:
    """A stack a lane.  A frame holds registers and the caller's bytes of local memory for the lanes that made one call together."""

    def __init__(self, chunk):
        self.chunk = chunk
        self.frames: list = []
        self.top = np.full(chunk.count, -1)  # of each lane: the number of its newest frame

    def push(self, lanes, count, mask, slots, memory_range, return_slot) -> None:
        chunk = self.chunk
        every = chunk.all_lanes if lanes is None else lanes
        every = every if mask is None else every[np.broadcast_to(mask, len(every))]
        kept = {}
        for slot in (*slots, return_slot):
            held = chunk.registers[slot]
            kept[slot] = held[every] if held.ndim else held
        first, end = memory_range
        self.frames.append((every, self.top[every], kept, first, self._bytes()[every, first:end].copy()))
        self.top[every] = len(self.frames) - 1
        if len(self.frames) > DEEPEST * 64:
            raise chunk.fault(int(every[0]), 0, "functions that call themselves too deeply")

    def pop(self, lanes, site) -> None:
        chunk = self.chunk
        every = chunk.all_lanes if lanes is None else lanes
        for number in np.unique(self.top[every]):
            if number < 0:
                continue
            some = every[self.top[every] == number]
            owners, before, kept, first, data = self.frames[number]
            at = np.searchsorted(owners, some)
            for slot, values in kept.items():
                held = chunk.registers[slot]
                if not held.ndim:
                    held = chunk.registers[slot] = np.full(chunk.count, held)
                held[some] = values[at] if values.ndim else values
            self._bytes()[some, first:first + data.shape[1]] = data[at]
            self.top[some] = before[at]
        while self.frames and not (self.top == len(self.frames) - 1).any():
            self.frames.pop()

    def _bytes(self) -> np.ndarray:
        memory, chunk = self.chunk.memory, self.chunk
        return memory.bytes[memory.local_start:memory.local_start + chunk.count * chunk.local_stride].reshape(chunk.count, -1)
