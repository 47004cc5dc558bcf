"""Ours: `python -m perfmodel breakdown TRACE --format json`, what a user runs, to standard output.

That one command reads the trace, breaks every step down, gives every idle microsecond its cause
and finds the critical path of every step. Modules that it imports lazily count as its work.
"""

from __future__ import annotations

import runpy
import sys

from benchmarks.drivers.stages import Stages, run


def work(trace: str, stages: Stages, steps: str) -> None:
    """Run the command in this interpreter, as `python -m perfmodel` would."""
    del steps  # every step, always
    with stages.stage("import"):
        import msgspec  # noqa: F401
        import numpy  # noqa: F401

        import perfmodel
        import perfmodel.cli

        _ = perfmodel.read  # the package is lazy: its reader is imported here
    if stages.errors:
        return
    sys.argv = ["perfmodel", "breakdown", trace, "--format", "json"]
    with stages.stage("breakdown"):
        try:
            runpy.run_module("perfmodel", run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise RuntimeError(f"perfmodel breakdown exited with {stop.code}") from None


if __name__ == "__main__":
    run(work, ("perfmodel", "msgspec", "numpy"))
