"""Ctrl-C for the threads of a pool: Python tells the main thread alone, which sets an event for the others."""

import threading

_own = threading.local()


def leave_when(over: threading.Event) -> None:
    """The first that a thread of a pool does: from when `over` is set on, the compiler or disassembler that it waits for, or would begin,
    ends in KeyboardInterrupt, as in the main thread."""
    _own.over = over


def check() -> None:
    """Raise KeyboardInterrupt in a thread that is to leave."""
    if (over := getattr(_own, "over", None)) and over.is_set():
        raise KeyboardInterrupt
