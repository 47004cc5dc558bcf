"""`python -m perfmodel`: the same as `perfmodel`."""

from __future__ import annotations

import gc
import sys

from perfmodel.cli import main


def run() -> int:
    """The command line in a process of its own."""
    status = main()
    gc.freeze()  # at exit Python would search all that was read for cycles, a tenth of a breakdown
    return status


if __name__ == "__main__":
    sys.exit(run())
