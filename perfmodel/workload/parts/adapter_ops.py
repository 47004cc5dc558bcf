"""What a rank's adapter does with the keys of its own samples before they go out."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.ops.stored_rows import row_bytes
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.adapter import AdapterUse, adapter_use, is_apart
from perfmodel.workload.run import Run

NIC, HOST_CORE = "nic", "query_order"
"""The resources of an adapter's work on rows, and of the host's core that orders queries."""
ITEM_BYTES = 4.0


def asked_of_others(r: Recorder, run: Run, values: Tensor) -> Tensor:
    """The keys that go out of `values`: those that the remote cache has not, and one's own.

    Only keys are looked for before the others go; rows are read while these are answered.
    """
    use = adapter_use(run)
    if use is None:
        return values
    if use.order.pairs >= 1:
        ordered = r.tensor(values.shape, values.dtype)
        _offload(r, "query_order", values, ordered, HOST_CORE, {"pairs": use.order.pairs})
        values = ordered
    dims = _looked_up(run, use)
    if dims["lookups"] < 1:
        return values
    left = r.tensor((max(sum(use.sent_lookups(run)), 1),), values.dtype)
    probed = {name: dims[name] for name in ("probes", "messages")}
    _offload(r, "nic_lookup", values, left, NIC, probed)
    return left


def added_remotely(r: Recorder, run: Run, received: Tensor) -> None:
    """Rows of the remote cache, added up and into what was `received` from the other ranks."""
    use = adapter_use(run)
    if use is None:
        return
    dims = _looked_up(run, use)
    if dims["lookups"] >= 1:
        dims |= {"probes": 1.0, "messages": 0.0}
        _offload(r, "nic_lookup", received, received, NIC, dims)


def _looked_up(run: Run, use: AdapterUse) -> dict[str, float]:
    """Of tables that others hold: keys, those found, bags of them, what goes to the device."""
    assert run.placement is not None
    near = [rank for rank in range(run.ranks) if not is_apart(run, rank)]
    held = {s.table for rank in near for s in run.plan.shards[rank] if s.parts == 1}
    probes = found = moved = bags = elements = served = 0.0
    for number, table in enumerate(run.workload.tables):
        frac = 1.0 - use.tables[number].asked_frac
        if number in held or frac <= 0:
            continue
        lookups = table.lookups(run.batch)
        hits = frac * lookups
        probes, found = probes + lookups, found + hits
        moved += hits * float(row_bytes(run.placement.tables[number].dtype, table.dim))
        bags += min(hits, run.batch)
        elements += min(hits, run.batch) * table.dim
        served += (1.0 - use.tables[number].answered_frac) * run.batch * table.dim
    return {
        "probes": probes,
        "lookups": found,
        "row_bytes": moved / max(found, 1.0),
        "bags": bags,
        "dim": elements / max(bags, 1.0),
        "messages": float(run.ranks - run.linked),
        "delivered_bytes": served * ITEM_BYTES,
    }


def _offload(
    r: Recorder, op: str, given: Tensor, out: Tensor, stream: str, dims: dict[str, float]
) -> None:
    inputs = () if given is out else (given,)
    about = {name: repr(float(value)) for name, value in dims.items()}
    about |= {"stream": stream, "dtype": "fp32", "blocks": "0"}
    r.leaf(f"tier::{op}", inputs, out, about=about)
