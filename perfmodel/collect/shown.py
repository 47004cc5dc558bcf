"""What the collector says: words and form of the other verbs, without their libraries."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

PROGRAM = "perfmodel"
GAP = "  "


class Parser(argparse.ArgumentParser):
    """Command lines whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        fault(f"{message}; see {self.prog} --help")
        raise SystemExit(2)


def fault(text: str) -> None:
    """One line on standard error: why there are no results."""
    print(f"{PROGRAM}: {' '.join(text.split())}", file=sys.stderr)


def wrote(path: Path, what: str) -> None:
    """What was written where, on standard error."""
    print(f"{PROGRAM}: wrote {path}: {what}", file=sys.stderr)


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Texts in columns under their heads: the first to the left, the others to the right."""
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        GAP.join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    rule = "─" * (sum(widths) + len(GAP) * (len(widths) - 1))
    return "\n".join([title, text[0], rule, *text[1:]])
