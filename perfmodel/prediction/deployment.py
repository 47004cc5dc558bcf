"""Predictions of a deployment: a placement and a pipeline on a machine, memory tier by tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.designs import Deployment
from perfmodel.graph.opgraph.edits.named import NamedEdit
from perfmodel.lowering.walk import CPU
from perfmodel.memory.tiers import require_tiers, tier_use, with_activations
from perfmodel.prediction.host_costs import host_costs
from perfmodel.prediction.of_step import Step, predict_step
from perfmodel.prediction.types import Prediction


def predict_deployment(
    deployment: Deployment,
    *,
    overheads: str | None = None,
    edit: Sequence[str] = (),
    every_rank: bool = False,
) -> Prediction:
    """Per-batch time of a workload as it is deployed: the period of steps that follow one another.

    Arguments are those of `predict_workload`, which predicts a workload by its own implementation.
    The result's `memory` has `tiers`: what a node needs of the memories beside its devices'. Raises
    `WorkloadError` for what does not fit into one of them, and names it.
    """
    workload, machine = deployment.workload, deployment.machine
    uses = tier_use(workload, deployment.placement, machine, train=deployment.train)
    require_tiers(uses)
    costs = None if machine.node.device.target == CPU else host_costs(machine, overheads)
    step = Step(
        workload,
        machine,
        deployment.batch,
        deployment.train,
        deployment.placement,
        deployment.pipeline,
    )
    edits = [NamedEdit.parse(text) for text in edit]
    result, notes = predict_step(step, costs, edits, every_rank=every_rank)
    use = result.memory or {}
    rest = sum(use.get(f"{kind}_bytes", 0.0) for kind in ("resident", "temporary"))
    uses = with_activations(uses, rest)
    require_tiers(uses)
    held_bytes = uses[0].tables_bytes + uses[0].caches_bytes
    use |= {"tables_bytes": held_bytes, "total_bytes": held_bytes + rest, "fits": True}
    memory = {**use, "tiers": [each.to_dict() for each in uses]}
    result = replace(result, memory=memory)
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
