"""The prediction of a configuration: one step by its own implementation, or in steady state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from pathlib import Path

from perfmodel.embedding import Pipeline, Placement
from perfmodel.hardware import Cluster, Device, Part, cluster, load, node_of
from perfmodel.hardware.reads import with_read_log
from perfmodel.lowering.context import self_contained
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.explain.modelled import with_reads
from perfmodel.prediction.result import as_list
from perfmodel.prediction.scheduled import HostCosts, host_costs
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.prediction.types import PathPiece, Prediction, Result
from perfmodel.workload import Workload, load_workload, op_graph
from perfmodel.workload.rank_work import (
    RankClass,
    deciding_classes,
    loading_us,
    rank_classes,
)

EVALUATION = "evaluation"
_cached_op_graph = lru_cache(maxsize=8)(op_graph)
"""Of a sweep's points many run the same ops."""


@dataclass(frozen=True)
class Step:
    """A step of `workload` with a global `batch` on every device of `machine`.

    Without a `placement`, the workload's implementation says where tables lie and what runs.
    """

    workload: Workload
    machine: Cluster
    batch: int
    train: bool
    placement: Placement | None = None
    pipeline: Pipeline | None = None

    @property
    def hardware(self) -> str:
        """What people call the machine."""
        machine = self.machine
        return machine.name if machine.nodes == 1 else f"{machine.nodes} x {machine.name}"

    def classes(self, *, every_rank: bool) -> list[RankClass]:
        """The ranks that stand for all."""
        found = rank_classes(
            self.workload, self.machine.gpus, self.machine.linked_gpus, self.placement, self.batch
        )
        return found if every_rank else deciding_classes(found)

    def graph(self, rank: int) -> OpGraph:
        """What `rank` runs."""
        machine = self.machine
        device = machine.node.device
        return _cached_op_graph(
            self.workload,
            self.batch,
            ranks=machine.gpus,
            rank=rank,
            target=device.target,
            train=self.train,
            threads=device.sm_count,
            linked=machine.linked_gpus,
            placement=self.placement,
            pipeline=self.pipeline,
        )

    def alone(
        self,
        costs: HostCosts | None,
        shown: Sequence[RankClass],
        edits: Sequence[NamedEdit] = (),
        *,
        must_change: bool = True,
        faster_than_us: float = inf,
    ) -> tuple[Result, list[str]]:
        """The step's period, evaluations left out, and what a user should know of it."""
        graphs = [self.graph(each.ranks[0]) for each in shown]
        if edits:
            graphs = list(map(self_contained, graphs))
        graphs, undone = apply_edits(graphs, edits, must_change=must_change)
        result, notes = predict_shapes(
            graphs,
            self.machine,
            name=self.hardware,
            costs=costs,
            tf32_matmul=self.workload.implementation.precision == "tf32",
            must_fit=True,
            repeats=True,
            loading_us=loading_us(self.workload, self.batch / self.machine.nodes),
            faster_than_us=faster_than_us,
        )
        return result, [*undone, *notes]


def predict_step(
    step: Step,
    costs: HostCosts | None,
    edits: Sequence[NamedEdit],
    *,
    every_rank: bool,
    faster_than_us: float = inf,
) -> tuple[Result, list[str]]:
    """The period of a step, with its share of the evaluations that the workload's clock includes.

    Raises `WorkloadError` for what does not fit into device memory, `NotFaster` for what is soon
    seen not to be `faster_than_us`.
    """
    shown = step.classes(every_rank=every_rank)
    result, notes = step.alone(costs, shown, edits, faster_than_us=faster_than_us)
    if every_rank:
        notes += [f"rank {each.ranks[0]} stands for {len(each.ranks)}" for each in shown]
    elif step.machine.gpus > 1:
        rank, *others = (each.ranks[0] for each in shown)
        count = step.machine.gpus
        notes.append(f"rank {rank} of {count}, which looks up most, stands for all")
        notes += [f"rank {other}, which sends or misses most, beside it" for other in others]
    evaluation = step.workload.evaluation
    share = evaluation.forward_passes_per_step if step.train else 0.0
    if share:
        samples = step.batch * evaluation.batch_factor
        forward = replace(step, batch=samples, train=False)
        evaluation_us = share * forward.alone(costs, shown, edits, must_change=False)[0].step_us
        evaluation_us += evaluation.beyond_us_per_step(step.batch)
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
    edits = [NamedEdit.parse(text) for text in as_list(edit)]
    results, warnings = [], []
    for each in as_list(hardware):
        given = _machine(each, nodes)
        machine, log = with_read_log(given)
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
