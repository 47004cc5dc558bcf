"""A limit on how long damaged input may keep a reader."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Late(BaseException):
    """Raised where the limit is over; no `except Exception` keeps it."""


@contextmanager
def limit(limit_s: float) -> Iterator[None]:
    """Raise `Late` in what runs within it for more than `limit_s` seconds."""

    def ring(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
