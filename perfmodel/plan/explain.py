"""Why each table lies where it does: what its next best way would add to the step, and as what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from perfmodel.designs import Deployment
from perfmodel.placement import Placement
from perfmodel.plan.problem import Floats, Layout, Problem
from perfmodel.plan.surrogate import Surrogate

TERMS = ("lookups", "exchange", "sums of gradients", "balance", "memory")
"""Of an addition: rows looked up and updated; pooled rows exchanged; gradients of replicas; one
shard larger than what a rank has on average; bytes beyond those of a device."""
NEVER = 1e15


def reasons(
    made: Surrogate, layout: Layout, placement: Placement, deployment: Deployment
) -> Iterator[dict[str, Any]]:
    """Per table what was chosen, its share of a step, and the runner-up."""
    problem = made.problem
    terms = _terms(problem, layout)
    total = terms.sum(axis=1)
    for number, own in enumerate(problem.of_table):
        chosen = int(layout.chosen[number])
        way, placed = made.ways[chosen], placement.tables[number]
        table = deployment.workload.tables[number]
        others = own[own != chosen]
        row: dict[str, Any] = {
            "table": number,
            "rows": table.rows,
            "dim": table.dim,
            "pooling": table.pooling,
            "sharding": placed.sharding,
            "ranks": list(placed.ranks),
            "tier": placed.tier,
            "dtype": placed.dtype,
            "hot_rows": placed.hot_rows,
            "caches": list(placed.caches),
            "hbm_gb": way.hbm_bytes * way.parts / 1e9,
            "work_us": float(problem.choices.work_us[chosen] * way.parts),
            "added_us": float(total[chosen]),
        }
        if len(others):
            row |= _against(made, terms, chosen, int(others[total[others].argmin()]))
        yield row


def _against(made: Surrogate, terms: Floats, chosen: int, other: int) -> dict[str, Any]:
    more = terms[other] - terms[chosen]
    way, total = made.ways[other], float(more.sum())
    name = way.sharding if way.parts == 1 else f"{way.sharding} x{way.parts}"
    if way.tier != "hbm":
        name += f" in {way.tier} memory"
    largest = TERMS[int(more.argmax())]
    if more[TERMS.index("memory")] >= NEVER:
        why = f"{name} does not fit"
    elif total >= 0:
        why = f"{name} would add {total:.3g} us, most of it {largest}"
    else:
        why = f"{name} would save {-total:.3g} us by itself; beside the other tables it does not"
    return {"instead": name, "instead_us": total if total < NEVER else None, "why": why}


def _terms(problem: Problem, layout: Layout) -> Floats:
    """What each choice adds to a step of which all ranks have an even part, `[choices, terms]`."""
    choices, ranks = problem.choices, problem.ranks
    parts = choices.parts / ranks
    exchange_us = layout.exchange_us
    shown = _slope(problem, layout, exchange_us)
    mean = float(layout.loads["work_us"].mean())
    shown_sums = 1.0 if _is_sent(problem, layout) else 0.0
    over = choices.hbm_bytes > problem.hbm_bytes
    return np.column_stack(
        [
            choices.work_us * parts,
            shown * (choices.sent_us * parts + choices.shared_us),
            shown_sums * choices.summed_us,
            np.maximum(choices.work_us - mean, 0.0),
            np.where(over, NEVER, 0.0),
        ]
    )


def _slope(problem: Problem, layout: Layout, exchange_us: float) -> float:
    """How much of one more microsecond of exchange the step gets longer by."""
    busiest = float(layout.loads["work_us"].max())
    summed = float(problem.choices.summed_us[layout.chosen].sum())
    more = exchange_us + 1.0
    before, after = (problem.step_us(busiest, us, summed) for us in (exchange_us, more))
    return float(after - before)


def _is_sent(problem: Problem, layout: Layout) -> bool:
    """Whether the step waits for communication, not for kernels."""
    busiest = float(layout.loads["work_us"].max())
    summed = float(problem.choices.summed_us[layout.chosen].sum())
    more = problem.step_us(busiest, layout.exchange_us, summed + 1.0)
    return bool(more > problem.step_us(busiest, layout.exchange_us, summed))
