"""Durations of collectives on a machine: what `perfmodel.durations` asks for."""

from __future__ import annotations

from perfmodel.hardware import Cluster, Node
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.network.calls import calls_of
from perfmodel.network.fabric import fabric_of
from perfmodel.network.model import COLLECTIVES
from perfmodel.ops.rows import Rows

DEFAULT = "collective/learned"


def collective_durations(
    rows: Rows, machine: Node | Cluster, nodes: int | None = None, *, model: str = DEFAULT
) -> Estimate:
    """Durations of `rows` (ops of the family `collective`) among ranks of `machine`.

    A row says by `ranks` and `nodes` who takes part; `nodes`, if given, replaces the rows' own.
    Raises `ModelError` for rows that cannot be, such as several nodes without a network adapter.
    """
    return COLLECTIVES[model].estimate(calls_of(_with_nodes(rows, nodes), fabric_of(machine)))


def explain_collectives(
    rows: Rows, machine: Node | Cluster, nodes: int | None = None, *, model: str = DEFAULT
) -> list[Explanation]:
    """Why `rows` take what they take, one by one."""
    return COLLECTIVES[model].explain(calls_of(_with_nodes(rows, nodes), fabric_of(machine)))


def _with_nodes(rows: Rows, nodes: int | None) -> Rows:
    if nodes is None:
        return rows
    import numpy as np

    dims = {**rows.dims, "nodes": np.full(len(rows), float(nodes))}
    return Rows(rows.op, rows.dtype, rows.direction, rows.timing, dims)
