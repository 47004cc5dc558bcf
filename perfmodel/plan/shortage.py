"""Why no layout fits, and by how much."""

from __future__ import annotations

import numpy as np

from perfmodel.designs import Deployment
from perfmodel.plan.surrogate import Surrogate
from perfmodel.units import BYTES_PER_GB


def shortage(made: Surrogate, deployment: Deployment) -> str:
    """Why nothing fits: the largest part of a table, or all tables, and by how much."""
    problem, name = made.problem, deployment.workload.name
    where = f"{problem.ranks} x {deployment.machine.node.device.name}"
    for number, own in enumerate(problem.of_table):
        choices = problem.choices
        over = np.maximum(
            choices.hbm_bytes[own] - problem.hbm_bytes, choices.host_bytes[own] - problem.host_bytes
        )
        if over.min() > 0:
            return (
                f"{name}: tables[{number}]: its smallest part is {_gb(float(over.min()))} larger "
                f"than what any tier of a rank of {where} holds"
            )
    whole = (problem.choices.hbm_bytes + problem.choices.host_bytes) * problem.choices.parts
    needed = sum(float(whole[own].min()) for own in problem.of_table)
    has_host = bool(problem.choices.host_bytes.any())
    each = problem.hbm_bytes + (problem.host_bytes if has_host else 0.0)
    over_bytes = needed - each * problem.ranks
    if over_bytes > 0:
        memories = "device and host memory" if has_host else "device memory"
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
