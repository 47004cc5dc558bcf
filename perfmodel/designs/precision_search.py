"""Which precision each layer and table takes: the fastest within its error budget, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

from perfmodel.designs.deployment import Deployment
from perfmodel.designs.rounding import error_of, within
from perfmodel.duration import durations_of
from perfmodel.errors import WorkloadError
from perfmodel.ops.rows import Rows
from perfmodel.ops.stored_rows import row_bytes

if TYPE_CHECKING:
    import pandas as pd

BUDGET, SPEED, TOTAL = "error budget", "no faster", "total error budget"


@dataclass(frozen=True)
class Choice:
    """One layer or table: what it takes, and what keeps it from fewer bits (`held_by`).

    `us`: of its product, or nothing for a table; `bytes` of its weights or rows.
    """

    name: str
    dtype: str
    error: float
    budget: float
    us: float
    wide_us: float
    bytes: float
    wide_bytes: float
    held_by: str


@dataclass(frozen=True)
class Search:
    """Choices of all layers (bottom MLP, then top) and of all tables."""

    layers: tuple[Choice, ...]
    tables: tuple[Choice, ...]

    @property
    def error(self) -> float:
        """Of the layers together, as independent errors add up."""
        return sqrt(sum(choice.error**2 for choice in self.layers))

    @property
    def higher(self) -> tuple[str, ...]:
        """Layers and tables that stay in a higher precision than the narrowest one chosen."""
        found = []
        for choices in (self.layers, self.tables):
            lowest = max((choice.error for choice in choices), default=0.0)
            found += [choice.name for choice in choices if choice.error < lowest]
        return tuple(found)

    @property
    def saved_bytes(self) -> float:
        """Of weights and rows."""
        return sum(each.wide_bytes - each.bytes for each in (*self.layers, *self.tables))

    def to_frame(self) -> pd.DataFrame:
        """One row per layer and table."""
        import pandas as pd

        rows = [
            {part.name: getattr(each, part.name) for part in fields(each)}
            for each in (*self.layers, *self.tables)
        ]
        return pd.DataFrame(rows)


def search(
    deployment: Deployment,
    layer_budgets: Sequence[float],
    table_budgets: Sequence[float],
    layer_dtypes: tuple[str, ...],
    row_dtypes: tuple[str, ...],
    total_budget: float = 0.0,
) -> Search:
    """Per layer the fastest of `layer_dtypes` within its budget, per table the narrowest of
    `row_dtypes`; budgets are relative errors, one for each or one for all.

    With a `total_budget`, layers that gain least time for their error go back to a wider type until
    all errors together are within it. Raises `WorkloadError`.
    """
    return Search(
        _within_total(_layers(deployment, layer_budgets, layer_dtypes), total_budget),
        tuple(_tables(deployment, table_budgets, row_dtypes)),
    )


def _layers(
    deployment: Deployment, budgets: Sequence[float], dtypes: tuple[str, ...]
) -> list[list[Choice]]:
    """Per layer its possible choices, the fastest first."""
    workload = deployment.workload
    stacks = {"bottom": workload.bottom_widths, "top": workload.top_widths}
    named = [
        (f"{name}[{number}]", sizes)
        for name, widths in stacks.items()
        for number, sizes in enumerate(pairwise(widths))
    ]
    each = _one_each(budgets, len(named), "layers")
    samples = deployment.batch // deployment.ranks
    wide = workload.implementation.precision
    tried = (wide, *(dtype for dtype in dtypes if dtype != wide))
    rows = [
        {"op": "linear", "dtype": dtype, "b": 1, "m": samples, "n": n, "k": k, "bias": 1}
        for _, (k, n) in named
        for dtype in tried
    ]
    times = durations_of(Rows.of(rows), deployment.machine).duration_us.reshape(-1, len(tried))
    found = []
    for (name, (k, n)), budget, taken in zip(named, each, times.tolist(), strict=True):
        us = dict(zip(tried, taken, strict=True))
        allowed = {wide, *within(budget, dtypes)} & set(tried)
        order = sorted(allowed, key=lambda dtype: (us[dtype], error_of(dtype)))
        narrower = [d for d in dtypes if error_of(d) > error_of(order[0])]
        refused = [d for d in narrower if d not in allowed and us[d] < us[order[0]]]
        held = BUDGET if refused else SPEED if narrower else ""
        sizes = {dtype: n * k * _element_bytes(dtype) for dtype in tried}
        found.append(
            [
                Choice(
                    name,
                    dtype,
                    error_of(dtype),
                    budget,
                    us[dtype],
                    us[wide],
                    sizes[dtype],
                    sizes[wide],
                    held if place == 0 else TOTAL,
                )
                for place, dtype in enumerate(order)
            ]
        )
    return found


def _within_total(choices: list[list[Choice]], total: float) -> tuple[Choice, ...]:
    taken = [options[0] for options in choices]
    while total > 0 and sum(each.error**2 for each in taken) > total**2:
        best, least = None, float("inf")
        for number, options in enumerate(choices):
            for option in options:
                spared = taken[number].error ** 2 - option.error**2
                if spared > 0 and (option.us - taken[number].us) / spared < least:
                    best, least = (number, option), (option.us - taken[number].us) / spared
        if best is None:
            raise WorkloadError(
                f"low_precision: a total error of {total:g} is out of reach: the widest types "
                f"allowed give {sqrt(sum(each.error**2 for each in taken)):.2g}"
            )
        taken[best[0]] = replace(best[1], held_by=TOTAL)
    return tuple(taken)


def _tables(
    deployment: Deployment, budgets: Sequence[float], dtypes: tuple[str, ...]
) -> Iterator[Choice]:
    tables, placed = deployment.workload.tables, deployment.placement.tables
    each = _one_each(budgets, len(tables), "tables")
    for number, (table, about, budget) in enumerate(zip(tables, placed, each, strict=True)):
        sizes = {
            dtype: table.rows * float(row_bytes(dtype, table.dim))
            for dtype in (*dtypes, about.dtype)
        }
        allowed = {about.dtype, *within(budget, dtypes)} & set(sizes)
        dtype = min(allowed, key=lambda d: (sizes[d], error_of(d)))
        refused = any(sizes[d] < sizes[dtype] for d in dtypes)
        yield Choice(
            f"tables[{number}]",
            dtype,
            error_of(dtype),
            budget,
            0.0,
            0.0,
            sizes[dtype],
            sizes[about.dtype],
            BUDGET if refused else "",
        )


def _one_each(budgets: Sequence[float], count: int, what: str) -> tuple[float, ...]:
    if len(budgets) not in (1, count):
        raise WorkloadError(
            f"low_precision: {len(budgets)} error budgets for {count} {what}: one for each, or one"
        )
    return tuple(budgets) * (count if len(budgets) == 1 else 1)


def _element_bytes(dtype: str) -> float:
    return {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0}.get(dtype, 1.0)
