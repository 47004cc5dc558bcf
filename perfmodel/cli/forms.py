"""The CSV of an answer as files that other programs read."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from perfmodel.cli.options import Format

if TYPE_CHECKING:
    import pandas as pd

_MADE_INERT = re.compile(r"\A'(?=[=+\-@\t\r].)")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def _frame(text: str) -> pd.DataFrame:
    """A column per column; of texts, only an empty cell is missing."""
    import pandas as pd

    if not text.strip():
        return pd.DataFrame()
    return pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])


def _markdown(text: str) -> bytes:
    rows = [[_cell(each) for each in row] for row in csv.reader(io.StringIO(text)) if row]
    rows[1:1] = [["---"] * len(row) for row in rows[:1]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).encode()


def _cell(text: str) -> str:
    shown = " ".join(_MADE_INERT.sub("", text).split()).replace("\\", "\\\\")
    return re.sub(r"([|<`*])", r"\\\1", shown)


def _parquet(text: str) -> bytes:
    frame, content = _frame(text), io.BytesIO()
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        cells = frame[name].tolist()
        frame[name] = [_MADE_INERT.sub("", x) if isinstance(x, str) else x for x in cells]
    frame.to_parquet(content, index=False)
    return content.getvalue()


def _workbook(text: str) -> bytes:
    content = io.BytesIO()
    _frame(_CONTROL.sub("?", text)).to_excel(content, index=False, engine="openpyxl")
    return content.getvalue()


FORMS: Mapping[Format, Callable[[str], bytes]] = MappingProxyType(
    {Format.MARKDOWN: _markdown, Format.PARQUET: _parquet, Format.WORKBOOK: _workbook}
)
