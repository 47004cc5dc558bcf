"""The prediction of one step of a configuration: by its own implementation, or as it is placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from perfmodel.graph.opgraph.edits.named import NamedEdit, edited
from perfmodel.graph.ops import OpGraph
from perfmodel.hardware import Cluster
from perfmodel.lowering.context import self_contained
from perfmodel.placement import Pipeline, Placement
from perfmodel.prediction.host_costs import HostCosts
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.prediction.types import PathPiece, Result
from perfmodel.workload import Workload, op_graph
from perfmodel.workload.classes import UNLIKE, RankClass, decisive, rank_classes
from perfmodel.workload.loading import loading_us

EVALUATION = "evaluation"
_recorded = lru_cache(maxsize=8)(op_graph)
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

    def classes(self, *, every_rank: bool) -> tuple[list[RankClass], bool]:
        """The ranks that stand for all, and whether each class of ranks is among them."""
        found = rank_classes(
            self.workload, self.machine.gpus, self.machine.linked_gpus, self.placement, self.batch
        )
        unlike = self.placement is None and self.workload.implementation.name in UNLIKE
        every_rank = every_rank or unlike
        return found if every_rank else decisive(found), every_rank

    def graph(self, rank: int) -> OpGraph:
        """What `rank` runs."""
        machine = self.machine
        device = machine.node.device
        return _recorded(
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
        graphs, undone = edited(graphs, edits, must_change=must_change)
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
    shown, every_rank = step.classes(every_rank=every_rank)
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
