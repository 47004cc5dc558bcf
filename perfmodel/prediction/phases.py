"""Steps of several kinds in long runs: their periods weighed, and what moves between the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.designs import Phase
from perfmodel.graph.ops import OpGraph
from perfmodel.hardware import Cluster
from perfmodel.prediction.host_costs import HostCosts
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.prediction.types import PathPiece, Result
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.edges import data_edges
from perfmodel.workload.eager.recorder import Recorder

FP32_BYTES = 4
HOST = "cpu"
_SUMMED = ("gpu_active_us", "gpu_idle_us", "kernel_sum_us", "comm_us", "exposed_comm_us")
SWITCH = "switch"


def moved_us(phase: Phase, machine: Cluster, costs: HostCosts | None) -> float:
    """Rows to the device, and back, one after the other; nothing else runs meanwhile."""
    r = Recorder("cuda")
    moved = ((phase.to_device_bytes, HOST, r.place), (phase.to_host_bytes, r.place, HOST))
    for size, here, there in moved:
        if size:
            to_device(r, r.tensor((round(size / FP32_BYTES),), place=here), there)
    ops = r.ops()
    if not ops:
        return 0.0
    graph = OpGraph(ops, data_edges(ops, r.views), source=SWITCH)
    return predict_shapes([graph], machine, name=SWITCH, costs=costs)[0].step_us


def together(
    results: Sequence[Result], shares: Sequence[float], names: Sequence[str], switch_us: float
) -> Result:
    """One result for `results`, each the share `shares` of the steps, and `switch_us` per step.

    Runs are long against what a pipeline takes to fill, so that periods add up; what moves waits
    for the run before it. Timeline and kernels are those of the kind that takes most.
    """
    weighed = list(zip(results, shares, strict=True))
    taken = [share * result.step_us for result, share in weighed]
    main = results[taken.index(max(taken))]
    step_us = sum(taken) + switch_us
    summed = {
        name: sum(share * getattr(result.rank, name) for result, share in weighed)
        for name in _SUMMED
    }
    rank = replace(
        main.rank,
        step_us=step_us,
        **summed,
        steps=[replace(step, step_us=step_us) for step in main.rank.steps],
    )
    path, start_us = [], 0.0
    for name, duration_us in zip((*names, SWITCH), (*taken, switch_us), strict=True):
        path.append(PathPiece(name, "phase", start_us, duration_us))
        start_us += duration_us
    return replace(
        main,
        ranks=[rank],
        slowest=0,
        low_us=_sum([(result.low_us, share) for result, share in weighed], switch_us),
        high_us=_sum([(result.high_us, share) for result, share in weighed], switch_us),
        latency_us=_sum([(result.latency_us, share) for result, share in weighed], switch_us),
        families=_families(weighed),
        critical_path=path,
        bound_by=_bounds(weighed, switch_us),
        straggler=None,
    )


def _sum(values: Sequence[tuple[float | None, float]], more: float) -> float | None:
    known = [share * value for value, share in values if value is not None]
    return sum(known) + more if len(known) == len(values) else None


def _families(weighed: Sequence[tuple[Result, float]]) -> list[dict[str, Any]]:
    """Time and pieces per family and step, largest first."""
    found: dict[str, dict[str, Any]] = {}
    for result, share in weighed:
        for row in result.families:
            own = found.setdefault(
                row["family"], {"family": row["family"], "time_us": 0.0, "count": 0.0}
            )
            for key in ("time_us", "count"):
                own[key] = round(own[key] + share * row[key], 4)
    return sorted(found.values(), key=lambda row: -row["time_us"])


def _bounds(weighed: Sequence[tuple[Result, float]], switch_us: float) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for result, share in weighed:
        for resource, value in (result.bound_by or {}).items():
            found[resource] = found.get(resource, 0.0) + share * value
    if switch_us:
        found[SWITCH] = switch_us
    return found or None
