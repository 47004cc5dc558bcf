"""Rows as the ops and dtypes whose kernels they run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from perfmodel.arrays import Ints
from perfmodel.ops.rows import Rows

_SAME_KIND = {"bf16": "fp16", "tf32": "fp16"}
SAME_KERNELS = {"mm": ("linear", {"bias": 0.0})}
"""Ops that run the kernels of another one, with these dims, and have what was learned of it."""
BATCHED = "bmm"
_FEW = 16.0
"""Of so many products at most a batch may seem shorter than one alone (assumed)."""


def with_same_kernels(rows: Rows, alone: Collection[str] = ()) -> Rows:
    """`rows` as the ops whose kernels they run; raises `ModelError` on impossible ones.

    In the dtypes `alone` a batch of one is the product that it is.
    """
    alike = []
    for (op, dtype), index in rows.grouped(lambda kind: (kind.op, kind.dtype)):
        if op in SAME_KERNELS or (op == BATCHED and dtype in alone):
            is_one = rows.dims_of(op, index)["b"] == 1.0
            kernels = SAME_KERNELS.get(op, SAME_KERNELS["mm"])
            alike.append((kernels, index if op in SAME_KERNELS else index[is_one]))
    if not any(len(index) for _, index in alike):
        return rows
    ops, dims = np.array(rows.op, object), dict(rows.dims)
    for (other, given), index in alike:
        ops[index] = other
        for name, value in given.items():
            dims[name] = dims.get(name, np.full(len(rows), np.nan)).copy()
            dims[name][index] = value
    return replace(rows, op=tuple(ops.tolist()), dims=dims)


def one_of_each(rows: Rows, alone: Collection[str]) -> tuple[Ints, Rows]:
    """(the batches of few among `rows` in the dtypes `alone`, one product of each)."""
    of_kind = rows.of_kinds(lambda kind: kind.op == BATCHED and kind.dtype in alone, bool)
    batches = np.flatnonzero(of_kind & (rows.dims.get("b", np.full(len(rows), np.nan)) <= _FEW))
    own = rows.take(batches)
    if not len(own):
        return batches, own
    dims = {**own.dims, "b": np.ones(len(own))}
    return batches, with_same_kernels(replace(own, dims=dims), alone)


def same_kernels_dtype(dtype: str) -> str:
    """The dtype for which the same kernels are written."""
    return _SAME_KIND.get(dtype, dtype)
