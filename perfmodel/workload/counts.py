"""How large a workload is: parameters, lookups, arithmetic per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.workload.model import Workload

TRAINING_FACTOR = 3
"""A training step does each matrix product once forward and twice backward."""


@dataclass(frozen=True)
class Counts:
    """Of one model: parameters, and per sample lookups and multiply-adds (counted as two)."""

    tables: int
    table_rows: int
    table_parameters: int
    dense_parameters: int
    lookups: float
    lookup_elements: float
    forward_flop: float
    training_flop: float


def counts(workload: Workload) -> Counts:
    """Parameters of `workload`, and what one sample takes in its matrix products."""
    widths = (workload.bottom_widths, workload.top_widths)
    layers = sum(map(_multiply_adds, widths))
    biases = sum(sum(each[1:]) for each in widths)
    cross, cross_biases = _cross(workload)
    flop = 2.0 * (layers + cross) + _pairs_flop(workload)
    return Counts(
        tables=len(workload.tables),
        table_rows=sum(table.rows for table in workload.tables),
        table_parameters=sum(table.rows * table.dim for table in workload.tables),
        dense_parameters=layers + biases + cross + cross_biases,
        lookups=sum(table.pooling for table in workload.tables),
        lookup_elements=sum(table.pooling * table.dim for table in workload.tables),
        forward_flop=flop,
        training_flop=TRAINING_FACTOR * flop,
    )


def _multiply_adds(widths: Sequence[int]) -> int:
    return sum(before * after for before, after in pairwise(widths))


def _cross(workload: Workload) -> tuple[int, int]:
    """Weights and biases of the cross layers."""
    about = workload.interaction
    if about.kind != "dcn_v2":
        return 0, 0
    width = workload.joined_width
    return about.layers * 2 * width * about.rank, about.layers * width


def _pairs_flop(workload: Workload) -> float:
    """The dot interaction multiplies all vectors with all."""
    if workload.interaction.kind != "dot":
        return 0.0
    return 2.0 * (len(workload.tables) + 1) ** 2 * workload.dim
