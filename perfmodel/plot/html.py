"""Small HTML tables for `_repr_html_`, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isfinite
from numbers import Integral, Real

Row = Sequence[object] | Mapping[str, object]

MISSING = "–"


def table_html(rows: Iterable[Row], columns: Sequence[str], caption: str = "") -> str:
    """An HTML table of `rows` (sequences in the order of `columns`, or mappings by column).

    Numbers stand right with thousands separated: whole ones as they are, others with one decimal,
    small ones with three figures. None and NaN show as a dash.
    """
    head = "".join(f"<th{_right(name)}>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(_cell(value) for value in _values(row, columns))}</tr>" for row in rows
    )
    title = f'<caption style="{_CAPTION}">{escape(caption)}</caption>' if caption else ""
    return (
        f'<table class="perfmodel" style="border-collapse:collapse">{title}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def text_of(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if isinstance(value, Integral):
        return f"{int(value):,}"
    number = float(value)
    if not isfinite(number):
        return MISSING
    if number == 0 or abs(number) >= 1:
        return f"{number:,.1f}"
    return f"{number:.3g}"


_CAPTION = "text-align:left;font-weight:bold;caption-side:top"
_RIGHT = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'
_UNITS = ("_us", "_ms", "_pct", "_frac", "_bytes", "_flop", "_per_s", "_w", "_usd")


def _values(row: Row, columns: Sequence[str]) -> list[object]:
    if isinstance(row, Mapping):
        return [row.get(name) for name in columns]
    return list(row)


def _right(name: str) -> str:
    return _RIGHT if name.endswith(_UNITS) else _LEFT


def _cell(value: object) -> str:
    is_number = value is None or (isinstance(value, Real) and not isinstance(value, bool))
    return f"<td{_RIGHT if is_number else _LEFT}>{escape(text_of(value))}</td>"
