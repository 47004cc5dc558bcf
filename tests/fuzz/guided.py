"""Damaged files that lead the reader where none led before are kept, and damaged further.

Coverage is of where functions end: cheap to watch (`sys.setprofile`), and nearly one per branch,
since a function that finds something else returns, or raises, somewhere else.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from fuzz.damage import Damaged
from fuzz.outcome import VALUE, Outcome
from fuzz.readers import Kind

MAX_KEPT = 200
"""Files per kind; the oldest make room."""
FROM_KEPT = 0.5
"""Share of the runs that start from a kept file, where there is one."""
Place = tuple[str, int]
"""File of a function of the package, and the line on which it ended."""


@dataclass
class Corpus:
    """What has been reached by files of each kind, and the sound files that reached it first."""

    reached: dict[str, set[Place]] = field(default_factory=dict)
    kept: dict[str, list[bytes]] = field(default_factory=dict)

    def damaged(self, kind: Kind, at: random.Random) -> Damaged:
        """One of the kind's own files damaged, or a kept one damaged further.

        Of the latter any answer is fine: the second damage may be where the first made the reader
        look no more.
        """
        files = self.kept.get(kind.name, [])
        if not files or at.random() >= FROM_KEPT:
            return kind.damaged(at)
        return kind.damaged(at, at.choice(files))._replace(damage=VALUE)

    def learn(self, kind: Kind, damaged: Damaged, outcome: Outcome, places: set[Place]) -> None:
        """Keep a file that is answered and reached something new."""
        reached = self.reached.setdefault(kind.name, set())
        is_new = not places <= reached
        reached |= places
        if is_new and damaged.damage == VALUE and outcome.how == "clean":
            files = self.kept.setdefault(kind.name, [])
            files.append(damaged.content)
            del files[:-MAX_KEPT]

    def lines(self) -> list[str]:
        """What to print."""
        return [
            f"  {name}: {len(places)} ends of functions, {len(self.kept.get(name, []))} files kept"
            for name, places in sorted(self.reached.items())
        ]


@contextmanager
def watched(places: set[Place]) -> Iterator[None]:
    """Fills `places` with where functions of the package end meanwhile."""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "return":
            code = frame.f_code
            if "/perfmodel/" in code.co_filename:
                places.add((code.co_filename, frame.f_lineno))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
