"""`python -m perfmodel`: the same as `perfmodel`."""

from __future__ import annotations

import sys

from perfmodel.cli import main

if __name__ == "__main__":
    sys.exit(main())
