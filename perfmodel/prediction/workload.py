"""Predictions of a model's configuration: its ops on a cluster, and whether they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfmodel.graph.opgraph.edits.named import NamedEdit
from perfmodel.hardware import Cluster, Device, Part, cluster, load, node_of
from perfmodel.hardware.reads import recorded
from perfmodel.prediction.explain.told import with_reads
from perfmodel.prediction.host_costs import host_costs
from perfmodel.prediction.of_step import Step, predict_step
from perfmodel.prediction.several import several
from perfmodel.prediction.types import Prediction
from perfmodel.workload import Workload, load_workload


def predict_workload(
    workload: Workload | str | Path,
    *,
    hardware: str | Path | Part | Sequence[str | Path | Part],
    batch: int | None = None,
    nodes: int | None = None,
    train: bool = True,
    overheads: str | None = None,
    edit: str | Sequence[str] = (),
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
    edits = [NamedEdit.parse(text) for text in several(edit)]
    results, warnings = [], []
    for each in several(hardware):
        given = _machine(each, nodes)
        machine, log = recorded(given)
        costs = None if machine.node.device.target == "cpu" else host_costs(machine, overheads)
        step = Step(found, machine, total, train)
        result, notes = predict_step(step, costs, edits, every_rank=every_rank)
        result = with_reads(result, given, log, costs)
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
