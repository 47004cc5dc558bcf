"""Tables show what the page has room for; lines of text break between words."""

from __future__ import annotations

import csv
import io
import random

import pytest

from perfmodel.cli.console import Console, Table, width_of
from perfmodel.cli.output import frame_csv, rows_csv
from perfmodel.cli.tables import filled

WORDS = ("", "a", "1,234.5", "aten::mm", "elementwise … kernel", "µs", "名前", "x" * 23, "-")


def drawn(seed: int) -> Table:
    of = random.Random(seed)
    heads = of.choices(("name", "time", "of step", "", "TFLOP/s", "größe"), k=of.randint(1, 6))
    title = " ".join(of.choices(("Top kernels,", "per step (ms)", "", "Ränge"), k=of.randint(0, 5)))
    texts = of.randint(0, 2)
    rows = [of.choices(WORDS, k=len(heads)) for _ in range(of.randint(0, 5))]
    return filled(title.strip(), heads, rows, texts)


@pytest.mark.parametrize("width", [40, 80, 300])
def test_no_line_is_wider_than_the_page_and_no_number_is_cut(width: int) -> None:
    for seed in range(150):
        page, table = Console(width), drawn(seed)
        page.show(table)
        lines = page.text.splitlines()
        shown, _, dropped = table.within(width)
        assert len(shown.columns) + len(dropped) == len(table.columns)
        assert all(width_of(line) <= width for line in lines[2:] if "no room" not in line), seed
        for at, column in enumerate(shown.columns):
            if column.no_wrap:
                assert all(row[at] in page.text for row in shown.rows), seed


def test_the_last_columns_go_first_and_are_named() -> None:
    heads = ("design", "step", "memory", "cause", "USD")
    row = ("software_cache", "12,345.678", "12,345.678", "host", "0.001")
    table = filled("Designs", heads, [row])
    table.columns[3].keep = True
    page = Console(44)
    page.show(table)
    assert "step  memory" not in page.text
    head = page.text.splitlines()[2]
    assert head.split() == ["design", "step", "memory", "cause"]
    assert "_cache" in page.text
    assert "(no room for: USD)" in page.text


def test_names_that_would_become_one_take_several_lines() -> None:
    rows = [(f"ProfilerStep_of_rank_{at}_forward_pass_alone", at * 20) for at in "12"]
    table = filled("Steps", ("step", "time"), rows)
    page = Console(40)
    page.show(table)
    assert "rank_1" in page.text.replace("\n", "")
    assert "rank_2" in page.text.replace("\n", "")
    assert "…" not in page.text


def test_tables_that_fit_stand_side_by_side() -> None:
    rows = {"One": [("gap", "1.0"), ("launch", "22.0")], "Another": [("host", "3.5")]}
    tables = [filled(name, ("cause", "time"), each) for name, each in rows.items()]
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


@pytest.mark.parametrize("name", ["=1+1", "+aten::add", "-lib", "@sum", "\tx"])
def test_a_name_is_no_formula_in_csv(name: str) -> None:
    import pandas as pd

    frame = pd.DataFrame({"name": [name, "aten::mm", "-"], "us": [-1.5, 2.0, 3.0]})
    table = list(csv.reader(io.StringIO(frame_csv(frame), newline="")))
    rows = list(csv.reader(io.StringIO(rows_csv([{"name": name, "us": -1.5}]), newline="")))
    assert table[1:] == [[f"'{name}", "-1.5"], ["aten::mm", "2.0"], ["-", "3.0"]]
    assert rows[1] == table[1]
