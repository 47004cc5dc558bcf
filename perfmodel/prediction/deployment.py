"""The period of a configuration's steps: what each rank runs, evaluations, phases, and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from pathlib import Path
from typing import Any

from perfmodel.designs import Deployment, Phase
from perfmodel.embedding import Pipeline, Placement
from perfmodel.errors import Note, WorkloadError
from perfmodel.hardware import Cluster, Device, Part, cluster, load, node_of
from perfmodel.lowering.context import self_contained
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.scheduled import HostCosts
from perfmodel.prediction.shapes import Noted, predict_shapes
from perfmodel.prediction.types import PathPiece, Result
from perfmodel.workload import Workload, op_graph
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.memory_tiers import TierUse, require_tiers, tier_use, with_activations
from perfmodel.workload.rank_work import RankClass, deciding_classes, loading_us, rank_classes
from perfmodel.workload.settings import IMPLEMENTATIONS
from perfmodel.workload.step import data_edges

EVALUATION = "evaluation"
SWITCH = "switch"
FP32_BYTES = 4
FP8 = "fp8"
HOST_RESOURCE = "cpu"
_SUMMED = ("gpu_active_us", "gpu_idle_us", "kernel_sum_us", "comm_us", "exposed_comm_us")
_cached_op_graph = lru_cache(maxsize=8)(op_graph)
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

    @cached_property
    def _every_class(self) -> list[RankClass]:
        return rank_classes(
            self.workload, self.machine.gpus, self.linked, self.placement, self.batch
        )

    def classes(self, *, every_rank: bool) -> list[RankClass]:
        """The ranks that stand for all."""
        every = self._every_class
        kinds = [
            [replace(each, ranks=own) for each in every if (own := _within(each.ranks, ranks))]
            for _, ranks in self.machine.kinds
        ]
        return [it for own in kinds for it in (own if every_rank else deciding_classes(own))]

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

    def tiers(self) -> tuple[TierUse, ...]:
        """What its placement needs of each memory. Raises `WorkloadError` where it does not fit."""
        if self.placement is None:
            return ()
        uses = tier_use(self.workload, self.placement, self.machine, train=self.train)
        require_tiers(uses)
        return uses

    def alone(
        self,
        costs: HostCosts | None,
        shown: Sequence[RankClass],
        edits: Sequence[NamedEdit],
        *,
        must_change: bool = True,
        faster_than_us: float = inf,
    ) -> Noted:
        """The step's period, evaluations left out, and what a user should know of it."""
        graphs = [self.graph(each.ranks[0]) for each in shown]
        if edits:
            graphs = list(map(self_contained, graphs))
        graphs, skipped = apply_edits(graphs, edits, must_change=must_change)
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
        return result, [*skipped, *notes]


def _within(ranks: tuple[int, ...], kind: range) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if rank in kind)


def step_period(
    step: Step,
    costs: HostCosts | None,
    edits: Sequence[NamedEdit],
    *,
    every_rank: bool,
    faster_than_us: float = inf,
) -> Noted:
    """The period of a step, with its share of the evaluations that the workload's clock includes.

    With a placement, the result's `memory` has `tiers`: what a node needs of each memory. Raises
    `WorkloadError` for what does not fit into one of them, `NotFaster` for what is soon seen not to
    be `faster_than_us`.
    """
    tiers = step.tiers()
    shown = step.classes(every_rank=every_rank)
    result, notes = step.alone(costs, shown, edits, faster_than_us=faster_than_us)
    if every_rank:
        notes += [Note(f"rank {each.ranks[0]} stands for {len(each.ranks)}") for each in shown]
    elif step.machine.gpus > 1:
        notes += map(Note, _standing(shown, step.machine))
    evaluation = step.workload.evaluation
    share = evaluation.forward_passes_per_step if step.train else 0.0
    if share:
        samples = step.batch * evaluation.batch_factor
        forward = replace(step, batch=samples, train=False)
        evaluation_us = share * forward.alone(costs, shown, edits, must_change=False)[0].step_us
        evaluation_us += evaluation.beyond_us_per_step(step.batch)
        result = _with_evaluation(result, evaluation_us)
        notes.append(f"evaluation included: {evaluation_us:.1f} us per training batch")
    return (_with_tiers(result, tiers) if tiers else result), notes


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
    held_bytes = uses[0].tables_bytes + uses[0].caches_bytes
    use |= {"tables_bytes": held_bytes, "total_bytes": held_bytes + rest, "fits": True}
    return replace(result, memory={**use, "tiers": [each.to_dict() for each in uses]})


def deployment_period(
    deployment: Deployment,
    costs: HostCosts | None,
    edits: Sequence[NamedEdit],
    *,
    every_rank: bool,
    faster_than_us: float = inf,
) -> Noted:
    """The period of a deployment's steps: of one kind, or of its phases by their shares.

    Raises what `step_period` raises; `NotFaster` as soon as the longest phases alone are not.
    """
    always = Phase("", 1.0, deployment.placement, deployment.pipeline)
    phases = deployment.phases or (always,)
    answers: dict[int, Noted] = {}
    left_us = faster_than_us
    for at, phase in sorted(enumerate(phases), key=lambda each: -each[1].steps_frac):
        step = Step(
            deployment.workload,
            deployment.machine,
            deployment.batch,
            deployment.train,
            phase.placement,
            phase.pipeline,
        )
        most_us = left_us / phase.steps_frac
        answers[at] = step_period(step, costs, edits, every_rank=every_rank, faster_than_us=most_us)
        left_us -= phase.steps_frac * answers[at][0].step_us
    results = [answers[at][0] for at in range(len(phases))]
    notes = [note for at in range(len(phases)) for note in answers[at][1]]
    result = results[0]
    if len(phases) > 1:
        moved_us = sum(
            phase.steps_frac / phase.run_steps * row_transfer_us(phase, deployment.machine, costs)
            for phase in phases
        )
        result = weighted_result(results, phases, moved_us)
    return result, [*deployment.notes, *notes]


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
    step.

    Runs are long against what a pipeline takes to fill, so that periods add up; what moves waits
    for the run before it. Timeline and kernels are those of the kind that takes most.
    """
    weighed = [(result, phase.steps_frac) for result, phase in zip(results, phases, strict=True)]
    taken = [share * result.step_us for result, share in weighed]
    main = results[taken.index(max(taken))]
    step_us = sum(taken) + switch_us
    summed = {
        name: sum(share * getattr(result.rank, name) for result, share in weighed)
        for name in _SUMMED
    }
    steps = [replace(step, step_us=step_us) for step in main.rank.steps]
    bounds: dict[str, float] = {}
    families: dict[str, dict[str, Any]] = {}
    for result, share in weighed:
        for resource, us in (result.bound_by or {}).items():
            bounds[resource] = bounds.get(resource, 0.0) + share * us
        for row in result.families:
            usual = {"family": row["family"], "time_us": 0.0, "count": 0.0}
            own = families.setdefault(row["family"], usual)
            for key in ("time_us", "count"):
                own[key] = round(own[key] + share * row[key], 4)
    if switch_us:
        bounds[SWITCH] = switch_us
    relieved_us = {
        name: switch_us
        + sum(share * (each.relieved_us or {}).get(name, each.step_us) for each, share in weighed)
        for name in dict.fromkeys(name for each, _ in weighed for name in each.relieved_us or {})
    }
    path, start_us = [], 0.0
    names = (*(phase.name for phase in phases), SWITCH)
    for name, duration_us in zip(names, (*taken, switch_us), strict=True):
        path.append(PathPiece(name, "phase", start_us, duration_us))
        start_us += duration_us

    def total_us(name: str) -> Any:
        values = [(getattr(result, name), share) for result, share in weighed]
        known = [share * us for us, share in values if us is not None]
        return sum(known) + switch_us if len(known) == len(values) else None

    return replace(
        main,
        ranks=[replace(main.rank, step_us=step_us, steps=steps, **summed)],
        slowest=0,
        low_us=total_us("low_us"),
        high_us=total_us("high_us"),
        draws_us=total_us("draws_us"),
        latency_us=total_us("latency_us"),
        families=sorted(families.values(), key=lambda row: -row["time_us"]),
        critical_path=path,
        bound_by=bounds or None,
        relieved_us=relieved_us or None,
        straggler=None,
    )
