"""The period of one kind of step: what each rank runs, evaluations, and memory.

Deployments have steps in common, such as those during which Hotline learns: each is made, and
predicted, once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path

from perfmodel.embedding import Pipeline, Placement
from perfmodel.errors import Note, WorkloadError
from perfmodel.hardware import Cluster, Device, Part, cluster, load, node_of
from perfmodel.lowering.context import self_contained
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.scheduled import HostCosts, ScheduledSteps
from perfmodel.prediction.shapes import Noted, least_period_us, predict_shapes, scheduled_ranks
from perfmodel.prediction.types import PathPiece, Result
from perfmodel.workload import Workload, op_graph
from perfmodel.workload.memory_tiers import TierUse, require_tiers, tier_use, with_activations
from perfmodel.workload.rank_work import RankClass, deciding_classes, loading_us, rank_classes
from perfmodel.workload.settings import IMPLEMENTATIONS

EVALUATION = "evaluation"
FP8 = "fp8"
_cached_op_graph = lru_cache(maxsize=8)(op_graph)
_cached_rank_classes = lru_cache(maxsize=8)(rank_classes)
"""Of a sweep's points many run the same ops."""


def cluster_of(given: str | Path | Part, nodes: int | None) -> Cluster:
    """The cluster that `nodes` of what is `given` make; of a device by itself, one rank in each."""
    part = given if isinstance(given, Part) else load(given)
    if isinstance(part, Device):
        part = replace(node_of(part), gpus=1)
    return cluster(part, nodes)


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

    @property
    def linked(self) -> int:
        """Ranks of a group that the software takes as joined by links."""
        machine = self.machine
        software = IMPLEMENTATIONS[self.workload.implementation.name]
        if self.placement is None and software.groups_by_node:
            return min(machine.node.gpus, machine.linked_gpus)
        return machine.linked_gpus

    @property
    def _every_class(self) -> list[RankClass]:
        return _cached_rank_classes(
            self.workload, self.machine.gpus, self.linked, self.placement, self.batch
        )

    @property
    def _kinds(self) -> list[list[RankClass]]:
        """The classes of each kind of node."""
        return [
            [
                replace(each, ranks=own)
                for each in self._every_class
                if (own := _within(each.ranks, ranks))
            ]
            for _, ranks in self.machine.kinds
        ]

    def classes(self, *, every_rank: bool) -> list[RankClass]:
        """The ranks that stand for all."""
        return [it for own in self._kinds for it in (own if every_rank else deciding_classes(own))]

    def fuller(self, edits: Sequence[NamedEdit]) -> list[OpGraph]:
        """What ranks run that hold more than those that stand for all, under `edits`: nobody waits
        for them, but their memory is to hold it. Of a placement, its tiers say that."""
        if self.placement is not None:
            return []
        held = attrgetter("held_rows_bytes")
        most = [(max(own, key=held), max(map(held, deciding_classes(own)))) for own in self._kinds]
        graphs = [self.graph(full.ranks[0]) for full, shown in most if held(full) > shown]
        edited = map(self_contained, graphs) if edits else graphs
        return apply_edits(edited, edits, must_change=False)[0]

    def _sharers(self, rank: int) -> float:
        """Of its node's drives: as many ranks that miss as `rank` does would miss what all of the
        node do, each of them no faster than its even part."""
        missed = {at: each.missed_rows for each in self._every_class for at in each.ranks}
        node, ranks = next(it for it in self.machine.kinds if rank in it[1])
        first = rank - (rank - ranks.start) % node.gpus
        together = sum(missed[at] for at in range(first, first + node.gpus))
        return min(together / missed[rank], node.gpus) if missed[rank] else 0.0

    def graph(self, rank: int) -> OpGraph:
        """What `rank` runs."""
        machine = self.machine
        device = machine.seen_by(rank).node.device
        software = self.workload.implementation
        if software.precision == FP8 and device.fp8_tflop_per_s is None:
            raise WorkloadError(
                f'{self.workload.name}: implementation: precision: {device.name} has no "{FP8}"'
            )
        return _cached_op_graph(
            self.workload,
            self.batch,
            ranks=machine.gpus,
            rank=rank,
            target=device.target,
            train=self.train,
            threads=device.sm_count,
            linked=self.linked,
            placement=self.placement,
            pipeline=self.pipeline,
            sharers=self._sharers(rank),
        )

    def scheduled(self, graphs: Sequence[OpGraph], costs: HostCosts | None) -> ScheduledSteps:
        """`graphs` of its ranks, over and over, which lose nothing to collectives beside them."""
        return scheduled_ranks(
            graphs,
            self.machine,
            costs,
            tf32_matmul=self.workload.implementation.precision == "tf32",
            repeats=True,
            loading_us=loading_us(self.workload, self.batch / self.machine.nodes),
        )

    def predicted(
        self,
        graphs: Sequence[OpGraph],
        costs: HostCosts | None,
        alone: ScheduledSteps,
        fuller: Sequence[OpGraph] = (),
    ) -> Noted:
        """The period of `alone`, which is made of `graphs`; the memory also of `fuller` ranks."""
        return predict_shapes(
            graphs,
            self.machine,
            name=self.hardware,
            costs=costs,
            alone=alone,
            must_fit=True,
            fuller=fuller,
        )

    def tiers(self) -> tuple[TierUse, ...]:
        """What its placement needs of each memory. Raises `WorkloadError` where it does not fit."""
        if self.placement is None:
            return ()
        uses = tier_use(self.workload, self.placement, self.machine, train=self.train)
        require_tiers(uses)
        return uses

    def graphs(
        self, edits: Sequence[NamedEdit], *, every_rank: bool, must_change: bool = True
    ) -> tuple[list[OpGraph], list[str]]:
        """What the ranks that stand for all run, under `edits`, and what of these does nothing."""
        graphs = [self.graph(each.ranks[0]) for each in self.classes(every_rank=every_rank)]
        if edits:
            graphs = list(map(self_contained, graphs))
        return apply_edits(graphs, edits, must_change=must_change)


def _within(ranks: tuple[int, ...], kind: range) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if rank in kind)


@dataclass(frozen=True)
class Asked:
    """A step under edits, its host timed by `costs`: many deployments have steps in common."""

    step: Step
    edits: tuple[NamedEdit, ...]
    every_rank: bool
    paid: Hashable
    """What tells `costs` from others."""
    costs: HostCosts | None = field(compare=False)

    @classmethod
    def of(
        cls, step: Step, costs: HostCosts | None, edits: Sequence[NamedEdit], *, every_rank: bool
    ) -> Asked:
        return cls(step, tuple(edits), every_rank, costs and costs.content, costs)


def _scheduled_alone(asked: Asked) -> tuple[list[OpGraph], list[str], ScheduledSteps, float]:
    """Graphs, what edits do not do, the step without what kernels lose to collectives, and its
    period."""
    step = asked.step
    graphs, undone = step.graphs(asked.edits, every_rank=asked.every_rank)
    alone = step.scheduled(graphs, asked.costs)
    return graphs, undone, alone, least_period_us(alone)


def _period(asked: Asked) -> Noted:
    step, costs, edits = asked.step, asked.costs, asked.edits
    tiers = step.tiers()
    graphs, undone, alone, _ = _alone(asked)
    fuller = [] if asked.every_rank else step.fuller(edits)
    result, found = step.predicted(graphs, costs, alone, fuller)
    notes = [*undone, *found]
    shown = step.classes(every_rank=asked.every_rank)
    if asked.every_rank:
        notes += [Note(f"rank {each.ranks[0]} stands for {len(each.ranks)}") for each in shown]
    elif step.machine.gpus > 1:
        notes += map(Note, _standing(shown, step.machine))
    evaluation = step.workload.evaluation
    share = evaluation.forward_passes_per_step if step.train else 0.0
    if share:
        samples = step.batch * evaluation.batch_factor
        forward = replace(step, batch=samples, train=False)
        graphs, _ = forward.graphs(edits, every_rank=asked.every_rank, must_change=False)
        once, _ = forward.predicted(graphs, costs, forward.scheduled(graphs, costs))
        evaluation_us = share * once.step_us + evaluation.beyond_us_per_step(step.batch)
        result = _with_evaluation(result, evaluation_us)
        notes.append(f"evaluation included: {evaluation_us:.1f} us per training batch")
    return (_with_tiers(result, tiers) if tiers else result), notes


STEPS_KNOWN = 128
"""As many as a comparison of all designs asks for."""
_alone = lru_cache(maxsize=STEPS_KNOWN)(_scheduled_alone)
_known_period = lru_cache(maxsize=STEPS_KNOWN)(_period)


def least_step_us(step: Step, costs: HostCosts | None) -> float:
    """What a step takes at least: without evaluations, and what kernels lose to collectives.

    Raises `WorkloadError` for what does not fit into one of the memories of its placement.
    """
    step.tiers()
    least_us: float = _alone(Asked.of(step, costs, (), every_rank=False))[3]
    return least_us


def step_period(
    step: Step, costs: HostCosts | None, edits: Sequence[NamedEdit], *, every_rank: bool
) -> Noted:
    """The period of a step, with its share of the evaluations that the workload's clock includes.

    With a placement, the result's `memory` has `tiers`: what a node needs of each memory. Raises
    `WorkloadError` for what does not fit into one of them.
    """
    result, notes = _known_period(Asked.of(step, costs, edits, every_rank=every_rank))
    return result, [*notes]


def _standing(shown: Sequence[RankClass], machine: Cluster) -> Iterator[str]:
    """Which ranks stand for all, of each kind of node."""
    for node, ranks in machine.kinds:
        rank, *others = (each.ranks[0] for each in shown if each.ranks[0] in ranks)
        of = f"{machine.gpus}" if machine.others is None else f"the {len(ranks)} in {node.name}"
        yield f"rank {rank} of {of}, which looks up most, stands for all"
        yield from (f"rank {other}, which sends or misses most, as well" for other in others)


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
        draws_us=None if result.draws_us is None else result.draws_us + evaluation_us,
        critical_path=[*result.critical_path, piece],
        relieved_us={k: us + evaluation_us for k, us in (result.relieved_us or {}).items()},
    )


def _with_tiers(result: Result, uses: Sequence[TierUse]) -> Result:
    """`result` with the memory of its placement. Raises `WorkloadError` where activations do not
    fit beside it."""
    use = result.memory or {}
    rest = sum(use.get(f"{kind}_bytes", 0.0) for kind in ("resident", "temporary"))
    uses = with_activations(uses, rest)
    require_tiers(uses)
    use.pop("rank", None)  # of its tables, the fullest rank is another
    held_bytes = uses[0].tables_bytes + uses[0].caches_bytes
    use |= {"tables_bytes": held_bytes, "total_bytes": held_bytes + rest, "fits": True}
    return replace(result, memory={**use, "tiers": [each.to_dict() for each in uses]})
