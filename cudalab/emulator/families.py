"""The files that instructions are lowered in.  A new family: write its file, add it here."""

from cudalab.emulator import barriers, compare, control, convert, floating, formats, integer, logic, memory_ops, moves  # noqa: F401
