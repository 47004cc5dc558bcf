"""Predictions of a deployment: a placement and a pipeline on a machine, memory tier by tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from perfmodel.designs import Deployment, Phase
from perfmodel.graph.opgraph.edits.named import NamedEdit
from perfmodel.hardware.reads import recorded
from perfmodel.lowering.walk import CPU
from perfmodel.memory.tiers import require_tiers, tier_use, with_activations
from perfmodel.prediction.explain.told import figures_read, with_reads
from perfmodel.prediction.host_costs import HostCosts, host_costs
from perfmodel.prediction.of_step import Step, predict_step
from perfmodel.prediction.phases import moved_us, together
from perfmodel.prediction.steady import NotFaster
from perfmodel.prediction.types import Prediction, Result


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
    machine, log = recorded(given)
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
            phase.steps_frac / phase.run_steps * moved_us(phase, machine, costs) for phase in phases
        )
        shares, names = [each.steps_frac for each in phases], [each.name for each in phases]
        result = together([each for each, _ in found], shares, names, moved)
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
