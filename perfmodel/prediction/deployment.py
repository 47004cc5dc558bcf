"""Predictions of a deployment: a placement and a pipeline on a machine, memory tier by tier."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.designs import Deployment
from perfmodel.graph.opgraph.edits.named import NamedEdit, edited
from perfmodel.lowering.walk import CPU
from perfmodel.prediction.host_costs import host_costs
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.prediction.types import Prediction, Result
from perfmodel.workload import op_graph
from perfmodel.workload.classes import decisive, rank_classes
from perfmodel.workload.loading import loading_us


def predict_deployment(
    deployment: Deployment,
    *,
    overheads: str | None = None,
    edit: Sequence[str] = (),
    every_rank: bool = False,
) -> Prediction:
    """Per-batch time of a workload as it is deployed: the period of steps that follow one another.

    Arguments are those of `predict_workload`. Raises `WorkloadError` for what does not fit into a
    tier of memory.
    """
    result, notes = _result(deployment, overheads, edit, every_rank)
    workload = deployment.workload
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
    return Prediction(source, [result], [f"{result.hardware}: {note}" for note in notes])


def _result(
    deployment: Deployment, overheads: str | None, edit: Sequence[str], every_rank: bool
) -> tuple[Result, list[str]]:
    workload, machine = deployment.workload, deployment.machine
    ranks, linked, device = machine.gpus, machine.linked_gpus, machine.node.device
    costs = None if device.target == CPU else host_costs(machine, overheads)
    classes = rank_classes(workload, ranks, linked, deployment.placement)
    shown = classes if every_rank else decisive(classes)
    graphs = [
        op_graph(
            workload,
            deployment.batch,
            ranks=ranks,
            rank=each.ranks[0],
            target=device.target,
            train=deployment.train,
            threads=device.sm_count,
            linked=linked,
            placement=deployment.placement,
            pipeline=deployment.pipeline,
        )
        for each in shown
    ]
    graphs, undone = edited(graphs, [NamedEdit.parse(text) for text in edit], must_change=True)
    result, notes = predict_shapes(
        graphs,
        machine,
        name=machine.name if machine.nodes == 1 else f"{machine.nodes} x {machine.name}",
        costs=costs,
        tf32_matmul=workload.implementation.precision == "tf32",
        must_fit=True,
        repeats=True,
        loading_us=loading_us(workload, deployment.batch / machine.nodes),
    )
    said = [] if costs is None else [costs.note]
    said += [f"rank {each.ranks[0]} stands for {len(each.ranks)}" for each in shown]
    return result, [*said, *deployment.notes, *undone, *notes]
