"""What rows in network adapters change in a step, in time: wire, lookups of keys, reads, writes."""

from __future__ import annotations

import numpy as np

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import TIERS
from perfmodel.cost.tiers.nic import StepChange, adapter, adapters_per_rank
from perfmodel.hardware import Cluster
from perfmodel.ops.dtypes import row_bytes
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.tiers import NIC
from perfmodel.workload.adapter_caches import adapter_use, is_across_network
from perfmodel.workload.jagged import answered_lookups
from perfmodel.workload.pooled_exchange import vector_bytes
from perfmodel.workload.step import Run
from perfmodel.workload.tiered.adapter_rows import sent_frac

_ENGINE = coefficients("tiers.engine")
FP32_BYTES = 4.0


def worth_asking(run: Run, machine: Cluster) -> list[bool]:
    """Per table whether an adapter reads and adds up the rows of one bag, and brings their sum over
    the bus to the device, sooner than the sum comes over the wire."""
    assert run.placement is not None
    nic, share = adapter(machine), adapters_per_rank(machine)
    assert nic.memory_gb_per_s is not None
    reading, wire = _ENGINE.memory_frac * nic.memory_gb_per_s * share, nic.gb_per_s * share
    bus = _ENGINE.bus_frac * (nic.pcie_gb_per_s or machine.node.device.host_gb_per_s)
    precision = run.workload.implementation.exchange_precision
    worth, burst = [], _ENGINE.burst_bytes
    for table, where in zip(run.workload.tables, run.placement.tables, strict=True):
        size = float(row_bytes(where.dtype, table.dim))
        parts = len(where.ranks) if where.sharding == "row_wise" else 1
        read = max(table.pooling / parts, 1.0) * np.ceil(size / burst) * burst
        vector = vector_bytes(table.dim, precision)
        worth.append(bool(max(read / reading, vector / bus) < vector / wire))
    return worth


def step_change(run: Run, machine: Cluster) -> StepChange:
    """What the adapters of `machine`, which hold rows, change in a step of the rank of `run`."""
    use = adapter_use(run)
    assert use is not None
    assert run.placement is not None
    tables, ranks = run.workload.tables, run.ranks
    software = run.workload.implementation
    wire = adapter(machine).gb_per_s * adapters_per_rank(machine) * 1e3
    apart = [rank for rank in range(ranks) if is_across_network(run, rank)]
    shards = [(shard, shard.of(tables)) for rank in apart for shard in run.plan.shards[rank]]
    in_rows = any(each.sharding == "row_wise" and each.caches for each in run.placement.tables)
    dim = float(np.mean([table.dim for table in tables]))
    size, vector = dim * FP32_BYTES, vector_bytes(dim, software.exchange_precision)
    keys = [
        sum(table.lookups(run.batch) for _, table in shards),
        sum(use.sent_lookups(run)[rank] for rank in apart),
    ]
    bags = [float(run.batch * len(shards))] * 2
    if in_rows:
        bags[0] /= run.linked  # sums are added among linked ranks before they leave
        bags[1] *= sent_frac(run, use)
    elif shards:
        bags[1] *= float(np.mean([use.tables[shard.table].answered_frac for shard, _ in shards]))
    key_bytes = 4.0 if software.key_dtype == "int32" else 8.0
    load = answered_lookups(run, use)
    ops = [
        {"op": "nic_lookup", **{name: load[name] for name in ("probes", "messages")}},
        {"op": "nic_lookup", **load, "probes": 1.0, "messages": 0.0},
    ]
    if in_rows:
        adding = {"probes": 1.0, "lookups": bags[1], "bags": bags[1], "dim": dim, "row_bytes": size}
        out_bytes = run.batch * sum(table.dim for table in tables) * FP32_BYTES
        delivered = {"delivered_bytes": out_bytes * use.bus_crossings}
        delivered["messages"] = use.messages(run, bags[1] * vector)
        ops.append({"op": "nic_lookup", **adding, **delivered})
    written = sum(use.tables[shard.table].remote_rows / shard.parts for shard in run.plan.shards[0])
    writes = run.train and written > 0
    if writes:
        ops.append({"op": "nic_write", "lookups": written * ranks, "row_bytes": size})
    taken = TIERS[NIC].estimate(Rows.of(ops), machine).duration_us.tolist()
    if load["lookups"] < 1:
        taken[:2] = 0.0, 0.0
    return StepChange(
        wire_before_us=(keys[0] * key_bytes + bags[0] * vector) / wire,
        wire_after_us=(keys[1] * key_bytes + bags[1] * vector) / wire,
        probe_us=taken[0],
        read_us=sum(taken[1 : len(taken) - writes]),
        write_us=(taken[-1] + written * size * len(apart) / wire) if writes else 0.0,
        samples=run.batch,
        ranks=ranks,
        vector_bytes=vector,
        in_rows=in_rows,
        train=run.train,
    )
