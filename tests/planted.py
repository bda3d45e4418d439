"""Steps of the ladders with a bug in them."""

import dataclasses
import shutil
from pathlib import Path

from cudalab import registry


def planted(name: str, old: str, new: str, folder: Path):
    """The step of that name, in whose source `old`, which occurs once, is `new`; the source and what it includes lie in a folder then."""
    step = registry.resolve_step(name)
    shutil.copytree(step.source.parent.parent, folder / "kernels_cu")
    source = folder / "kernels_cu" / step.source.parent.name / step.source.name
    text = source.read_text()
    assert text.count(old) == 1, f"{step.path}: the text to change occurs {text.count(old)} times"
    source.write_text(text.replace(old, new))
    return dataclasses.replace(step, source=source)
