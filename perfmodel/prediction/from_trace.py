"""Mode `model` for a trace: its ops' shapes alone, on its own device or on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.cost.host import Profile
from perfmodel.cost.host.measure import measure
from perfmodel.errors import HardwareError, UsageError
from perfmodel.graph import build_graph
from perfmodel.hardware import Cluster, Part, cluster, from_driver_name
from perfmodel.hardware.reads import with_read_log
from perfmodel.lowering.context import self_contained
from perfmodel.lowering.observed import uses_tf32
from perfmodel.ops.edits import rebatch
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.explain.modelled import with_reads
from perfmodel.prediction.from_profile import (
    host_times,
    named_device,
    profile_data,
    recorded_kernels_on,
    with_coverage,
)
from perfmodel.prediction.result import summarise
from perfmodel.prediction.scheduled import HostCosts, host_costs
from perfmodel.prediction.shapes import MODEL, predict_shapes
from perfmodel.prediction.types import Prediction, Result
from perfmodel.timeline.schedule import measured
from perfmodel.trace import Trace


def predict_ops(
    trace: Trace,
    *,
    hardware: Sequence[str | Path | Part] = (),
    batch: int | None = None,
    edits: Sequence[NamedEdit] = (),
    overheads: str | None = None,
    nodes: int | None = None,
    source: dict[str, Any],
) -> Prediction:
    """Per-batch time of a trace's ops from their shapes; without `hardware`, on its own GPU.

    `batch` rescales every shape that depends on the batch, `edits` change the ops. Collectives are
    among the ranks of `nodes` nodes, and those of a trace meet at them. Host costs are the trace's
    where it has times and stays on its machine, else a profile's. Raises `TraceError` where shapes
    are missing, `WorkloadError` for a batch that cannot be.
    """
    warnings = list(trace.warnings)
    own = _own_machine(trace, needed=not hardware)
    if not hardware and own is None:
        raise UsageError(
            f"{trace.source}: does not name its GPU: say where to predict it with --hardware"
        )
    profile = profile_data(trace, None if own is None else own.node.device)
    graphs = [_rebatched(graph, batch, warnings) for graph in profile.graphs]
    if edits:
        graphs, undone = apply_edits(map(self_contained, graphs), edits)
        warnings += undone
    if batch is not None and profile.times:
        warnings.append(
            f"batch {batch}: recorded kernels and host time between operators stay as traced"
        )
    tf32_matmul = any(uses_tf32(rank) for rank in trace.ranks)
    results = []
    for target in hardware or (own,):
        assert target is not None
        machine = cluster(target, nodes)
        name = machine.name if nodes is None else f"{nodes} x {machine.name}"
        stays = not hardware or (own is not None and machine.node.device == own.node.device)
        watched, log = with_read_log(machine)
        costs = _costs(trace, watched, overheads, stays=stays)
        placed, lines = recorded_kernels_on(profile, graphs, target, machine, own)
        times, host_lines = host_times(profile, watched, own, costs, stays=stays)
        result, notes = predict_shapes(
            placed, watched, name=name, costs=costs, tf32_matmul=tf32_matmul, times=times
        )
        result = with_reads(with_coverage(result, profile, times), machine, log, costs)
        if not hardware and batch is None and not edits:
            result = _with_measured(result, trace)
        results.append(result)
        lines = [*([costs.note] if costs else []), *host_lines, *lines, *notes]
        warnings += [f"{machine.name}: {line}" for line in dict.fromkeys(lines)]
    return Prediction(
        source | {"batch": batch, "edits": [edit.text for edit in edits]}, results, warnings
    )


def _rebatched(graph: OpGraph, batch: int | None, warnings: list[str]) -> OpGraph:
    if batch is None:
        return graph
    edited = rebatch(graph, batch)
    warnings += [f"batch {batch}: {line}" for line in edited.undone if line not in warnings]
    return edited.graph


def _own_machine(trace: Trace, *, needed: bool) -> Cluster | None:
    """The machine of a trace that names its GPU.

    Raises `HardwareError` where the catalogue does not know the GPU and it is `needed`.
    """
    named = named_device(trace)
    if named is None:
        return None
    try:
        return cluster(from_driver_name(named.name, named.memory_bytes or None))
    except HardwareError:
        if needed:
            raise
        return None


def _costs(
    trace: Trace, machine: Cluster, overheads: str | None, *, stays: bool
) -> HostCosts | None:
    if machine.node.device.target == "cpu":
        return None
    if overheads is not None or not stays or not trace.ranks:
        return host_costs(machine, overheads)
    samples = {
        rank.rank: measure(rank, links)
        for rank, links in zip(trace.ranks, trace.links, strict=True)
    }
    usual = host_costs(machine).profile
    return HostCosts(
        Profile.from_samples(*samples.values()).completed(usual),
        1.0,
        "host overheads: the trace's own, per operator",
        {rank: Profile.from_samples(found).completed(usual) for rank, found in samples.items()},
    )


def _with_measured(result: Result, trace: Trace) -> Result:
    """The trace's own figures beside the prediction on its own machine."""
    if not trace.ranks:
        return result
    true = summarise(measured(build_graph(trace)), hardware=trace.device, mode=MODEL)
    of_rank = {rank.rank: rank.measured for rank in true.ranks}
    ranks = [replace(rank, measured=of_rank.get(rank.rank)) for rank in result.ranks]
    return replace(result, ranks=ranks)


def require_model_options(trace: Trace, scales: bool, leave_out: bool) -> None:
    """Raise `UsageError` for options that change measured times: there are none here."""
    if scales:
        raise UsageError(
            f"{trace.source}: --scale, --remove and --codec change a schedule of measured times; "
            "in mode model use --edit, --set or another --hardware"
        )
    if leave_out:
        raise UsageError("--leave-one-step-out is for mode replay")
