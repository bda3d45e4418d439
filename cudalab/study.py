"""Studies: a named function from a backend to rows, with the picture and the sentences that these rows give.

On a GPU a study measures, through the protocol of `measure`; on the emulator it counts the same thing exactly, at small sizes, and no row
holds a time.  What it launches are steps of ops like any other, so that they are checked, dumped and shown like any other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cudalab import results
from cudalab.errors import LabError

Progress = Callable[[int, int, str], None]  # (done, total, what)


@dataclass(frozen=True, eq=False)
class Study:
    """name: the part's short name / the study's, "memory/latency".  title: one line.

    measure: (Gpu or Emulator, Progress) -> rows, flat dictionaries with the units in the names (latency_cycles, working_set_bytes,
    bandwidth_bytes_per_s).  A row that was timed has the clock it was timed at, sm_clock_mhz.  `device` of either backend says whose limits
    count.  columns: fields that the table shows, in order.
    plot: draws rows into a matplotlib Axes.  conclude: rows -> sentences that follow from them.
    """

    name: str
    title: str
    measure: Callable[[object, Progress], Iterator[dict]]
    columns: tuple[str, ...]
    plot: Callable[[object, Sequence[Mapping]], None] | None = None
    conclude: Callable[[Sequence[Mapping]], list[str]] | None = None

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]

    @property
    def file_stem(self) -> str:
        """The name in file names: memory-latency."""
        return self.name.replace("/", "-")

    def conclusions(self, rows: Sequence[Mapping]) -> list[str]:
        return self.conclude(rows) if self.conclude and rows else []


def run(study: Study, place, progress: Progress | None = None) -> Iterator[dict]:
    """The study's rows on a backend, each as soon as it is there, with what all rows have: study, device, date, versions, SM clock (None on
    the emulator).  All rows of one run have the date of its start.  Raises LabError as the study does, and for a study without rows."""
    common = dict(study=study.name, device=device_name(place), date=results.now())
    clock, versions = _clock_and_versions(place)
    rows = 0
    for row in study.measure(place, progress or (lambda done, total, what: None)):
        rows += 1
        measured = row.get("sm_clock_mhz") or clock()
        yield {**common, **row, "sm_clock_mhz": measured and round(measured), "versions": versions}
    if not rows:
        raise LabError(f"{study.name} gives no rows on {common['device']}: it has nothing to show there")


def device_name(place) -> str:
    """The device of rows: its name, or that it was the emulator, and whose limits it counted with."""
    return f"emulator, as {place.device.name}" if place.name == "emulator" else place.device.name


def _clock_and_versions(place):
    """A function that reads the SM clock, for rows that were not timed, and the versions of what measures."""
    from cudalab import measure
    if place.name == "emulator":
        return (lambda: None), measure.versions()
    from cudalab.hold import Hold
    from cudalab.nvml import Monitor
    hold = []

    def clock():
        if not hold:
            hold.append(Hold(place))
        with place.stream:
            hold[0].queue_clocks()
            place.synchronize("measure")
        return hold[0].sm_clock_mhz()
    return clock, measure.versions(place, Monitor(place.pci_bus_id).driver)
