"""Why each table is where it is: what its next best way would add to the step, and as what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.designs import Deployment
from perfmodel.embedding import Placement
from perfmodel.explore.planner.problem import Layout, Problem
from perfmodel.explore.planner.search import room
from perfmodel.explore.planner.surrogate import Surrogate

TERMS = ("lookups", "exchange", "sums of gradients", "balance", "memory")
"""Of an addition: rows looked up and updated; pooled rows exchanged; gradients of replicas; one
shard larger than what a rank has on average; bytes beyond those of a device."""
NEVER = 1e15
TIER_TEXTS = {
    "hbm": "",
    "host": " in host memory",
    "expansion": " in expansion memory",
    "storage": " on drives",
}


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
            "hbm_gb": way.bytes_in("hbm") * way.parts / 1e9,
            "work_us": float(problem.choices.work_us[chosen] * way.parts),
            "added_us": float(total[chosen]),
        }
        if len(others):
            best = int(others[total[others].argmin()])
            row |= _runner_up(made, layout, terms, number, best)
        yield row


def _runner_up(
    made: Surrogate, layout: Layout, terms: Floats, number: int, other: int
) -> dict[str, Any]:
    more = terms[other] - terms[layout.chosen[number]]
    way, total = made.ways[other], float(more.sum())
    name = way.sharding if way.parts == 1 else f"{way.sharding} x{way.parts}"
    name += TIER_TEXTS[way.tier]
    if way.cached_frac:
        name += f" ({way.cached_frac:.0%} cached)"
    largest = TERMS[int(more.argmax())]
    if more[TERMS.index("memory")] >= NEVER:
        why = f"{name} does not fit"
    elif total >= 0:
        why = f"{name} would add {total:.3g} us, most of it {largest}"
    else:
        why = f"{name} would save {-total:.3g} us by itself, but {_obstacle(layout, number, other)}"
    return {"instead": name, "instead_us": total if total < NEVER else None, "why": why}


def _obstacle(layout: Layout, number: int, other: int) -> str:
    """Why a way that is better by itself is not beside the other tables."""
    problem = layout.problem
    chosen = layout.chosen
    held = layout.held.copy()
    held[list(layout.ranks[number])] -= problem.sizes[chosen[number]]
    where = room(problem, held, other, np.maximum(held.mean(axis=0), 1e-12))
    if where is None:
        return "the other tables leave no memory for it"
    changed = chosen.copy()
    changed[number] = other
    extra = problem.needed_us(changed) - problem.needed_us(chosen)
    if extra > 0:
        return f"no other table goes that way, which takes {extra:.3g} us however little it carries"
    busiest = float(
        (held[where, 0] + problem.choices.work_us[other]).max() - layout.held[:, 0].max()
    )
    if busiest > 0:
        return f"its rank would be the busiest, by {busiest:.3g} us"
    return "the step waits for other ranks: the full schedule decided"


def _terms(problem: Problem, layout: Layout) -> Floats:
    """What each choice adds to a step of which all ranks have an even part, `[choices, terms]`.

    `shown`: by how much the step gets longer with one more microsecond of exchange; `shown_sums`:
    whether it waits for communication, not for kernels.
    """
    choices, ranks = problem.choices, problem.ranks
    parts = choices.parts / ranks
    work_us, exchange_us = layout.held[:, 0], layout.exchange_us
    busiest, mean = float(work_us.max()), float(work_us.mean())
    summed = float(choices.summed_us[layout.chosen].sum())
    step_us = problem.step_us(busiest, exchange_us, summed)
    shown = float(problem.step_us(busiest, exchange_us + 1.0, summed) - step_us)
    shown_sums = float(problem.step_us(busiest, exchange_us, summed + 1.0) > step_us)
    return np.column_stack(
        [
            choices.work_us * parts,
            shown * (choices.sent_us * parts + choices.shared_us),
            shown_sums * choices.summed_us,
            np.maximum(choices.work_us - mean, 0.0),
            np.where(problem.too_large, NEVER, 0.0),
        ]
    )
