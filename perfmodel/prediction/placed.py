"""Collectives on the nodes of a cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows


def placed(rows: Rows, machine: Cluster) -> Rows:
    """`rows` with their collectives among as many nodes as their ranks fill, unless they say."""
    if "ranks" not in rows.dims or machine.nodes == 1:
        return rows
    nodes = np.ceil(rows.dims["ranks"] / machine.node.gpus).clip(1, machine.nodes)
    given = rows.dims.get("nodes", np.full(len(rows), np.nan))
    return replace(rows, dims={**rows.dims, "nodes": np.where(np.isnan(given), nodes, given)})
