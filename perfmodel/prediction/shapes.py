"""Mode `model`: op graphs lowered to a machine, timed by models, scheduled; nothing measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from perfmodel.graph.ops import OpGraph
from perfmodel.hardware import Cluster, Device
from perfmodel.lowering.measured_host import HostTimes
from perfmodel.lowering.walk import CPU
from perfmodel.memory import MemoryUse, memory_use, require_fit
from perfmodel.ops.vocabulary.fallback import UNKNOWN
from perfmodel.prediction.beside import contended
from perfmodel.prediction.explain.modelled import Modelled
from perfmodel.prediction.host_costs import HostCosts
from perfmodel.prediction.interval import step_interval
from perfmodel.prediction.kernel_table import kernel_table
from perfmodel.prediction.result import summarise
from perfmodel.prediction.scheduled import Scheduled, met, schedule_shapes
from perfmodel.prediction.steady import repeated, require_faster
from perfmodel.prediction.types import RankPrediction, Result

MODEL = "model"


def predict_shapes(
    graphs: Sequence[OpGraph],
    machine: Cluster,
    *,
    name: str,
    costs: HostCosts | None,
    tf32_matmul: bool = False,
    must_fit: bool = False,
    repeats: bool = False,
    loading_us: float = 0.0,
    faster_than_us: float = np.inf,
    times: Mapping[int, HostTimes] = MappingProxyType({}),
) -> tuple[Result, list[str]]:
    """The step of `graphs` (one per rank) on `machine`, and what a user should know of it.

    Ranks meet at their collectives. `repeats`: the graphs hold one step that goes on for ever, each
    batch loaded in `loading_us` by its host; its period is the prediction. `times`: per
    rank, what a trace's host was measured to take between operators. Raises `WorkloadError`
    where the slowest rank does not fit into the device's memory and `must_fit`, `TraceError` where
    collectives never meet, `NotFaster` where a period is soon seen not to be `faster_than_us`.
    """
    ranks = [
        schedule_shapes(
            graph,
            machine,
            costs,
            tf32_matmul=tf32_matmul,
            repeats=repeats,
            loading_us=loading_us,
            times=times.get(graph.rank),
        )
        for graph in graphs
    ]
    alone = ranks[0] if len(ranks) == 1 else met(ranks, [graph.source for graph in graphs])
    if repeats:
        require_faster(alone, faster_than_us)
    found = contended(alone, machine)
    latency_us = float(np.max(found.timeline.step_us))
    bound_by = None
    if alone.timeline.graph.carried is not None:
        found, bound_by = repeated(alone, machine)
    ratios = {rank: each.ratio for rank, each in times.items()}
    grounds = Modelled(found, machine, costs, ratios)
    result = summarise(found.timeline, hardware=name, mode=MODEL, compare=False)
    result = replace(result, latency_us=latency_us if repeats else None, bound_by=bound_by)
    device = machine.node.device
    graph = graphs[result.slowest]
    use = memory_use(graph, in_host_memory=device.target == CPU)
    if must_fit and use is not None:
        require_fit(use, device, graph.rank)
    return replace(_with_models(result, found, use, device), grounds=grounds), list(found.notes)


def _with_models(result: Result, found: Scheduled, use: MemoryUse | None, device: Device) -> Result:
    rank = result.rank.rank
    low, high = step_interval(found, rank)
    return replace(
        result,
        ranks=[_unmeasured(rank) for rank in result.ranks],
        low_us=low,
        high_us=high,
        families=_family_table(found, rank),
        coverage=_coverage(found, rank),
        memory=None if use is None else use.to_dict(device),
        kernels=kernel_table(found, rank, device),
    )


def _unmeasured(rank: RankPrediction) -> RankPrediction:
    """The rank without shares of measured host time: here the host is predicted as well."""
    return replace(rank, steps=[replace(step, measured_host_frac=0.0) for step in rank.steps])


def _family_table(found: Scheduled, rank: int) -> list[dict[str, Any]]:
    """Time and pieces of one rank per family and step, largest first."""
    steps = int((found.timeline.graph.marks.rank == rank).sum())
    own = found.pieces_of(rank)
    taken = found.durations.duration_us
    family = np.array(found.families, object)
    table = [
        {
            "family": name,
            "time_us": round(float(taken[own & (family == name)].sum()) / steps, 4),
            "count": round(int((own & (family == name)).sum()) / steps, 4),
        }
        for name in dict.fromkeys(family[own].tolist())
    ]
    return sorted(table, key=lambda row: -row["time_us"])


def _coverage(found: Scheduled, rank: int) -> dict[str, float]:
    """Shares of the rank's predicted time: of rules and of the fallback, and of guessed sizes."""
    own = found.pieces_of(rank)
    taken = found.durations.duration_us * own
    total = float(taken.sum()) or 1.0
    unknown = np.array([piece.op == UNKNOWN for piece in found.pieces], bool)
    guessed = np.array([piece.guessed for piece in found.pieces], bool)
    fallback = float(taken[unknown].sum()) / total
    return {
        "kernels": len(found.timeline.graph.device_span(rank)[1]) // found.copies,
        "modelled_frac": round(1 - fallback, 6),
        "fallback_frac": round(fallback, 6),
        "no_shapes_frac": round(float(taken[guessed].sum()) / total, 6),
        "unexplained_frac": 0.0,
    }
