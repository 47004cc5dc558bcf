"""`perfmodel skill`: what an agent or a script has to know, as this package holds it."""

from __future__ import annotations

import sys
from importlib.resources import files


def skill() -> None:
    sys.stdout.write(files("perfmodel").joinpath("AGENTS.md").read_text("utf-8"))
