"""Pieces of the page: sortable tables, cards, figures. Every text from a trace is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from perfmodel.plot.html import text_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def section(name: str, title: str, *content: str) -> str:
    """A section of the page under a heading."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(content)}</section>'


def paragraph(text: str) -> str:
    """One paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def items(texts: Iterable[str]) -> str:
    """A list of plain texts."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def numbered(rows: Iterable[tuple[str, str]]) -> str:
    """A ranked list: a plain text each, and below it what to type."""
    shown = "".join(
        f"<li>{escape(text)}<code>{escape(command)}</code></li>" for text, command in rows
    )
    return f'<ol class="ranked">{shown}</ol>'


def cards(figures: Mapping[str, str]) -> str:
    """Short figures with what they are."""
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in figures.items()
    )
    return f'<dl class="cards">{shown}</dl>'


def sortable(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> str:
    """A table whose headings are buttons that sort it; numbers keep their full value to sort by."""
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(name)}</button></th>'
        for name in columns
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="sortable"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="number" data-value="{value!r}">{escape(text_of(value))}</td>'
    return f"<td>{escape(text_of(value))}</td>"


def picture(figure: Figure, caption: str) -> str:
    """A figure as vector graphics within the page."""
    from perfmodel.plot.canvas import svg_text

    return f"<figure>{svg_text(figure)}<figcaption>{escape(caption)}</figcaption></figure>"


def data(name: str, value: Any) -> str:
    """`value` as JSON that the page's script reads; nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{safe}</script>'
