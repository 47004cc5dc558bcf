"""What every driver shares: named stages with their own clock, and the report at the end.

It is imported into the environment of every peer, and what it imports counts into the wall time of
every tool: few modules, all small (`argparse` and `importlib.metadata` cost more than the floor).
"""

from __future__ import annotations

import json
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Stage:
    """One timed block; an exception in it is recorded, not raised."""

    def __init__(self, stages: Stages, name: str) -> None:
        self.stages = stages
        self.name = name

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        self.stages.seconds[self.name] = round(time.perf_counter() - self.start, 6)
        if isinstance(error, Exception):
            self.stages.errors[self.name] = f"{type(error).__name__}: {error}"[:300]
            return True
        return False


class Stages:
    """Wall time per named stage, with what failed in it; a failed stage does not stop the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.errors: dict[str, str] = {}
        self.result: dict[str, Any] = {}

    def stage(self, name: str) -> Stage:
        """Time a `with` block under `name`."""
        return Stage(self, name)


def run(work: Callable[[str, Stages, str], None], packages: tuple[str, ...]) -> None:
    """Do the work on the trace that the command line names, and write the report.

    The command line is `TRACE REPORT one|all [versions]`. `work` times its imports as stage
    `import` and everything else under names of its own. `versions` also reports the versions of
    `packages`: only in the run that does not count, since looking them up takes time.
    """
    trace, report, steps, *more = sys.argv[1:]
    stages = Stages()
    work(trace, stages, steps)
    said = {"stages": stages.seconds, "errors": stages.errors, "result": stages.result}
    if more == ["versions"]:
        said["versions"] = _versions(packages)
    with open(report, "w", encoding="utf-8") as file:
        json.dump(said, file)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
