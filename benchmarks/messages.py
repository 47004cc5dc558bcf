"""Progress for someone who watches, and the one line of an output that says what went wrong."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Progress, only for someone who watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def reason(text: str) -> str:
    """The one line of an installer's output that says what went wrong."""
    for sign in ("fatal:", "ERROR:", "error:"):
        for line in _lines(text):
            if line.startswith(sign):
                return line[:200]
    return last_line(text)


def last_line(text: str) -> str:
    """The last line with something in it."""
    return (_lines(text) or ["no message"])[-1][:200]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
