"""What was measured, as rows in `results/<device>.jsonl`, and the configurations that `tune` found, in `results/tuned/<device>.jsonl`.

A row is one JSON object on one line.  Files only grow: the newest row of a key counts, older ones are its history.  The rows of a study lie
in a file of their own, `results/studies/<device>/<part>-<study>.jsonl`, which holds one run of it: the newest.
"""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cudalab import includes
from cudalab.errors import BadResults
from cudalab.problem import Problem
from cudalab.spec import KERNELS, Step

KEY = ("op", "step", "shape", "dtype", "variant", "device", "peer", "protocol")
_TEXT = ("op", "step", "dtype", "device", "protocol", "date")
_TEXT_OR_NULL = ("variant", "peer", "roof")
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ")  # as `now` writes it: sorts as text
STUDY_NAME = re.compile(r"\w+/\w+")
_POSITIVE = ("time_s", "flops", "bytes")
_POSITIVE_OR_NULL = ("peer_time_s", "ratio", "roof_share")


def root() -> Path:
    """The results folder: $CUDALAB_RESULTS, else `results/` of the checkout, else (installed as a wheel) the user's data folder."""
    if "CUDALAB_RESULTS" in os.environ:
        return Path(os.environ["CUDALAB_RESULTS"])
    checkout = KERNELS.parent
    if (checkout / "setup.cfg").exists():
        return checkout / "results"
    import platformdirs
    return platformdirs.user_data_path("cudalab") / "results"


def require_root() -> None:
    """Raise BadResults where $CUDALAB_RESULTS names a folder that is not there; the usual one need not be there yet."""
    if "CUDALAB_RESULTS" in os.environ and not root().is_dir():
        raise BadResults(f"there is no folder {root()}: name the one that holds rows, or bring some in with 'results merge FILE'")


def slug(device: str) -> str:
    """A device's name as a file name: NVIDIA H200 -> nvidia_h200."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def key(row: Mapping) -> tuple:
    """What makes two rows measurements of the same thing."""
    return tuple(tuple(sorted(row[k].items())) if k == "shape" else row.get(k) for k in KEY)


def rows(device: str | None = None) -> list[dict]:
    """The newest row of every key, oldest first.  device: its name; None for all.  Raises BadResults for a damaged line."""
    files = sorted(root().glob("*.jsonl")) if device is None else [root() / f"{slug(device)}.jsonl"]
    return newest(row for file in files if file.exists() for row in read(file))


def newest(found: Iterable[Mapping]) -> list[dict]:
    """One row a key: the one with the latest date, and of two with the same date the later one."""
    chosen = {}
    for row in sorted(found, key=lambda row: row["date"]):
        chosen.pop(key(row), None)
        chosen[key(row)] = row
    return list(chosen.values())


def read(file: Path) -> list[dict]:
    """All rows of a file, each validated.  Raises BadResults that names the file and the line."""
    return [validate(row, where) for where, row in _lines(file)]


def _lines(file: Path):
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadResults(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{file}:{number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise BadResults(f"{where}: not JSON ({error.msg}); repair or remove the line") from None
            yield where, row


def validate(row, where: str = "row") -> dict:
    """The row, if it has the fields of the design with sensible values.  Raises BadResults that says what is wrong and where."""
    def bad(why):
        return BadResults(f"{where}: {why}; repair or remove the line")

    def number(name):
        value = row[name]
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0

    if not isinstance(row, dict):
        raise bad("not a JSON object")
    if "study" in row:
        return _validate_study(row, bad)
    missing = [name for name in (*_TEXT, *_TEXT_OR_NULL, "shape", *_POSITIVE, *_POSITIVE_OR_NULL) if name not in row]
    if missing:
        raise bad(f"lacks {', '.join(missing)}")
    for name in _TEXT + _TEXT_OR_NULL:
        if not (isinstance(row[name], str) and row[name]) and not (row[name] is None and name in _TEXT_OR_NULL):
            raise bad(f"'{name}' must be text, not {row[name]!r}")
    _require_date(row, bad)
    for name in _POSITIVE + _POSITIVE_OR_NULL:
        if not (row[name] is None and name in _POSITIVE_OR_NULL) and not number(name):
            raise bad(f"'{name}' must be a positive number, not {row[name]!r}")
    shape = row["shape"]
    if not (isinstance(shape, dict) and shape and all(type(size) is int and size > 0 for size in shape.values())):
        raise bad(f"'shape' must name positive integers, not {shape!r}")
    return row


def _validate_study(row: dict, bad: Callable) -> dict:
    for name in ("study", "device", "date"):
        if not (isinstance(row.get(name), str) and row[name]):
            raise bad(f"'{name}' must be text, not {row.get(name)!r}")
    _require_date(row, bad)
    if not STUDY_NAME.fullmatch(row["study"]):
        raise bad(f"'study' must be a part and a name, such as memory/latency, not {row['study']!r}")
    for name, value in row.items():
        if not (value is None or isinstance(value, (str, bool, int)) or isinstance(value, float) and math.isfinite(value)) \
                and not (name == "versions" and isinstance(value, dict)):
            raise bad(f"'{name}' must be text or a finite number, not {value!r}")
    return row


def _require_date(row: Mapping, bad: Callable) -> None:
    if not DATE.fullmatch(row["date"]):
        raise bad(f"'date' must be UTC such as {now()}, not {row['date']!r}")


def append(file: Path, found: Iterable[Mapping]) -> None:
    """Add rows to a file in one write, so that a line is there whole or not at all.  Raises BadResults if it cannot be written."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                text = "\n" + text  # the last writer was cut off: do not join its rest to our first row
            data = text.encode()
            if text and os.write(handle, data) != len(data):
                os.ftruncate(handle, size)
                raise OSError(None, "the disk is full")
        finally:
            os.close(handle)
    except OSError as error:
        raise BadResults(f"cannot write {file}: {error.strerror}; choose another file or make room") from None


def merge(file: Path) -> dict[str, int]:
    """Bring the rows of `file` into the results folder.  Returns device -> rows added; a row that is there already is not added.

    Every row is validated before the first is written.  Rows of studies are for `merge_studies`.
    """
    added, incoming = {}, [row for row in read(file) if "study" not in row]
    for device in dict.fromkeys(row["device"] for row in incoming):
        target = root() / f"{slug(device)}.jsonl"
        known = {json.dumps(row, sort_keys=True) for row in (read(target) if target.exists() else ())}
        fresh = {json.dumps(row, sort_keys=True): row for row in incoming if row["device"] == device}
        fresh = [row for text, row in fresh.items() if text not in known]
        append(target, fresh)
        added[device] = len(fresh)
    return added


def study_file(study: str, device: str) -> Path:
    """Where the rows of a study on a device are kept."""
    return root() / "studies" / slug(device) / f"{study.replace('/', '-')}.jsonl"


def study_rows(study: str | None = None) -> dict[tuple[str, str], list[dict]]:
    """The kept rows by (study, device), all studies or one.  Raises BadResults for a damaged line."""
    found = {}
    for file in sorted((root() / "studies").glob(f"*/{study.replace('/', '-') if study else '*'}.jsonl")):
        for row in read(file):
            found.setdefault((row.get("study"), row["device"]), []).append(row)
    return found


def merge_studies(file: Path) -> dict[tuple[str, str], int]:
    """Bring a file's rows of studies into the results folder: the newest run of each replaces what was kept, unless that is newer.

    Returns (study, device) -> rows kept, 0 where what was kept is as new.  Every row is validated before the first is written.
    """
    runs, kept = {}, {}
    for row in read(file):
        if "study" in row:
            runs.setdefault((row["study"], row["device"]), {}).setdefault(row["date"], []).append(row)
    for (study, device), by_date in runs.items():
        newest_date, target = max(by_date), study_file(study, device)
        before = max((row["date"] for row in read(target)), default="") if target.exists() else ""
        kept[study, device] = len(by_date[newest_date]) if newest_date > before else 0
        if kept[study, device]:
            temporary = target.with_name(f".{target.name}-{os.getpid()}")
            try:
                append(temporary, by_date[newest_date])
                temporary.replace(target)
            finally:
                with contextlib.suppress(OSError):  # gone where it became the file, never there where none can be
                    temporary.unlink()
    return kept


def tuned_file(device: str) -> Path:
    """Where the configurations found on a device are kept."""
    return root() / "tuned" / f"{slug(device)}.jsonl"


def tuned(step: Step, device: str, problem: Problem) -> dict[str, int] | None:
    """The configuration that `tune` kept for this step, device, shape and kind, or None.

    One that was found with another source of the step, or names a tunable it no longer has, does not count.
    """
    file = tuned_file(device)
    found = None
    for where, row in _lines(file) if file.exists() else ():
        try:
            kind = row.get("dtype", "f32"), row.get("variant")  # rows of before there were kinds lack them
            if (row["step"], row["shape"], kind, row["source_digest"]) == (step.path, dict(problem), problem.kind, source_digest(step)):
                found = dict(row["config"])
        except (AttributeError, TypeError, KeyError, ValueError):
            raise BadResults(f"{where}: not a tuned configuration; repair or remove the line") from None
    return found if found is not None and set(found) <= set(step.tunables) else None


def save_tuned(step: Step, device: str, problem: Problem, config: Mapping[str, int], time_s: float) -> Path:
    """Keep `config` as the best for this step, device, shape and kind.  Returns the file it went to."""
    file = tuned_file(device)
    append(file, [dict(step=step.path, shape=dict(problem), dtype=problem.dtype, variant=problem.variant, device=device,
                       config=dict(config), time_s=time_s, source_digest=source_digest(step), date=now())])
    return file


def source_digest(step: Step) -> str:
    """What a measurement belongs to: 16 hexadecimal digits of the SHA-256 of the code, without comments, of a step and the headers of ours
    that it includes."""
    import hashlib
    text = step.source.read_bytes()
    digest = hashlib.sha256(includes.code(text))
    found, _ = includes.headers(step.source, text, step.folders)
    for path in sorted(found, key=lambda path: path.name):  # wherever they lie
        digest.update(includes.code(found[path]))
    return digest.hexdigest()[:16]


def now() -> str:
    """The time of a row: UTC, to the second, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass(frozen=True)
class Change:
    """A new row against the last one of its key.  speed: old time over new time, below 1 is slower; None if there is no old row."""

    row: Mapping
    before: Mapping | None

    @property
    def speed(self) -> float | None:
        return None if self.before is None else self.before["time_s"] / self.row["time_s"]


def changes(found: Iterable[Mapping], before: Iterable[Mapping] | None = None) -> list[Change]:
    """Each row beside the newest earlier row of its key (before: where to look, by default the results folder)."""
    known = {key(row): row for row in (rows() if before is None else newest(before))}
    return [Change(row, known.get(key(row))) for row in found]


def slower(found: Iterable[Change], threshold: float) -> list[Change]:
    """Those changes whose speed fell below `threshold`."""
    return [change for change in found if change.speed is not None and change.speed < threshold]
