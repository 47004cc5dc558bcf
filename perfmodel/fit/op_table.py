"""The table of `collect ops` as rows of the vocabulary: operators lowered as a prediction does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.graph.ops import Argument, Op, Tensor
from perfmodel.kernels.cpu.call import WATCHED
from perfmodel.lowering.step_rows import STEP_BYTES, written_bytes
from perfmodel.lowering.names import rule_of
from perfmodel.lowering.piece import Piece, Untold
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats
from perfmodel.ops.torch_dtypes import dtype_of_torch

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("configuration", "op", "phase", "input_shapes", "input_dtypes", "scalars", "duration_us")
TARGET = "cpu"
_LEADING = {"aten::convolution": 3}
"""Tensor arguments that may be absent and stand before the scalars."""
_LAYOUTS = {"sparse_coo": "sparse"}


@dataclass(frozen=True)
class Operators:
    """Measured operators that became one piece each, and the rows of the table that they were."""

    rows: Rows
    duration_us: Floats
    spread_frac: Floats
    configuration: tuple[str, ...]
    count: Floats
    skipped: dict[str, int]
    """Operators that no rule lowers to one piece, and how many rows there are of each."""


def is_op_table(frame: pd.DataFrame) -> bool:
    """Whether a table was written by `collect ops`."""
    return set(COLUMNS) <= set(frame.columns)


def operators_of(frame: pd.DataFrame) -> Operators:
    """Operators of real steps in `frame`; probes, and what ran only to be watched, left out."""
    kept: list[tuple[int, Piece]] = []
    skipped: dict[str, int] = {}
    watched = frame["artefact"].fillna(0).to_numpy() > 0 if "artefact" in frame else None
    for row, record in enumerate(frame.to_dict("records")):
        if record["phase"] == "probe" or (watched is not None and watched[row]):
            continue
        pieces = _pieces(op_of(record))
        if len(pieces) == 1:
            kept.append((row, pieces[0]))
        else:
            name = str(record["op"])
            skipped[name] = skipped.get(name, 0) + 1
    index = np.array([row for row, _ in kept], np.int64)
    part = frame.iloc[index]
    rows = Rows.of([_row(piece) for _, piece in kept])
    duration = part["duration_us"].to_numpy(np.float64)
    median = part["median_us"].to_numpy(np.float64) if "median_us" in part else duration
    names = tuple(part["configuration"].astype(str))
    count = part["count"].to_numpy(np.float64) if "count" in part else np.ones(len(part))
    step_bytes = _per_configuration(names, written_bytes(rows) * count)
    return Operators(
        rows=replace(rows, dims={**rows.dims, STEP_BYTES: step_bytes}),
        duration_us=duration,
        spread_frac=median / duration - 1,
        configuration=names,
        count=count,
        skipped=skipped,
    )


def op_of(record: dict[str, Any]) -> Op:
    """One row as an op: its tensors in order, then its scalars."""
    shapes, types = json.loads(record["input_shapes"]), json.loads(record["input_dtypes"])
    layouts = record.get("input_layouts")
    kinds = json.loads(layouts) if isinstance(layouts, str) else [""] * len(shapes)
    scalars = json.loads(record["scalars"])
    tensors = [_tensor(*each) for each in zip(shapes, types, kinds, strict=True)]
    name = str(record["op"]).split(".")[0]
    tensors += [None] * (_LEADING.get(name, 0) - len(tensors))
    made = record.get("output_shapes")
    outputs = json.loads(made) if isinstance(made, str) else []
    first = next(iter(types), "float32")
    dtype = first if isinstance(first, str) else str(scalars.get("dtype", "float32"))
    attributes = {}
    if "nnz" in scalars:
        attributes["nnz"] = str(scalars["nnz"])
    unique = record.get("unique_rows")
    if unique is not None and unique == unique and unique > 0:
        attributes["unique_rows"] = str(unique)
    return Op(
        name=name,
        inputs=(*tensors, *(_plain(value) for value in scalars.values())),
        outputs=tuple(Tensor(tuple(shape), _dtype(dtype)) for shape in outputs),
        phase=str(record["phase"]),
        attributes=attributes,
    )


def _pieces(op: Op) -> tuple[Piece, ...]:
    rule = rule_of(op.name, TARGET) or rule_of(op.name, TARGET, leaf=True)
    if rule is None:
        return ()
    try:
        return tuple(rule(op))
    except Untold:
        return ()


def _row(piece: Piece) -> dict[str, Any]:
    texts = {"op": piece.op, "dtype": piece.dtype, "direction": piece.direction}
    return {**piece.dims, **texts, "timing": WATCHED}


def _tensor(shape: Any, dtype: Any, layout: Any) -> Argument:
    if isinstance(dtype, list):
        layouts = layout if isinstance(layout, list) else [layout] * len(dtype)
        return tuple(_tensor(*each) for each in zip(shape, dtype, layouts, strict=True))
    lengths = tuple(shape)
    return Tensor(
        lengths, _dtype(dtype), layout=_LAYOUTS.get(layout, ""), strides=_strides(lengths, layout)
    )


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Of a tensor whose last two dimensions may be swapped; of any other, not known."""
    if layout != "transposed":
        return ()
    swapped = (*shape[:-2], shape[-1], shape[-2])
    strides = [1] * len(swapped)
    for at in range(len(swapped) - 2, -1, -1):
        strides[at] = strides[at + 1] * swapped[at + 1]
    return (*strides[:-2], strides[-1], strides[-2])


def _dtype(word: str) -> str:
    found = dtype_of_torch(word)
    if found is None:
        raise ModelError(f"unknown dtype {word!r} of an operator")
    return found


def _plain(value: Any) -> Argument:
    return tuple(_plain(item) for item in value) if isinstance(value, list) else value


def _per_configuration(names: Iterable[str], values: Floats) -> Floats:
    """The sum of `values` over the rows of the same configuration."""
    total: dict[str, float] = {}
    names = tuple(names)
    for name, value in zip(names, values.tolist(), strict=True):
        total[name] = total.get(name, 0.0) + value
    return np.array([total[name] for name in names])
