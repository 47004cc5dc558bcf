"""Parts as tables for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_origin

from perfmodel.hardware.catalogue import figures, find
from perfmodel.hardware.parts import KINDS, Part, kind_of
from perfmodel.hardware.schema import Field, fields_of

if TYPE_CHECKING:
    import pandas as pd


def frame(words: str = "", kind: str = "device") -> pd.DataFrame:
    """The catalogue's parts of one kind that `find` finds, one row each, one column per figure.

    Index: name; columns: maker, texts, names of the parts within, then figures (NaN where a part
    has none). Raises `HardwareError` for an unknown kind.
    """
    import pandas as pd

    result = find(words, kind)
    entries = fields_of(KINDS[kind])
    texts = [key for key, entry in entries.items() if _is_word(entry)]
    numbers = [key for key, entry in entries.items() if entry.is_figure]
    rows = [
        {key: None if (value := getattr(part, key)) is None else str(value) for key in texts}
        | {key: getattr(part, key) for key in numbers}
        for part in result
    ]
    columns = pd.DataFrame(rows, columns=[*texts, *numbers]).set_index("name")
    return columns.astype(dict.fromkeys(numbers, "float64"))


def part_html(part: Part) -> str:
    """Every figure of a part with its source, and the parts within it by name."""
    from perfmodel.plot import table_html

    held = [
        (key, getattr(part, key), part.sources.get(key, ""))
        for key, entry in fields_of(type(part)).items()
        if _is_word(entry) and key != "name" and getattr(part, key) is not None
    ]
    rows = [*held, *((each.key, each.value, each.source) for each in figures(part))]
    return table_html(rows, ("figure", "value", "source"), f"{part.name} ({kind_of(part)})")


def _is_word(entry: Field) -> bool:
    """Whether one word says it: a text, a choice, or a part by its name."""
    return entry.type is str or entry.is_part or get_origin(entry.type) is Literal


Part._repr_html_ = part_html  # type: ignore[attr-defined]
"""Notebooks ask the value itself; set here, so that parts need not import their catalogue."""
