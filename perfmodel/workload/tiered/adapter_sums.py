"""Tables in rows on all ranks whose partial sums adapters add up as they arrive.

Where adapters hold rows, a rank sends another only what that one's cache has not found: one vector
per bag of which it looked up a row, instead of a sum for every bag. The adapter that receives adds
vectors and its own rows up, and hands the device one per bag. Gradients of all bags go back to all
ranks, as without adapters.
"""

from __future__ import annotations

import numpy as np

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import view
from perfmodel.workload.parts.adapter import AdapterUse, adapter_use, is_apart
from perfmodel.workload.parts.adapter_ops import ITEM_BYTES, NIC, added_remotely
from perfmodel.workload.parts.exchange import all_to_all_call
from perfmodel.workload.parts.wire import carried_as, decoded, encoded, on_wire
from perfmodel.workload.run import Run
from perfmodel.workload.tiered.beside import beside


def added_by_adapters(r: Recorder, run: Run, pooled: Tensor) -> Tensor:
    """Sums of the own rows for all samples `[global batch, dim]` -> those of all rows for the own
    samples, `[batch, dim]`. The adapter adds up vectors while others still arrive."""
    use = adapter_use(run)
    assert use is not None
    tape, r.tape = r.tape, None
    wire = run.workload.implementation.exchange_precision
    share = sent_frac(run, use)
    each = pooled.elements // run.ranks
    sizes = [
        on_wire(round(each * share) if is_apart(run, rank) else each, wire)
        for rank in range(run.ranks)
    ]
    flat = encoded(r, view(r, pooled, (pooled.elements,)), wire)
    received = r.tensor((sum(sizes),), carried_as(wire))
    dim = run.workload.tables[run.plan.shards[run.rank][0].table].dim
    out = r.tensor((run.batch, pooled.shape[1]))
    vectors = received.elements / dim
    added_remotely(r, run, received)
    adding = {
        "probes": 1.0,
        "lookups": vectors,
        "row_bytes": dim * ITEM_BYTES,
        "bags": vectors,
        "dim": dim,
        "messages": float(run.ranks - run.linked),
        "delivered_bytes": out.elements * ITEM_BYTES,
    }
    beside(r, "nic_lookup", (), received, stream=NIC, dims=adding)
    sent = r.view(flat, (sum(sizes),), (1,))
    all_to_all_call(r, sent, received, sizes, sizes, is_async=True)
    values = decoded(r, received, received.elements, wire)
    beside(r, "nic_lookup", (values,), out, stream=NIC, dims={"probes": 1.0})
    r.tape = tape
    return out


def sent_frac(run: Run, use: AdapterUse) -> float:
    """Of the bags of another rank's samples, those of which this rank looks up a row for it."""
    shards = run.plan.shards[run.rank]
    dims = [shard.of(run.workload.tables).dim for shard in shards]
    found = []
    for shard in shards:
        pooling = run.workload.tables[shard.table].pooling
        missed = use.tables[shard.table].asked_frac / shard.parts
        found.append(-np.expm1(pooling * np.log1p(-min(missed, 1 - 1e-12))))
    return float(np.average(found, weights=dims))
