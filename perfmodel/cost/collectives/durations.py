"""Durations of collectives on a machine, also with a length of its own per pair of ranks.

What counts is the busiest resource: the links of one rank, and the adapters of one domain, sending
or receiving. Source of taking the maximum over ranks and ways: Lin et al., TPDS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.arrays import Floats
from perfmodel.cost.collectives.calls import (
    COLLECTIVES,
    Calls,
    CollectiveModel,
    calls_of,
    fabric_of,
)
from perfmodel.cost.collectives.heuristic import costs_of
from perfmodel.cost.collectives.sharing import with_shared_links
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Node
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
    return _model(model).estimate(with_shared_links(calls, at_once) if at_once != 1.0 else calls)


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


@dataclass(frozen=True)
class Load:
    """The busiest rank and domain of one exchange, and who they are."""

    ranks: int
    rank_bytes: float
    """Sent to or received from other ranks, whichever is more."""
    rank: int
    domain_bytes: float
    """Likewise, of a domain's ranks to other domains."""
    domain: int
    imbalance: float
    """The busiest rank over the mean."""


def load_of(sends_bytes: ArrayLike, domains: int = 1) -> Load:
    """The load of `sends_bytes` `[from, to]`; ranks fill the domains one by one.

    Raises `ModelError` for a matrix that is not square, negative or not finite, and for ranks that
    do not fill the domains.
    """
    sends = _checked(sends_bytes, domains)
    ranks = len(sends)
    others = sends * (1.0 - np.eye(ranks))
    per_rank = np.maximum(others.sum(axis=1), others.sum(axis=0))
    where = np.arange(ranks) * domains // ranks
    between = np.zeros((domains, domains))
    np.add.at(between, (where[:, None], where[None, :]), sends)
    between *= 1.0 - np.eye(domains)
    per_domain = np.maximum(between.sum(axis=1), between.sum(axis=0))
    mean = float(per_rank.mean())
    return Load(
        ranks=ranks,
        rank_bytes=float(per_rank.max()),
        rank=int(per_rank.argmax()),
        domain_bytes=float(per_domain.max()),
        domain=int(per_domain.argmax()),
        imbalance=float(per_rank.max()) / mean if mean else 1.0,
    )


def even_size_bytes(load: Load, call: Calls) -> Floats:
    """The `size_bytes` of the even all-to-all `call` (one row) that takes as long as `load`.

    Within a domain that of the busiest rank; beyond, of the busiest domain's adapters, unless
    links are what the even one waits for.
    """
    ranks = load.ranks
    by_rank = load.rank_bytes * ranks / max(ranks - 1, 1)
    local = float(call.local[0])
    if float(call.domains[0]) <= 1:
        return np.array([by_rank])
    by_domain = load.domain_bytes * ranks / (local * (ranks - local))
    costs = costs_of(replace(call, size_bytes=np.array([max(by_rank, by_domain, 1.0)])))
    share = float(costs.link_us[0] / max(costs.net_us[0], 1e-9))
    return np.array([max(by_domain, by_rank * min(share, 1.0))])


def _checked(sends_bytes: ArrayLike, domains: int) -> Floats:
    sends = np.asarray(sends_bytes, np.float64)
    if sends.ndim != 2 or sends.shape[0] != sends.shape[1] or len(sends) < 1:
        raise ModelError(f"all_to_allv: expected bytes [from, to], got the shape {sends.shape}")
    bad = np.argwhere(~(np.isfinite(sends) & (sends >= 0)))
    if len(bad):
        source, target = bad[0]
        raise ModelError(
            f"all_to_allv: rank {source} sends {sends[source, target]} bytes to rank {target}"
        )
    if not 1 <= domains <= len(sends):
        raise ModelError(f"all_to_allv: {len(sends)} ranks cannot be in {domains} domains")
    return sends
