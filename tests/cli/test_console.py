"""Tables as plain text to a pipe, and by Rich on a page of a width."""

from __future__ import annotations

import csv
import io
import random

import pytest

from perfmodel.cli.console import Console
from perfmodel.cli.output import csv_text
from perfmodel.reporting.tables import Table, columns, figure_text, per_samples, three_digits

WORDS = ("", "a", "1,234.5", "aten::mm", "elementwise … kernel", "µs", "x" * 23, "-")
HEADS = ("name", "time", "of step", "", "TFLOP/s", "größe")


def drawn(seed: int) -> Table:
    of = random.Random(seed)
    texts = of.randint(0, 2)
    heads = of.choices(HEADS, k=of.randint(1, 6))
    spec = ";".join(f"{at}={head}{'' if at < texts else ':s'}" for at, head in enumerate(heads))
    rows = [of.choices(WORDS, k=len(heads)) for _ in range(of.randint(0, 5))]
    title = " ".join(of.choices(("Top kernels,", "per step (ms)", "", "Ränge"), k=of.randint(0, 5)))
    records = [{str(at): cell for at, cell in enumerate(row)} for row in rows]
    return Table(title.strip(), columns(spec), records)


@pytest.mark.parametrize("width", [40, 80, 300])
def test_no_line_is_wider_than_the_page_and_no_number_is_cut(width: int) -> None:
    for seed in range(80):
        page, table = Console(width), drawn(seed)
        page.show(table)
        assert all(len(line) <= width for line in page.text.splitlines()), seed
        if "(no room for" not in page.text:
            numbers = [at for at, column in enumerate(table.columns) if not column.is_text]
            assert all(row[at] in page.text for row in table.rows() for at in numbers), seed


def test_a_pipe_shows_every_column_and_cell() -> None:
    for seed in range(80):
        page, table = Console(), drawn(seed)
        page.show(table)
        cells = [cell for row in table.rows() for cell in row]
        assert all(cell in page.text for cell in cells)
        assert "no room" not in page.text


def test_columns_stand_below_their_heads() -> None:
    page = Console()
    rows = [{"cause": "gap", "us": 1.0, "frac": 0.5}, {"cause": "wait", "us": None, "frac": 0.25}]
    page.show(Table("Idle", columns("cause;us=time|here:us;frac=share:share"), rows))
    assert page.text.splitlines() == [
        "",
        "Idle (us)",
        "       time",
        "cause  here   share",
        "───────────────────",
        "gap     1.0  50.0 %",
        "wait      -  25.0 %",
    ]


def test_the_last_columns_go_first_and_are_named() -> None:
    row = {"step": "12,345.678", "memory": "12,345.678", "cause": "host", "usd": "0.001"}
    heads = columns("design:name;step:s;memory:s;cause!;usd=USD:s")
    page = Console(46)
    page.show(Table("Designs", heads, [{"design": "software_cache"} | row]))
    assert page.text.splitlines()[2].split() == ["design", "step", "memory", "cause"]
    assert "software_cache" in page.text
    assert "(no room for: USD)" in page.text


def test_empty_columns_go_before_the_last_one() -> None:
    row = {"step": "12,345.678", "comm_us": 0.0, "memory": "12,345.678", "usd": "0.001"}
    page = Console(40)
    page.show(Table("", columns("step:s;comm_us=comm:us;memory:s;usd=USD:s"), [row]))
    assert "no room" not in page.text
    page.show(Table("", columns("step:s;memory:s;comm_us=exposed comm:us;usd=USD:s"), [row]))
    assert page.text.splitlines()[-1] == "(no room for: exposed comm)"


def test_long_names_lose_their_middle_and_stay_apart() -> None:
    rows = [{"step": f"Step_of_rank_{at}_forward_pass_alone_and_more", "us": 20.0} for at in "12"]
    page = Console(40)
    page.show(Table("Steps", columns("step;us=time:us;more:s"), rows))
    names = [line.split()[0] for line in page.text.splitlines()[-2:]]
    assert all(f"rank_{at}" in name for at, name in zip("12", names, strict=True))
    table = Table("", columns("step"), [{"step": "a" * 100 + "b" * 100}])
    assert "aa…bb" in table.rows()[0][0]
    whole = Table("", columns("step"), [{"step": "a" * 100}], full_names=True)
    assert whole.rows() == [["a" * 100]]


@pytest.mark.parametrize("name", ["=1+1", "+aten::add", "-lib", "@sum", "\tx"])
def test_a_name_is_no_formula_in_csv(name: str) -> None:
    import pandas as pd

    frame = pd.DataFrame({"name": [name, "aten::mm", "-"], "us": [-1.5, 2.0, 3.0]})
    table = list(csv.reader(io.StringIO(csv_text(frame), newline="")))
    rows = list(csv.reader(io.StringIO(csv_text([{"name": name, "us": -1.5}]), newline="")))
    assert table[1:] == [[f"'{name}", "-1.5"], ["aten::mm", "2.0"], ["-", "3.0"]]
    assert rows[1] == table[1]


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    page = Console(40)
    page.show("a" * 36 + " 12 % of it, " + "b" * 24 + " 3.5 ms, then")
    assert page.text.splitlines() == ["a" * 36, "12 % of it, " + "b" * 24, "3.5 ms, then"]


def test_a_line_that_ends_at_the_edge_leaves_no_blank_on_the_next() -> None:
    page = Console(40)
    page.show("a" * 35 + " bbbb " + "c" * 30)
    assert page.text.splitlines() == ["a" * 35 + " bbbb", "c" * 30]


def test_figures_have_three_digits_and_no_exponent() -> None:
    values = (0.0, 9.23e-05, 0.0178, 1.5, 12.34, 14_641_408.2, float("nan"))
    shown = ["0", "0.0000923", "0.0178", "1.50", "12.3", "14,641,408", "nan"]
    assert list(map(three_digits, values)) == shown
    assert three_digits(float("nan")) == "nan"
    assert per_samples([None, 2.0]) == (pytest.approx(1.0), "million")
    assert per_samples([2.0, 9.23e-05]) == (1e3, "billion")


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("step_us", 16310.0, "step 16.31 ms"),
        ("share_frac", 0.081, "share 8.1 %"),
        ("memory_total_bytes", 1.185e9, "memory total 1.19 GB"),
        ("median_pct", 3.14, "median 3.14 %"),
        ("samples_per_s", 14_641_408.2, "samples per s 14,641,408"),
        ("speed_up", 1.25, "speed up 1.25"),
        ("ranks", 8, "ranks 8"),
        ("of_n", float("nan"), "of n nan"),
    ],
)
def test_a_figure_in_words_has_the_unit_of_its_key(key: str, value: float, shown: str) -> None:
    assert figure_text(key, value) == shown


def test_bytes_are_shown_in_gb_and_kept_whole() -> None:
    table = Table("", "size_bytes=GB:gb", [{"size_bytes": 1_500_000_000}])
    assert (table.rows(), table.values) == ([["1.500"]], [[1_500_000_000]])


def test_only_a_word_that_is_too_wide_loses_its_middle() -> None:
    page, name = Console(46), "autograd::engine::evaluate_function: AddmmBackward0"
    page.show(Table("", "op;us:s!;more:s!", [{"op": name, "us": "1.0", "more": "2" * 20}]))
    first, second = page.text.splitlines()[-2:]
    assert "…" in first
    assert first.endswith("2" * 20)
    assert second == "AddmmBackward0"


def test_a_path_in_a_line_stays_whole_and_one_in_a_cell_stays_in_it() -> None:
    path = "/" + "/".join("folder" for _ in range(20))
    page = Console(60)
    page.show(f"wrote {path} as JSON", Table("Files", "file;n:d", [{"file": path, "n": 3}]))
    lines = page.text.splitlines()
    assert lines[:3] == ["wrote", path, "as JSON"]
    assert max(map(len, lines[3:])) <= 60
