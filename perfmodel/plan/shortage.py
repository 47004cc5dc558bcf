"""Why no layout fits, and by how much."""

from __future__ import annotations

import numpy as np

from perfmodel.designs import Deployment
from perfmodel.plan.problem import MEMORIES
from perfmodel.plan.surrogate import Surrogate
from perfmodel.units import BYTES_PER_GB

NAMES = dict(zip(MEMORIES, ("device", "host", "drive"), strict=True))


def shortage(made: Surrogate, deployment: Deployment) -> str:
    """Why nothing fits: the largest part of a table, or all tables, and by how much."""
    problem, name = made.problem, deployment.workload.name
    where = f"{problem.ranks} x {deployment.machine.node.device.name}"
    for number, own in enumerate(problem.of_table):
        choices = problem.choices
        over = np.max(
            [getattr(choices, each)[own] - getattr(problem, each) for each in MEMORIES], axis=0
        )
        if over.min() > 0:
            return (
                f"{name}: tables[{number}]: its smallest part is {_gb(float(over.min()))} larger "
                f"than what any tier of a rank of {where} holds"
            )
    used = [each for each in MEMORIES if getattr(problem.choices, each).any()]
    shard = np.sum([getattr(problem.choices, name) for name in used], axis=0)
    whole = shard * problem.choices.parts
    needed = sum(float(whole[own].min()) for own in problem.of_table)
    each = float(sum(getattr(problem, name) for name in used))
    over_bytes = needed - each * problem.ranks
    if over_bytes > 0:
        memories = " and ".join(NAMES[name] for name in used) + " memory"
        return (
            f"{name}: its tables need {_gb(over_bytes)} more than the "
            f"{_gb(each * problem.ranks)} of {memories} that {where} have for tables"
        )
    return (
        f"{name}: its tables of {_gb(needed)} come near the {_gb(each * problem.ranks)} that "
        f"{where} have for tables, and no layout of whole parts was found"
    )


def _gb(count: float) -> str:
    return f"{count / BYTES_PER_GB:.3g} GB"
