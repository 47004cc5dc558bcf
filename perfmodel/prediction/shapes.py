"""Mode `model`: op graphs lowered to a machine, timed by models, scheduled; nothing measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.duration import Durations, durations_of
from perfmodel.graph.ops import OpGraph
from perfmodel.hardware import Cluster, Device, host
from perfmodel.lowering import lower
from perfmodel.lowering.build import Built, execution_graph
from perfmodel.lowering.build_cpu import cpu_graph
from perfmodel.lowering.cpu_step import cpu_pieces
from perfmodel.lowering.step_rows import rows_of
from perfmodel.lowering.walk import CPU
from perfmodel.memory import MemoryUse, memory_use
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Floats
from perfmodel.ops.vocabulary.fallback import UNKNOWN
from perfmodel.overheads import Profile, load_profile
from perfmodel.overheads.shipped import shipped_for
from perfmodel.prediction.interval import path_interval
from perfmodel.prediction.result import summarise
from perfmodel.prediction.types import Result
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace.columns import NONE
from perfmodel.transfer import host_ratio

MODEL = "model"


@dataclass(frozen=True)
class HostCosts:
    """What times the host's work, how much slower the target's host is, and that in words."""

    profile: Profile
    ratio: float
    note: str


@dataclass(frozen=True)
class Scheduled:
    """One rank's step on a machine."""

    timeline: Timeline
    built: Built
    rows: Rows
    durations: Durations
    notes: tuple[str, ...]


def host_costs(machine: Cluster, overheads: str | None = None) -> HostCosts:
    """The saved profile `overheads`, or the one of the package that fits `machine` best.

    Raises `ModelError` where there is no such profile.
    """
    if overheads is not None:
        profile = load_profile(overheads)
        return HostCosts(profile, 1.0, f"host overheads: {overheads}, as they are")
    device = machine.node.device
    chosen = shipped_for(device)
    profile = load_profile(chosen.name)
    if chosen.host is None:
        taken = "assumed as fast as the host of its traces, which nobody names"
        return HostCosts(profile, 1.0, f"host overheads: {chosen.name}; {taken}")
    ratio = host_ratio(host(chosen.host), machine.node.host)
    taken = f"scaled from {chosen.host} to {machine.node.host.name} by single-thread speed"
    return HostCosts(profile, ratio, f"host overheads: {chosen.name}, {taken}")


def schedule_shapes(
    graph: OpGraph, machine: Cluster, costs: HostCosts | None, *, tf32_matmul: bool = False
) -> Scheduled:
    """The ops of one rank on `machine`; `costs` are not needed on a CPU.

    `tf32_matmul`: products of fp32 tensors run in TF32 where the device has it.

    Raises `ModelError` for sizes that cannot be.
    """
    device = machine.node.device
    if device.target == CPU:
        pieces = cpu_pieces(graph)
        rows = _placed(rows_of(pieces), machine)
        found = durations_of(rows, machine)
        built = cpu_graph(pieces, found.duration_us, graph.rank)
        notes = graph.notes
    else:
        lowered = lower(graph, device.target, device=device, tf32_matmul=tf32_matmul)
        rows = _placed(lowered.rows, machine)
        found = durations_of(rows, machine)
        assert costs is not None
        built = execution_graph(lowered, found.duration_us, costs.profile, host_ratio=costs.ratio)
        notes = (*graph.notes, *lowered.notes)
    return Scheduled(_as_measured(schedule(built.graph)), built, rows, found, notes)


def predict_shapes(
    graphs: Sequence[OpGraph],
    machine: Cluster,
    *,
    name: str,
    costs: HostCosts | None,
    tf32_matmul: bool = False,
) -> tuple[Result, list[str]]:
    """The slowest of `graphs` (one per rank) on `machine`, and what a user should know of it."""
    ranks = [schedule_shapes(graph, machine, costs, tf32_matmul=tf32_matmul) for graph in graphs]
    slowest = max(ranks, key=lambda rank: float(np.median(rank.timeline.step_us)))
    use = memory_use(graphs[ranks.index(slowest)])
    return _result(slowest, name, use, machine.node.device), list(slowest.notes)


def _result(found: Scheduled, name: str, use: MemoryUse | None, device: Device) -> Result:
    result = summarise(found.timeline, hardware=name, mode=MODEL, compare=False)
    low, high = path_interval(found.timeline, found.built.piece, found.durations, _families(found))
    return replace(
        result,
        low_us=low,
        high_us=high,
        families=_family_table(found),
        coverage=_coverage(found),
        memory=None if use is None else use.to_dict(device),
    )


def _as_measured(timeline: Timeline) -> Timeline:
    """The timeline on a graph whose nodes start when it says."""
    graph = timeline.graph
    nodes = replace(graph.nodes_, start_us=timeline.start_us)
    return Timeline(replace(graph, nodes_=nodes), timeline.start_us, timeline.end_us)


def _placed(rows: Rows, machine: Cluster) -> Rows:
    """Collectives among as many nodes as their ranks fill."""
    if "ranks" not in rows.dims or machine.nodes == 1:
        return rows
    nodes = np.ceil(rows.dims["ranks"] / machine.node.gpus).clip(1, machine.nodes)
    return replace(rows, dims={**rows.dims, "nodes": nodes})


def _families(found: Scheduled) -> list[str]:
    return [OPS[op].family for op in found.rows.op]


def _family_table(found: Scheduled) -> list[dict[str, Any]]:
    """Time and pieces per family and step, largest first."""
    steps = len(found.timeline.step_us)
    family = np.array(_families(found), object)
    table = [
        {
            "family": name,
            "time_us": round(float(found.durations.duration_us[family == name].sum()) / steps, 4),
            "count": round(int((family == name).sum()) / steps, 4),
        }
        for name in dict.fromkeys(family.tolist())
    ]
    return sorted(table, key=lambda row: -row["time_us"])


def _coverage(found: Scheduled) -> dict[str, float]:
    duration: Floats = found.durations.duration_us
    total = float(duration.sum()) or 1.0
    unknown = np.array([op == UNKNOWN for op in found.rows.op], bool)
    share = float(duration[unknown].sum()) / total
    kernels = int((found.built.piece[found.timeline.graph.device_span()[1]] != NONE).sum())
    return {
        "kernels": kernels,
        "modelled_frac": round(1 - share, 6),
        "fallback_frac": round(share, 6),
        "no_shapes_frac": 0.0,
    }
