"""Which headers of ours a source includes, directly or not: what a build and a measurement depend on beside the source."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from cudalab.errors import CompileError
from cudalab.spec import KERNELS

COMMON = KERNELS / "common"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)

COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)


def headers(source: Path, text: bytes, folders: Sequence[Path] = ()) -> tuple[dict[Path, bytes], bool]:
    """The headers found beside the source, in `folders` or in kernels_cu/common, by path, and whether any other is included, such as
    CUDA's own.

    Raises CompileError for a header that is not text.
    """
    found, outside = {}, False
    pending = [(source, text)]
    while pending:
        including, content = pending.pop()
        for quoted, angled in INCLUDE.findall(content.decode(errors="replace")):
            places = (*[including.parent] * bool(quoted), source.parent, *folders, COMMON)
            path = next((place / (quoted or angled) for place in places if (place / (quoted or angled)).is_file()), None)
            if path is None:
                outside = True
            elif (path := Path(os.path.normpath(path))) not in found:
                found[path] = path.read_bytes()
                require_text(path, found[path])
                pending.append((path, found[path]))
    return dict(sorted(found.items())), outside


def code(text: bytes) -> bytes:
    """A source without its comments and spaces: the same code has the same measurements."""
    return b" ".join(COMMENT.sub(b" ", text).split())


def require_text(path: Path, content: bytes) -> None:
    """Raises CompileError for bytes at which NVRTC would stop reading without a word: 0xff, and the zero that ends a C string."""
    try:
        content.decode()
        place = content.find(b"\0")
    except UnicodeDecodeError as error:
        place = error.start
    if place >= 0:
        line = content.count(b"\n", 0, place) + 1
        raise CompileError(f"{path}({line}): not UTF-8 text (byte 0x{content[place]:02x}): save the file as UTF-8")
