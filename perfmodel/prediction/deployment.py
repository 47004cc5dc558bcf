"""The period of a deployment: of its kinds of steps, and what moves between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.designs import Deployment, Phase
from perfmodel.hardware import Cluster
from perfmodel.ops.edits.named import NamedEdit
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.scheduled import HostCosts
from perfmodel.prediction.shapes import Noted, predict_shapes
from perfmodel.prediction.step import Step, least_step_us, step_period
from perfmodel.prediction.types import DEVICE_WORK, PathPiece, Result
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.step import data_edges

SWITCH = "switch"
FP32_BYTES = 4
HOST_RESOURCE = "cpu"


def steps_of(deployment: Deployment) -> list[tuple[Phase, Step]]:
    """The kinds of steps of a deployment: one, or its phases."""
    case = deployment
    about = (case.workload, case.machine, case.batch, case.train)
    phases = case.phases or (Phase("", 1.0, case.placement, case.pipeline),)
    return [(phase, Step(*about, phase.placement, phase.pipeline)) for phase in phases]


def least_deployment_us(deployment: Deployment, costs: HostCosts | None, enough_us: float) -> float:
    """What the steps of a deployment take at least: without evaluations and contention; of several
    kinds, the most frequent ones where that is `enough_us`. Raises as `deployment_period`."""
    steps = steps_of(deployment)
    total_us = moved_us([phase for phase, _ in steps], deployment.machine, costs)
    for phase, step in sorted(steps, key=lambda each: -each[0].steps_frac):
        if total_us < enough_us:
            total_us += phase.steps_frac * least_step_us(step, costs)
    return total_us


def deployment_period(
    deployment: Deployment, costs: HostCosts | None, edits: Sequence[NamedEdit], *, every_rank: bool
) -> Noted:
    """The period of a deployment's steps: of one kind, or of its phases by their shares. Raises
    what `step_period` raises."""
    phases, steps = zip(*steps_of(deployment), strict=True)
    answers = [step_period(step, costs, edits, every_rank=every_rank) for step in steps]
    results = [result for result, _ in answers]
    notes = [note for _, own in answers for note in own]
    result = results[0]
    if len(phases) > 1:
        switch_us = moved_us(phases, deployment.machine, costs)
        result = weighted_result(results, phases, switch_us)
    return result, [*deployment.notes, *notes]


def moved_us(phases: Sequence[Phase], machine: Cluster, costs: HostCosts | None) -> float:
    """What moves between `phases`, per step."""
    return sum(
        phase.steps_frac / phase.run_steps * row_transfer_us(phase, machine, costs)
        for phase in phases
    )


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


def weighted_result(results: Sequence[Result], phases: Sequence[Phase], switch_us: float) -> Result:
    """One result for `results`, each of the share of the steps of its phase, and `switch_us` per
    step. Runs are long against what a pipeline takes to fill, so that periods add up. Timeline and
    kernels are those of the kind that takes most."""
    shares = [phase.steps_frac for phase in phases]

    def summed(values: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """Per name its values, by the phases' shares."""
        total: dict[str, float] = {}
        for share, own in zip(shares, values, strict=True):
            for name, value in own.items():
                total[name] = total.get(name, 0.0) + share * value
        return total

    def total_us(name: str) -> Any:
        values = [getattr(result, name) for result in results]
        if any(us is None for us in values):
            return None
        return sum(share * us for share, us in zip(shares, values, strict=True)) + switch_us

    taken = [share * result.step_us for share, result in zip(shares, results, strict=True)]
    main = results[taken.index(max(taken))]
    step_us = sum(taken) + switch_us
    bounds = summed(result.bound_by or {} for result in results)
    if switch_us:
        bounds[SWITCH] = switch_us
    reliefs = [result.relieved_us or {} for result in results]
    names = dict.fromkeys(name for each in reliefs for name in each)
    relieved_us = summed(
        {name: each.get(name, result.step_us) for name in names}
        for each, result in zip(reliefs, results, strict=True)
    )
    time_us, count = (
        summed({row["family"]: row[key] for row in result.families} for result in results)
        for key in ("time_us", "count")
    )
    families = [
        {"family": name, "time_us": round(us, 4), "count": round(count[name], 4)}
        for name, us in time_us.items()
    ]
    path, start_us = [], 0.0
    kinds = (*(phase.name for phase in phases), SWITCH)
    for name, duration_us in zip(kinds, (*taken, switch_us), strict=True):
        path.append(PathPiece(name, "phase", start_us, duration_us))
        start_us += duration_us
    rank = replace(
        main.rank,
        step_us=step_us,
        steps=[replace(step, step_us=step_us) for step in main.rank.steps],
        **summed({name: getattr(each.rank, name) for name in DEVICE_WORK} for each in results),
    )
    totals = {name: total_us(name) for name in ("low_us", "high_us", "draws_us", "latency_us")}
    return replace(
        main,
        ranks=[rank],
        slowest=0,
        families=sorted(families, key=lambda row: -row["time_us"]),
        critical_path=path,
        bound_by=bounds or None,
        relieved_us={name: switch_us + us for name, us in relieved_us.items()} or None,
        straggler=None,
        **totals,
    )
