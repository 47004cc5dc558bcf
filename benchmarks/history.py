"""The history of ratios, `history.csv`: one row per run and work, the newest run last.

The newest figures also stand as a table in README.md.
"""

from __future__ import annotations

import csv
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks.rounds import Figure, Key
from benchmarks.tables import markdown

HISTORY = Path(__file__).with_name("history.csv")
README = Path(__file__).with_name("README.md")
_SHOWN = re.compile(r"(?<=<!-- ratios -->\n).*?(?=\n<!-- /ratios -->)", re.S)
COLUMNS = ("date", "commit", "machine", "versions", "work", "reference", "ratio")
DECIDES = ("msgspec", "numba", "numpy", "pandas", "xgboost-cpu")
"""Packages whose version moves the ratios."""


def newest(path: Path = HISTORY) -> dict[Key, float]:
    """The last ratio stored of each work over its reference; nothing where there is no file."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["work"], row["reference"]): float(row["ratio"]) for row in csv.DictReader(file)
        }


def append(figures: Iterable[Figure], about: Mapping[str, str], path: Path = HISTORY) -> None:
    """Add a run at the end."""
    is_new = not path.is_file()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        for each in figures:
            ratio = f"{each.ratio:.4g}"
            own = {"work": each.name, "reference": each.reference, "ratio": ratio}
            writer.writerow({**about, **own})


def shown(stored: Mapping[Key, float]) -> str:
    """The table of ratios for README.md."""
    rows = [[work, reference, f"{ratio:.3g}"] for (work, reference), ratio in stored.items()]
    return markdown(["work", "over", "ratio"], rows)


def in_readme(path: Path = README) -> str:
    """The table that stands there."""
    found = _SHOWN.search(path.read_text(encoding="utf-8"))
    assert found, f"{path}: no <!-- ratios -->"
    return found.group()


def show(table: str, path: Path = README) -> None:
    """Put the table there."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(in_readme(path), table), encoding="utf-8")


def about() -> dict[str, str]:
    """Date, commit, processor and versions of this run."""
    return {
        "date": date.today().isoformat(),
        "commit": _commit(),
        "machine": _processor(),
        "versions": " ".join(
            [
                f"python {platform.python_version()}",
                *(f"{name} {version(name)}" for name in DECIDES),
            ]
        ),
    }


def _commit() -> str:
    """The commit of this tree, `+` where something in it is changed; empty outside of git."""
    asked = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    told = subprocess.run(asked, cwd=HISTORY.parent, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def _processor() -> str:
    lines = Path("/proc/cpuinfo")
    if lines.is_file():
        for line in lines.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
