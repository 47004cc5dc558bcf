"""Which rows are worth a place in an adapter's memory: by bandwidths, and in training by writes."""

from __future__ import annotations

import numpy as np

from perfmodel.designs.deployment import Deployment
from perfmodel.network.payload import codec
from perfmodel.ops.stored_rows import row_bytes
from perfmodel.tiers.nic.engine import (
    BURST_BYTES,
    BUS_FRAC,
    MEMORY_FRAC,
    adapter,
    adapters_per_rank,
)
from perfmodel.workload.parts.adapter import adapter_use
from perfmodel.workload.run import Run
from perfmodel.workload.shards import placed


def worth_asking(deployment: Deployment) -> list[bool]:
    """Per table whether an adapter reads and adds up the rows of one bag, and brings their sum over
    the bus to the device, sooner than the sum comes over the wire."""
    nic, share = adapter(deployment.machine), adapters_per_rank(deployment.machine)
    assert nic.memory_gb_per_s is not None
    reading, wire = MEMORY_FRAC * nic.memory_gb_per_s * share, nic.gb_per_s * share
    bus = BUS_FRAC * deployment.machine.node.device.host_gb_per_s
    sent = codec(deployment.workload.implementation.exchange_precision)
    found = []
    for table, where in zip(deployment.workload.tables, deployment.placement.tables, strict=True):
        size = float(row_bytes(where.dtype, table.dim))
        parts = len(where.ranks) if where.sharding == "row_wise" else 1
        read = max(table.pooling / parts, 1.0) * np.ceil(size / BURST_BYTES) * BURST_BYTES
        vector = float(sent.wire_bytes(np.array([float(table.dim)]), table.dim)[0])
        found.append(bool(max(read / reading, vector / bus) < vector / wire))
    return found


def worth_writing(deployment: Deployment, lookups: float) -> list[float]:
    """Per table, bytes of the rows that each rank's batch looks up so often or more; 0 where these
    spare fewer vectors than they are: answers to whole bags, or of a table in rows the sums of
    bags of which a rank has no other row."""
    found = []
    samples = deployment.batch // deployment.ranks
    pairs = zip(deployment.workload.tables, deployment.placement.tables, strict=True)
    for table, where in pairs:
        popularity = table.popularity()
        is_hot = popularity.chance * table.lookups(samples) >= lookups
        rows, share = float(popularity.rows[is_hot].sum()), float(popularity.share[is_hot].sum())
        parts = len(where.ranks)
        if where.sharding == "row_wise":
            sent = [(1.0 - frac / parts) ** table.pooling for frac in (1.0, 1.0 - share)]
            spared = samples * parts * (sent[1] - sent[0])
        else:
            spared = samples * (share if table.key_rows else share ** max(table.pooling, 1.0))
        size = float(row_bytes(where.dtype, table.dim))
        found.append(rows * size if spared > rows * lookups else 0.0)
    return found


def adapter_shares(deployment: Deployment) -> list[float]:
    """Per table the share of all its lookups that adapters answer, as the first rank sees it.

    What local caches find of tables that it does not hold is taken from those that it does.
    """
    machine, tables = deployment.machine, deployment.workload.tables
    ranks, linked = deployment.ranks, machine.linked_gpus
    layout = placed(deployment.workload, deployment.placement, ranks, linked)
    run = Run(
        workload=deployment.workload,
        batch=deployment.batch // ranks,
        ranks=ranks,
        rank=0,
        target=machine.node.device.target,
        train=deployment.train,
        plan=layout,
        linked=linked,
        placement=deployment.placement,
    )
    use = adapter_use(run)
    if use is None:
        return [0.0] * len(tables)
    own = {shard.table for shard in layout.shards[0]}
    asked = sum(use.tables[number].asked_frac for number in own)
    local = sum(use.tables[number].left_frac for number in own) / asked if asked else 1.0
    apart = 1.0 - linked / ranks
    return [
        apart * (1.0 - (each.left_frac if number in own else each.asked_frac * local))
        if any(name.startswith("nic") for name in deployment.placement.tables[number].caches)
        else 0.0
        for number, each in enumerate(use.tables)
    ]
