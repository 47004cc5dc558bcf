"""Durations of collectives on a machine: what `perfmodel.duration` asks for."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.hardware import Cluster, Node
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.network.calls import calls_of
from perfmodel.network.fabric import fabric_of
from perfmodel.network.model import COLLECTIVES, CollectiveModel
from perfmodel.network.sharing import shared
from perfmodel.network.uneven import even_size_bytes, load_of
from perfmodel.ops.rows import Rows

DEFAULT = "collective/learned"


def collective_durations(
    rows: Rows,
    machine: Node | Cluster,
    nodes: int | None = None,
    *,
    model: str | CollectiveModel = DEFAULT,
    at_once: float = 1.0,
) -> Estimate:
    """Durations of `rows` (ops of the family `collective`) among ranks of `machine`.

    A row says by `ranks` and `nodes` who takes part; `nodes`, if given, replaces the rows' own.
    `model` is a registered name or a model, such as one calibrated on the machine; `at_once` says
    how many collectives share the wires. Raises `ModelError` for rows that cannot be, such as
    several nodes without a network adapter.
    """
    calls = calls_of(_with_nodes(rows, nodes), fabric_of(machine))
    return _model(model).estimate(shared(calls, at_once) if at_once != 1.0 else calls)


def explain_collectives(
    rows: Rows,
    machine: Node | Cluster,
    nodes: int | None = None,
    *,
    model: str | CollectiveModel = DEFAULT,
) -> list[Explanation]:
    """Why `rows` take what they take, one by one."""
    return _model(model).explain(calls_of(_with_nodes(rows, nodes), fabric_of(machine)))


def uneven_all_to_all(
    sends_bytes: ArrayLike,
    machine: Node | Cluster,
    nodes: int = 1,
    *,
    model: str | CollectiveModel = DEFAULT,
) -> Estimate:
    """Duration of one all-to-all of `sends_bytes` `[from, to]`, ranks filling nodes one by one.

    Raises `ModelError` for a matrix or ranks that cannot be.
    """
    load = load_of(sends_bytes)
    row = {"op": "all_to_all", "size_bytes": 1.0, "ranks": load.ranks, "nodes": nodes}
    fabric = fabric_of(machine)
    call = calls_of(Rows.of([row]), fabric)
    load = load_of(sends_bytes, int(call.domains[0]))
    size = max(float(even_size_bytes(load, call)[0]), 1.0)
    return _model(model).estimate(calls_of(Rows.of([{**row, "size_bytes": size}]), fabric))


def _model(model: str | CollectiveModel) -> CollectiveModel:
    return COLLECTIVES[model] if isinstance(model, str) else model


def _with_nodes(rows: Rows, nodes: int | None) -> Rows:
    if nodes is None:
        return rows
    dims = {**rows.dims, "nodes": np.full(len(rows), float(nodes))}
    return Rows(rows.op, rows.dtype, rows.direction, rows.timing, dims)
