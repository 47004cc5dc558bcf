"""Predictions of a model's configuration: its ops on a cluster, and whether they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfmodel.graph.opgraph.edits.named import NamedEdit, edited
from perfmodel.hardware import Cluster, Device, Part, cluster, load, node_of
from perfmodel.prediction.host_costs import HostCosts, host_costs
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.prediction.types import PathPiece, Prediction, Result
from perfmodel.workload import Workload, load_workload, op_graph
from perfmodel.workload.classes import UNLIKE, decisive, rank_classes
from perfmodel.workload.loading import loading_us

EVALUATION = "evaluation"


def predict_workload(
    workload: Workload | str | Path,
    *,
    hardware: Sequence[str | Path | Part],
    batch: int | None = None,
    nodes: int | None = None,
    train: bool = True,
    overheads: str | None = None,
    edit: Sequence[str] = (),
    every_rank: bool = False,
) -> Prediction:
    """Per-batch time of a workload (a name of the catalogue, a TOML file, or the value itself).

    `batch` is global, of all ranks; every device of a node or cluster is a rank, and `nodes` equal
    nodes make a cluster; a device by itself is one rank (with `nodes`, one in each). The rank that
    looks up most and the one that sends most stand for all; with `every_rank`, one of each class of
    ranks with equal work. They meet at their collectives. `edit` changes the ops
    (`NamedEdit.parse`). `overheads` names a profile of host costs; without it, one of the package's
    is chosen and named among the warnings.

    What is predicted is the period of steps that follow one another. Raises
    `WorkloadError` for a batch that ranks cannot share and for what does not fit into memory,
    `HardwareError` for unknown hardware.
    """
    found = workload if isinstance(workload, Workload) else load_workload(workload)
    total = found.batch if batch is None else batch
    edits = [NamedEdit.parse(text) for text in edit]
    results, warnings = [], []
    for each in hardware:
        machine = _machine(each, nodes)
        costs = None if machine.node.device.target == "cpu" else host_costs(machine, overheads)
        result, notes = _on(found, total, machine, costs, train, edits, every_rank)
        results.append(result)
        for note in (*([costs.note] if costs else []), *notes):
            line = f"{result.hardware}: {note}"
            if line not in warnings:
                warnings.append(line)
    source = {
        "trace": found.name,
        "workload": found.name,
        "implementation": found.implementation.name,
        "stands_for": found.implementation.stands_for,
        "device": ", ".join(result.hardware for result in results),
        "batch": total,
        "training": train,
        "edits": list(edit),
        "ranks": [rank.rank for rank in results[0].ranks],
        "events": 0,
    }
    return Prediction(source, results, warnings)


def _machine(given: str | Path | Part, nodes: int | None) -> Cluster:
    part = given if isinstance(given, Part) else load(given)
    if isinstance(part, Device):
        part = replace(node_of(part), gpus=1)
    return cluster(part, nodes)


def _on(
    workload: Workload,
    batch: int,
    machine: Cluster,
    costs: HostCosts | None,
    train: bool,
    edits: Sequence[NamedEdit],
    every_rank: bool,
) -> tuple[Result, list[str]]:
    ranks = machine.gpus
    linked = machine.linked_gpus
    classes = rank_classes(workload, ranks, linked)
    every_rank = every_rank or workload.implementation.name in UNLIKE
    shown = classes if every_rank else decisive(classes)
    device = machine.node.device
    name = machine.name if machine.nodes == 1 else f"{machine.nodes} x {machine.name}"

    def run(training: bool) -> tuple[Result, list[str]]:
        samples = batch if training == train else batch * workload.evaluation.batch_factor
        graphs = [
            op_graph(
                workload,
                samples,
                ranks=ranks,
                rank=each.ranks[0],
                target=device.target,
                train=training,
                threads=device.sm_count,
                linked=linked,
            )
            for each in shown
        ]
        is_tf32 = workload.implementation.precision == "tf32"
        graphs, undone = edited(graphs, edits, must_change=training == train)
        result, notes = predict_shapes(
            graphs,
            machine,
            name=name,
            costs=costs,
            tf32_matmul=is_tf32,
            must_fit=True,
            repeats=True,
            loading_us=loading_us(workload, samples / machine.nodes),
        )
        return result, [*undone, *notes]

    result, notes = run(train)
    if every_rank:
        notes += [f"rank {each.ranks[0]} stands for {len(each.ranks)}" for each in shown]
    elif ranks > 1:
        rank, *senders = (each.ranks[0] for each in shown)
        notes.append(f"rank {rank} of {ranks}, which looks up most, stands for all")
        notes += [f"rank {sender}, which sends most, beside it" for sender in senders]
    share = workload.evaluation.forward_passes_per_step if train else 0.0
    if share:
        evaluation_us = share * run(False)[0].step_us
        result = _with_evaluation(result, evaluation_us)
        notes.append(f"evaluation included: {evaluation_us:.1f} us per training batch")
    return result, notes


def _with_evaluation(result: Result, evaluation_us: float) -> Result:
    """The step with its share of the evaluations, as one more piece at the end."""
    ranks = [
        replace(
            rank,
            step_us=rank.step_us + evaluation_us,
            steps=[replace(step, step_us=step.step_us + evaluation_us) for step in rank.steps],
        )
        for rank in result.ranks
    ]
    last = result.critical_path[-1] if result.critical_path else None
    start_us = last.start_us + last.duration_us if last else 0.0
    piece = PathPiece(EVALUATION, EVALUATION, start_us, evaluation_us)
    return replace(
        result,
        ranks=ranks,
        low_us=None if result.low_us is None else result.low_us + evaluation_us,
        high_us=None if result.high_us is None else result.high_us + evaluation_us,
        critical_path=[*result.critical_path, piece],
    )
