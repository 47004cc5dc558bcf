"""Why each table of a plan is where it is, and why nothing fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs import Deployment
from perfmodel.explore.planner.problem import HBM, Layout, Problem, Way

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


def reasons(layout: Layout, deployment: Deployment) -> Iterator[dict[str, Any]]:
    """Per table of the deployment what was chosen, its share of a step, and the runner-up."""
    problem, terms = layout.problem, _terms(layout)
    total = terms.sum(axis=1)
    for number, own in enumerate(problem.of_table):
        chosen, table = int(layout.chosen[number]), deployment.workload.tables[number]
        way, placed = problem.ways[chosen], deployment.placement.tables[number]
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
            "work_us": float(problem.work_us[chosen] * way.parts),
            "added_us": float(total[chosen]),
        }
        if len(others):
            best = int(others[total[others].argmin()])
            row |= _runner_up(problem.ways[best], terms[best] - terms[chosen])
        yield row


def _runner_up(way: Way, more: Floats) -> dict[str, Any]:
    """Another way for a table, and what it would add by itself, `[terms]`."""
    name = way.sharding if way.parts == 1 else f"{way.sharding} x{way.parts}"
    name += TIER_TEXTS[way.tier]
    if way.cached_frac:
        name += f" ({way.cached_frac:.0%} cached)"
    total, largest = float(more.sum()), TERMS[int(more.argmax())]
    why = f"{name} would add {total:.3g} us, most of it {largest}"
    if total >= NEVER:
        why = f"{name} does not fit"
    elif total < 0:
        why = f"{name} would save {-total:.3g} us by itself, but not beside the other tables"
    return {"instead": name, "instead_us": total if total < NEVER else None, "why": why}


def _terms(layout: Layout) -> Floats:
    """What each choice adds to a step of which all ranks have an even part, `[ways, terms]`.

    `shown`: by how much the step gets longer with one more microsecond of exchange; `shown_sums`:
    whether it waits for communication, not for kernels.
    """
    problem = layout.problem
    ranks = problem.ranks
    parts = problem.parts / ranks
    work_us, exchange_us = layout.held[:, 0], layout.exchange_us
    busiest, mean = float(work_us.max()), float(work_us.mean())
    summed = float(problem.summed_us[layout.chosen].sum())
    step_us = problem.step_us(busiest, exchange_us, summed)
    shown = float(problem.step_us(busiest, exchange_us + 1.0, summed) - step_us)
    shown_sums = float(problem.step_us(busiest, exchange_us, summed + 1.0) > step_us)
    return np.column_stack(
        [
            problem.work_us * parts,
            shown * (problem.sent_us * parts + problem.shared_us),
            shown_sums * problem.summed_us,
            np.maximum(problem.work_us - mean, 0.0),
            np.where(problem.too_large, NEVER, 0.0),
        ]
    )


NAMES = ("device", "host", "expansion", "drive")
"""Of `MEMORIES`."""


def shortage(problem: Problem, deployment: Deployment) -> str:
    """Why nothing fits: the largest part of a table, or all tables, and by how much."""
    name = deployment.workload.name
    where = f"{problem.ranks} x {deployment.machine.node.device.name}"
    held_bytes, room_bytes = problem.sizes[:, HBM:], np.array(problem.room_bytes)
    over = (held_bytes - room_bytes).max(axis=1)
    for number, own in enumerate(problem.of_table):
        over_bytes = float(over[own].min())
        if over_bytes > 0:
            return (
                f"{name}: tables[{number}]: its smallest part is {_gb(over_bytes)} larger than "
                f"what any tier of a rank of {where} holds"
            )
    used = held_bytes.any(axis=0)
    whole = held_bytes.sum(axis=1) * problem.parts
    needed = sum(float(whole[own].min()) for own in problem.of_table)
    has = float(room_bytes[used].sum()) * problem.ranks
    memories = " and ".join(np.array(NAMES)[used]) + " memory"
    if needed > has:
        of = f"the {_gb(has)} of {memories} that {where} have for tables"
        return f"{name}: its tables need {_gb(needed - has)} more than {of}"
    return (
        f"{name}: its tables of {_gb(needed)} come near the {_gb(has)} that {where} have for "
        "tables, and no layout of whole parts was found"
    )


def _gb(count: float) -> str:
    return f"{count / BYTES_PER_GB:.3g} GB"
