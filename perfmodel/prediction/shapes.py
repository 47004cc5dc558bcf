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
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.step_rows import rows_of
from perfmodel.lowering.walk import CPU
from perfmodel.memory import MemoryUse, memory_use, require_fit
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.fallback import UNKNOWN
from perfmodel.overheads import Profile, load_profile
from perfmodel.overheads.shipped import shipped_for
from perfmodel.prediction.interval import path_interval
from perfmodel.prediction.placed import placed
from perfmodel.prediction.result import summarise
from perfmodel.prediction.types import RankPrediction, Result
from perfmodel.timeline.schedule import Timeline, schedule
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
    pieces: tuple[Piece, ...]
    durations: Durations
    notes: tuple[str, ...]

    @property
    def families(self) -> list[str]:
        """Per piece."""
        return [OPS[piece.op].family for piece in self.pieces]


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
    taken = (
        f"scaled from {chosen.host} (assumed: its traces name no host) to "
        f"{machine.node.host.name} by single-thread speed"
    )
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
        pieces = tuple(cpu_pieces(graph))
        found = durations_of(placed(rows_of(pieces), machine), machine)
        built = cpu_graph(pieces, found.duration_us, graph.rank)
        notes = graph.notes
    else:
        lowered = lower(graph, device.target, device=device, tf32_matmul=tf32_matmul)
        pieces = lowered.pieces
        found = durations_of(placed(lowered.rows, machine), machine)
        assert costs is not None
        built = execution_graph(lowered, found.duration_us, costs.profile, host_ratio=costs.ratio)
        notes = (*graph.notes, *lowered.notes)
    return Scheduled(_as_measured(schedule(built.graph)), built, pieces, found, notes)


def predict_shapes(
    graphs: Sequence[OpGraph],
    machine: Cluster,
    *,
    name: str,
    costs: HostCosts | None,
    tf32_matmul: bool = False,
    must_fit: bool = False,
) -> tuple[Result, list[str]]:
    """The slowest of `graphs` (one per rank) on `machine`, and what a user should know of it.

    Raises `WorkloadError` where the slowest does not fit into the device's memory and `must_fit`.
    """
    ranks = [schedule_shapes(graph, machine, costs, tf32_matmul=tf32_matmul) for graph in graphs]
    slowest = max(ranks, key=lambda rank: float(np.median(rank.timeline.step_us)))
    graph, device = graphs[ranks.index(slowest)], machine.node.device
    use = memory_use(graph, in_host_memory=device.target == CPU)
    if must_fit and use is not None:
        require_fit(use, device, graph.rank)
    return _result(slowest, name, use, device), list(slowest.notes)


def _result(found: Scheduled, name: str, use: MemoryUse | None, device: Device) -> Result:
    result = summarise(found.timeline, hardware=name, mode=MODEL, compare=False)
    low, high = path_interval(found.timeline, found.built.piece, found.durations, found.families)
    return replace(
        result,
        ranks=[_unmeasured(rank) for rank in result.ranks],
        low_us=low,
        high_us=high,
        families=_family_table(found),
        coverage=_coverage(found),
        memory=None if use is None else use.to_dict(device),
    )


def _unmeasured(rank: RankPrediction) -> RankPrediction:
    """The rank without shares of measured host time: here the host is predicted as well."""
    return replace(rank, steps=[replace(step, measured_host_frac=0.0) for step in rank.steps])


def _as_measured(timeline: Timeline) -> Timeline:
    """The timeline on a graph whose nodes start when it says."""
    graph = timeline.graph
    nodes = replace(graph.nodes_, start_us=timeline.start_us)
    return Timeline(replace(graph, nodes_=nodes), timeline.start_us, timeline.end_us)


def _family_table(found: Scheduled) -> list[dict[str, Any]]:
    """Time and pieces per family and step, largest first."""
    steps = len(found.timeline.step_us)
    family = np.array(found.families, object)
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
    """Shares of the predicted time: of rules and of the fallback, and of guessed sizes."""
    taken = found.durations.duration_us
    total = float(taken.sum()) or 1.0
    unknown = np.array([piece.op == UNKNOWN for piece in found.pieces], bool)
    guessed = np.array([piece.guessed for piece in found.pieces], bool)
    fallback = float(taken[unknown].sum()) / total
    return {
        "kernels": len(found.timeline.graph.device_span()[1]),
        "modelled_frac": round(1 - fallback, 6),
        "fallback_frac": round(fallback, 6),
        "no_shapes_frac": round(float(taken[guessed].sum()) / total, 6),
    }
