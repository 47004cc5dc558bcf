"""Predictions of a deployment: steps of several kinds, and as much memory as makes them fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from perfmodel.designs import Deployment, Design, Phase
from perfmodel.designs.composed import Composed
from perfmodel.designs.deployment import Budgeted, changes
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import Cluster
from perfmodel.hardware.reads import FigureRead, with_read_log
from perfmodel.lowering.walk import CPU
from perfmodel.ops.edits.named import NamedEdit
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.configuration import Step, predict_step
from perfmodel.prediction.explain.modelled import figures_read, with_reads
from perfmodel.prediction.scheduled import HostCosts, host_costs
from perfmodel.prediction.shapes import NotFaster, predict_shapes
from perfmodel.prediction.types import PathPiece, Prediction, Result
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.memory_tiers import require_tiers, tier_use, with_activations
from perfmodel.workload.step import data_edges

FP32_BYTES = 4
HOST_RESOURCE = "cpu"
_SUMMED = ("gpu_active_us", "gpu_idle_us", "kernel_sum_us", "comm_us", "exposed_comm_us")
SWITCH = "switch"


def row_transfer_us(phase: Phase, machine: Cluster, costs: HostCosts | None) -> float:
    """Rows to the device, and back, one after the other; nothing else runs meanwhile."""
    r = Recorder("cuda")
    moved = (
        (phase.to_device_bytes, HOST_RESOURCE, r.place),
        (phase.to_host_bytes, r.place, HOST_RESOURCE),
    )
    for size, here, there in moved:
        if size:
            to_device(r, r.tensor((round(size / FP32_BYTES),), place=here), there)
    ops = r.ops()
    if not ops:
        return 0.0
    graph = OpGraph(ops, data_edges(ops, r.views), source=SWITCH)
    return predict_shapes([graph], machine, name=SWITCH, costs=costs)[0].step_us


def weighted_result(
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


def predict_deployment(
    deployment: Deployment,
    *,
    overheads: str | None = None,
    edit: Sequence[str] = (),
    every_rank: bool = False,
    faster_than_us: float = inf,
) -> Prediction:
    """Per-batch time of a workload as it is deployed: the period of steps that follow one another.

    Arguments are those of `predict_workload`, which predicts a workload by its own implementation.
    The result's `memory` has `tiers`: what a node needs of the memories beside its devices'. Raises
    `WorkloadError` for what does not fit into one of them, and names it; `NotFaster` for what is
    soon seen not to be `faster_than_us`.
    """
    given = deployment.machine
    machine, log = with_read_log(given)
    deployment = replace(deployment, machine=machine)
    workload = deployment.workload
    costs = None if machine.node.device.target == CPU else host_costs(machine, overheads)
    edits = [NamedEdit.parse(text) for text in edit]
    always = Phase("", 1.0, deployment.placement, deployment.pipeline)
    phases = deployment.phases or (always,)
    answers, left_us = {}, faster_than_us
    for at in sorted(range(len(phases)), key=lambda at: -phases[at].steps_frac):
        phase = phases[at]
        try:
            answers[at] = _phase(deployment, phase, costs, edits, every_rank, left_us)
        except NotFaster:
            raise NotFaster(figures_read(given, log, costs)) from None
        left_us -= phase.steps_frac * answers[at][0].step_us
    found = [answers[at] for at in range(len(phases))]
    result, notes = found[0]
    if len(found) > 1:
        moved = sum(
            phase.steps_frac / phase.run_steps * row_transfer_us(phase, machine, costs)
            for phase in phases
        )
        shares, names = [each.steps_frac for each in phases], [each.name for each in phases]
        result = weighted_result([each for each, _ in found], shares, names, moved)
        notes = list(dict.fromkeys(note for _, own in found for note in own))
    result = with_reads(result, given, log, costs)
    source = {
        "trace": workload.name,
        "workload": workload.name,
        "implementation": "tiered",
        "stands_for": "",
        "device": result.hardware,
        "batch": deployment.batch,
        "training": deployment.train,
        "edits": list(edit),
        "ranks": [rank.rank for rank in result.ranks],
        "events": 0,
    }
    said = [*([costs.note] if costs else []), *deployment.notes, *notes]
    return Prediction(source, [result], [f"{result.hardware}: {note}" for note in said])


def _phase(
    deployment: Deployment,
    phase: Phase,
    costs: HostCosts | None,
    edits: Sequence[NamedEdit],
    every_rank: bool,
    faster_than_us: float,
) -> tuple[Result, list[str]]:
    """The period of steps of one kind, with what they need of each memory; `NotFaster` where their
    share of the steps alone is not `faster_than_us`."""
    workload, machine = deployment.workload, deployment.machine
    uses = tier_use(workload, phase.placement, machine, train=deployment.train)
    require_tiers(uses)
    step = Step(
        workload, machine, deployment.batch, deployment.train, phase.placement, phase.pipeline
    )
    most_us = faster_than_us / phase.steps_frac if phase.steps_frac else inf
    result, notes = predict_step(step, costs, edits, every_rank=every_rank, faster_than_us=most_us)
    use = result.memory or {}
    rest = sum(use.get(f"{kind}_bytes", 0.0) for kind in ("resident", "temporary"))
    uses = with_activations(uses, rest)
    require_tiers(uses)
    held_bytes = uses[0].tables_bytes + uses[0].caches_bytes
    use |= {"tables_bytes": held_bytes, "total_bytes": held_bytes + rest, "fits": True}
    return replace(result, memory={**use, "tiers": [each.to_dict() for each in uses]}), notes


PredictedDeployment = tuple[Deployment, Prediction]
ROUNDING_FRAC = 1e-12
"""Steps that differ by no more take as long."""


def fastest(
    design: Design, start: Deployment, *, overheads: str | None = None
) -> PredictedDeployment:
    """`start` under `design`, and its prediction: with all of a budget, or with half of it, a
    quarter, and so on, whichever fits and is fastest; a note says so. Twice a budget is never
    slower.

    Raises what applying the design as it is set raises, and what predicting it does where less of
    its budget does not fit either.
    """
    whole = design.apply(start)
    best, refused = _predicted(whole, overheads)
    if not isinstance(design, Budgeted):
        return _required(best, refused)
    seen, reads = [replace(whole, notes=())], dict.fromkeys(_figures_read(best))
    told = "more does not fit" if best is None else "more is no faster"
    for less in design.within(start):
        try:
            other = less.apply(start)
        except PerfmodelError:
            continue
        if replace(other, notes=()) in seen:
            continue
        seen.append(replace(other, notes=()))
        other = other.with_(f"{_changes(design, less)}: {told}")
        most_us = inf if best is None else _step_us(best) * (1 - ROUNDING_FRAC)
        found, refusal = _predicted(other, overheads, most_us)
        reads |= dict.fromkeys(
            refusal.reads if isinstance(refusal, NotFaster) else _figures_read(found)
        )
        if found is not None and _step_us(found) < most_us:
            best = found
    deployment, prediction = _required(best, refused)
    result = replace(prediction.results[0], reads=tuple(reads))
    return deployment, replace(prediction, results=[result])


def _predicted(
    deployment: Deployment, overheads: str | None, faster_than_us: float = inf
) -> tuple[PredictedDeployment | None, PerfmodelError | None]:
    """A deployment and its prediction, or why there is none."""
    try:
        found = predict_deployment(deployment, overheads=overheads, faster_than_us=faster_than_us)
    except PerfmodelError as error:
        return None, error
    return (deployment, found), None


def _required(
    found: PredictedDeployment | None, refused: PerfmodelError | None
) -> PredictedDeployment:
    if found is None:
        assert refused is not None
        raise refused
    return found


def _figures_read(found: PredictedDeployment | None) -> tuple[FigureRead, ...]:
    return () if found is None else found[1].results[0].reads


def _step_us(found: PredictedDeployment) -> float:
    return found[1].results[0].step_us


def _changes(before: Design, after: Design) -> str:
    if not isinstance(before, Composed) or not isinstance(after, Composed):
        return changes(before, after)
    pairs = zip(before.designs, after.designs, strict=True)
    return ", ".join(told for told in (changes(*pair) for pair in pairs) if told)
