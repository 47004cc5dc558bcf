"""Tables for notebooks."""

from perfmodel.plot import table_html


def test_every_text_is_escaped() -> None:
    html = table_html([["<script>alert(1)</script>"]], ["<b>name</b>"], 'a "caption" & <i>more</i>')
    for raw in ("<script", "<b>", "<i>", "& "):
        assert raw not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "a &quot;caption&quot; &amp; &lt;i&gt;more&lt;/i&gt;" in html


def test_numbers_are_written_for_people() -> None:
    rows = [[1234567, 1234.56, 0.01234, None, float("nan"), True, 0.0]]
    html = table_html(rows, list("abcdefg"))
    cells = [part.split("<")[0] for part in html.split("<td")[1:]]
    texts = [cell.split(">")[1] for cell in cells]
    assert texts == ["1,234,567", "1,234.6", "0.0123", "–", "–", "True", "0.0"]


def test_rows_may_be_mappings() -> None:
    assert ">7</td>" in table_html([{"b": 7}], ["a", "b"])


def test_means_of_counts_are_whole_where_they_are_and_percentages_have_one_decimal() -> None:
    rows = [[41.0, 0.0968], [2.5, -1.34], [12_345.6, 0.136]]
    html = table_html(rows, ["count", "error_pct"])
    for text in ("41", "2.5", "12,346", "0.1", "-1.3"):
        assert f">{text}</td>" in html
