"""`python -m perfmodel.collect`."""

from __future__ import annotations

import sys

EXIT_USAGE = 2


def start() -> int:
    """Run the command line; one line and exit status 2 where NumPy is missing."""
    try:
        from perfmodel.collect.cli import main
    except ModuleNotFoundError as error:
        print(f"perfmodel: {error}: the collector needs NumPy and PyTorch", file=sys.stderr)
        return EXIT_USAGE
    return main()


if __name__ == "__main__":
    raise SystemExit(start())
