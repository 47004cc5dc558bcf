"""Speed that stays: the library's own steps as ratios to fixed work in the same run.

    python benchmarks/speed.py [--rounds 9] [--only WORD] [--check] [--store]

Prints a Markdown table: each work over its reference, the ratio stored last, and a warning where
it grew by more than 1.3, measured twice. With `--check`, exit 1 in that case; `--store` puts the
ratios into the table of README.md, beside this file, whose versions are their history.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.references import references
from benchmarks.rounds import Figure, Key, measure, on_one_thread
from benchmarks.tables import markdown
from benchmarks.works import works

DEMO = Path(__file__).resolve().parents[1] / "perfmodel" / "demo" / "dlrm_cpu_kineto.json.gz"
README = Path(__file__).with_name("README.md")
TABLE = re.compile(r"(?<=<!-- ratios -->\n).*?(?=\n<!-- /ratios -->)", re.S)
SLOWER = 1.3
"""Growth of a ratio that is a warning."""


def stored_ratios(path: Path = README) -> dict[Key, float]:
    """The ratio of each work over its reference, from the table of README.md."""
    table = TABLE.search(path.read_text(encoding="utf-8"))
    assert table, f"{path}: no <!-- ratios -->"
    cells = (line.strip("| ").split(" | ") for line in table.group().splitlines()[2:])
    return {(work, reference): float(ratio) for work, reference, ratio in cells}


def store(figures: list[Figure], path: Path = README) -> None:
    """Put these ratios into the table; those of other works stay."""
    ratios = stored_ratios(path) | {each.key: each.ratio for each in figures}
    lines = [[*key, f"{ratio:.3g}"] for key, ratio in ratios.items()]
    table = markdown(["work", "over", "ratio"], lines)
    text = path.read_text(encoding="utf-8")
    path.write_text(TABLE.sub(lambda _: table, text), encoding="utf-8")


def rows(figures: list[Figure], stored: Mapping[Key, float]) -> list[list[str]]:
    """Per work: its ratio, the spread, the ratio stored, this over that, and milliseconds."""
    found = []
    for each in figures:
        was = stored.get(each.key)
        then = ("", "") if was is None else (f"{was:.3g}", f"{each.ratio / was:.2f}")
        own = (each.name, each.reference, f"{each.ratio:.3g}", f"{each.spread_frac:.0%}")
        found.append([*own, *then, f"{each.best_ms:.3g}"])
    return found


def slower(figures: list[Figure], stored: Mapping[Key, float]) -> list[Figure]:
    """Those whose ratio grew by more than `SLOWER`."""
    return [each for each in figures if each.ratio > SLOWER * stored.get(each.key, float("inf"))]


def run(rounds: int, only: str, stored: Mapping[Key, float]) -> list[Figure]:
    """All figures; what looks slower is measured again, and the lower ratio counts."""
    against = references(DEMO)
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in works(DEMO, Path(folder)) if only in each.name]
        first = measure(chosen, against, rounds)
        suspects = {each.name for each in slower(first, stored)}
        again = measure([each for each in chosen if each.name in suspects], against, 2 * rounds)
    second = {each.name: each for each in again}
    return [min(each, second.get(each.name, each), key=lambda it: it.ratio) for each in first]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", metavar="WORD", help="works whose name holds this")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args(arguments)
    on_one_thread()
    stored = stored_ratios()
    figures = run(options.rounds, options.only, stored)
    header = ["work", "over", "ratio", "spread", "stored", "change", "ms here"]
    print(markdown(header, rows(figures, stored)))
    late = slower(figures, stored)
    for each in late:
        growth = each.ratio / stored[each.key]
        print(f"warning: {each.name}: {growth:.2f} times the ratio stored last")
    if options.store:
        store(figures)
    return int(options.check and bool(late))


if __name__ == "__main__":
    sys.exit(main())
