"""Columns of measurement tables that must hold numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Floats
from perfmodel.ops.storage import item_bytes

if TYPE_CHECKING:
    import pandas as pd


def numbers_of(frame: pd.DataFrame, *more: str) -> dict[str, Floats]:
    """The columns that are dims of an op that occurs, and those of `more` that there are.

    Raises `ModelError` that names row and column where one is no number.
    """
    specs = [OPS[op] for op in frame["op"].unique() if op in OPS]
    dims = {name for spec in specs for name in (*spec.dims, *spec.defaults)}
    return {name: _numbers(frame, name) for name in sorted((dims | {*more}).intersection(frame))}


def _numbers(frame: pd.DataFrame, name: str) -> Floats:
    import pandas as pd

    column = frame[name]
    if not pd.api.types.is_numeric_dtype(column):
        bad = pd.to_numeric(column, errors="coerce").isna() & column.notna()
        at = int(np.argmax(bad.to_numpy()))
        raise ModelError(f"row {at}: {name} is {str(column.iloc[at])[:40]!r}; expected a number")
    return np.asarray(column, np.float64)


def require_dims(frame: pd.DataFrame, dims: Mapping[str, Floats]) -> None:
    """Raise `ModelError` where a row of a known op lacks a dim, or has one that cannot be."""
    rows = Rows((), (), (), (), dims)
    for op, index in frame.groupby("op", sort=False).indices.items():
        if op in OPS:
            rows.dims_of(str(op), index)
    if "dtype" in frame:
        dtypes = frame["dtype"][frame["op"].isin(list(OPS))].dropna().astype(str)
        item_bytes(sorted(dtypes.unique()))
