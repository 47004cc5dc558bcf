"""Tables that fit are set as Rich sets them."""

from __future__ import annotations

import random

import pytest

from perfmodel.cli.console import Console, Table
from perfmodel.cli.tables import add, new_table

WORDS = ("", "a", "1,234.5", "aten::mm", "elementwise … kernel", "µs", "名前", "x" * 23, "-")


class ByRich(Console):
    """A page that leaves all to Rich."""

    def show(self, *tables: Table) -> None:
        self.print()
        for table in tables:
            self._by_rich(table.as_rich())


def drawn(seed: int) -> Table:
    of = random.Random(seed)
    heads = of.choices(("name", "time", "of step", "", "TFLOP/s", "größe"), k=of.randint(1, 6))
    title = " ".join(of.choices(("Top kernels,", "per step (ms)", "", "Ränge"), k=of.randint(0, 5)))
    table = new_table(title.strip(), *heads, texts=of.randint(0, 2))
    for _ in range(of.randint(0, 5)):
        add(table, *of.choices(WORDS, k=len(heads)))
    return table


@pytest.mark.parametrize("width", [40, 100, 300])
def test_tables_are_those_of_rich(width: int) -> None:
    for seed in range(150):
        here, there = Console(width), ByRich(width)
        here.show(drawn(seed))
        there.show(drawn(seed))
        assert here.text == there.text, seed


def test_tables_that_fit_stand_side_by_side() -> None:
    tables = [new_table(name, "cause", "time") for name in ("One", "Another")]
    add(tables[0], "gap", "1.0")
    add(tables[0], "launch", "22.0")
    add(tables[1], "host", "3.5")
    wide, narrow = Console(60), Console(24)
    wide.show(*tables)
    narrow.show(*tables)
    assert wide.text.splitlines() == [
        "",
        "One             Another",
        "cause   time    cause  time",
        "────────────    ───────────",
        "gap      1.0    host    3.5",
        "launch  22.0",
    ]
    assert narrow.text.splitlines()[:2] == ["", "One"]
    assert narrow.text.splitlines()[6:8] == ["", "Another"]


@pytest.mark.parametrize("width", [12, 40])
def test_long_lines_are_broken_between_words_as_by_rich(width: int) -> None:
    from rich.text import Text

    texts = (
        "all-to-alls gone: -3.1 ms, 12.0 %: overlap with compute (buckets, prefetch)",
        "one-word-that-is-longer-than-the-page and more",
        "short",
    )
    for text in texts:
        here, there = Console(width), Console(width)
        here.print(text)
        there._by_rich(Text(text))
        assert here.text == there.text
        here.print(text, soft_wrap=True)
        assert here.text.endswith(f"{text}\n")
