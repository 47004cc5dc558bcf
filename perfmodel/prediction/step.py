"""The period of a step, and of a deployment with its kinds of steps: ranks, evaluations, memory.

Deployments have steps in common: each is made, and predicted, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any

from perfmodel.base.answers import OWN_MODELS
from perfmodel.designs.deployment import Deployment, Phase
from perfmodel.designs.layouts.default import Shortage, deployment_of
from perfmodel.embedding import Pipeline, Placement
from perfmodel.errors import DoesNotFit, Note
from perfmodel.hardware import Cluster, Device, Part, cluster, load, node_of
from perfmodel.lowering.lower import CPU
from perfmodel.ops.edits.named import NamedEdit
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.result import longer, retimed
from perfmodel.prediction.running_cost import unlimited
from perfmodel.prediction.scheduled import HostCosts, ScheduledSteps, costs_of
from perfmodel.prediction.shapes import predict_shapes, scheduled_ranks, with_edits
from perfmodel.prediction.types import DEVICE_WORK, PathPiece, Result
from perfmodel.timeline.steady import Recurrence
from perfmodel.workload import Workload
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.memory_tiers import (
    TierUse,
    driver_bytes,
    lacking,
    memory_use,
    require_tiers,
    tier_use,
    with_activations,
)
from perfmodel.workload.settings import IMPLEMENTATIONS
from perfmodel.workload.sharding import ROUND_ROBIN
from perfmodel.workload.step import (
    TIERED,
    RankClass,
    cached_op_graph,
    data_edges,
    deciding_classes,
    rank_classes,
)

EVALUATION, SWITCH = "evaluation", "switch"
FP32_BYTES = 4


def cluster_of(given: str | Path | Part, nodes: int | None) -> Cluster:
    """The cluster that `nodes` of what is `given` make; of a device by itself, one rank in each."""
    part = given if isinstance(given, Part) else load(given)
    if isinstance(part, Device):
        part = replace(node_of(part), gpus=1)
    return cluster(part, nodes)


def name_of(machine: Cluster) -> str:
    """What people call it: `2 x dgx-h100`."""
    return machine.name if machine.nodes == 1 else f"{machine.nodes} x {machine.name}"


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
    models: str = field(default_factory=OWN_MODELS.get)
    """Which of a user's models, or models by name, time it."""

    @property
    def linked(self) -> int:
        """Ranks of a group that the software takes as joined by links."""
        machine = self.machine
        software = IMPLEMENTATIONS[self.workload.implementation.name]
        if self.placement is None and software.groups_by_node:
            return min(machine.node.gpus, machine.linked_gpus)
        return machine.linked_gpus

    @property
    def every_class(self) -> list[RankClass]:
        where = (self.machine.gpus, self.linked, self.placement, self.batch)
        return rank_classes(self.workload, *where)

    def classes(self, *, every_rank: bool) -> list[RankClass]:
        averages = self.pipeline is not None and self.pipeline.averages_copies
        works = ("held_rows_bytes",) * averages
        return self.every_class if every_rank else deciding_classes(self.every_class, *works)

    def fuller(self, edits: Sequence[NamedEdit]) -> list[OpGraph]:
        """What ranks run that hold more than those that stand for all, under `edits`, for their
        memory alone. Of a placement, its tiers say that."""
        if self.placement is not None:
            return []
        held = attrgetter("held_rows_bytes")
        full, shown = max(self.every_class, key=held), self.classes(every_rank=False)
        graphs = [self.graph(full.ranks[0])] if held(full) > max(map(held, shown)) else []
        return with_edits(graphs, edits, must_change=False)[0]

    def graph(self, rank: int) -> OpGraph:
        machine = self.machine
        # Of its node's drives: as many ranks like it would ask for what all of the node do.
        asked = {at: it.beside for it in self.every_class for at in it.ranks}
        gpus = machine.node.gpus
        of_node = range(rank - rank % gpus, rank - rank % gpus + gpus)
        together = sum(asked[at % len(asked)] for at in of_node)
        return cached_op_graph(
            self.workload,
            self.batch,
            ranks=machine.gpus,
            rank=rank,
            target=machine.node.device.target,
            train=self.train,
            linked=self.linked,
            placement=self.placement,
            pipeline=self.pipeline,
            sharers=min(together / asked[rank], gpus) if asked[rank] else 0.0,
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
        return with_edits(graphs, edits, must_change=must_change)


STEPS_KNOWN = 128
"""Steps that are kept, as many as a comparison of all designs has; many have steps in common."""


@lru_cache(maxsize=STEPS_KNOWN)
def fits(step: Step) -> bool:
    """Whether memory holds it on every rank, in the workload's own software."""
    device = step.machine.node.device
    fullest = deciding_classes(step.every_class, "held_rows_bytes")
    graphs = (step.graph(each.ranks[0]) for each in fullest)
    uses = (memory_use(graph, in_host_memory=device.target == CPU) for graph in graphs)
    most = max(use.total_bytes for use in uses if use)  # recorded ops know their storages
    return most + driver_bytes(device) <= device.hbm_bytes


@lru_cache(maxsize=STEPS_KNOWN)
def _alone(
    step: Step, costs: HostCosts | None, edits: tuple[NamedEdit, ...], every_rank: bool
) -> tuple[list[OpGraph], list[str], ScheduledSteps]:
    """Graphs, what edits do not do, and the step without contention."""
    graphs, undone = step.graphs(edits, every_rank=every_rank)
    return graphs, undone, scheduled_ranks(graphs, step.machine, costs, repeats=True)


@lru_cache(maxsize=STEPS_KNOWN)
def _least_us(step: Step, costs: HostCosts | None) -> float:
    """The period of a step without evaluations and contention."""
    graph = _alone(step, costs, (), False)[2].timeline.graph
    return Recurrence.of(graph).period_us(graph.nodes_.duration_us)


@lru_cache(maxsize=STEPS_KNOWN)
def step_period(
    step: Step, costs: HostCosts | None, edits: tuple[NamedEdit, ...], every_rank: bool
) -> Result:
    """The period of a step with its share of evaluations; with a placement, `memory` has `tiers`:
    what a node needs of each. Raises `WorkloadError` for what does not fit into one of them."""
    tiers, machine = step.tiers(), step.machine
    graphs, undone, alone = _alone(step, costs, edits, every_rank)
    fuller = [] if every_rank else step.fuller(edits)
    about: dict[str, Any] = {"name": name_of(step.machine), "costs": costs, "must_fit": True}
    result = predict_shapes(graphs, machine, alone=alone, fuller=fuller, **about)
    notes, shown = [*undone, *result.notes], step.classes(every_rank=every_rank)
    if every_rank:
        notes += [Note(f"rank {each.ranks[0]} stands for {len(each.ranks)}") for each in shown]
    elif machine.gpus > 1:
        rank, *others = (each.ranks[0] for each in shown)
        notes.append(Note(f"simulated: rank {rank} of {machine.gpus} (most lookups), as the worst"))
        notes += [Note(f"simulated as well: rank {it} (most traffic)") for it in others]
    evaluation = step.workload.evaluation
    share = evaluation.forward_passes_per_step if step.train else 0.0
    if share:
        samples = step.batch * evaluation.batch_factor
        forward = replace(step, batch=samples, train=False)
        graphs, _ = forward.graphs(edits, every_rank=every_rank, must_change=False)
        alone = scheduled_ranks(graphs, machine, costs, repeats=True)
        once = predict_shapes(graphs, machine, alone=alone, **about)
        evaluation_us = share * once.step_us
        result = longer(result, evaluation_us, EVALUATION)
        notes.append(f"evaluation included: {evaluation_us:.1f} us per training batch")
    result = replace(result, notes=tuple(notes))
    if not tiers:
        return result
    use = dict(result.memory or {})
    rest = sum(use.get(f"{kind}_bytes", 0.0) for kind in ("resident", "temporary"))
    tiers = with_activations(tiers, rest)
    require_tiers(tiers)
    use.pop("rank", None)  # of its tables, the fullest rank is another
    held_bytes = tiers[0].tables_bytes + tiers[0].caches_bytes
    beside = rest + use.get("driver_bytes", 0.0)
    more = held_bytes + beside - use.get("total_bytes", 0.0)  # than its ops tell
    whole = {
        f"{key}_bytes": use.get(f"{key}_bytes", 0.0) + more for key in ("total", "low", "high")
    }
    use |= {"tables_bytes": held_bytes, **whole, "fits": True}
    return replace(result, memory={**use, "tiers": [each.to_dict() for each in tiers]})


def in_designs_software(workload: Workload) -> bool:
    """Whether the software that designs edit is the workload's own where nothing is edited."""
    return workload.implementation.name in ("torchrec", TIERED) or workload.sequence.layers > 0


def placed(case: Deployment) -> Deployment:
    """`case`, which is in its workload's own software, where memory holds it, else the workload as
    it is deployed there. Raises `WorkloadError` where no layout fits, by how much, and what would
    do."""
    ((_, step),) = steps_of(case)
    if fits(step):
        return case
    deployment = deployment_of(case.workload, case.machine, case.batch, train=case.train)
    if not deployment.fits:
        raise DoesNotFit(Shortage(deployment))
    if in_designs_software(case.workload):
        return deployment
    software = case.workload.implementation.name
    if software in ROUND_ROBIN:  # another layout would be another program's
        full = max(step.classes(every_rank=True), key=attrgetter("held_rows_bytes")).ranks[0]
        device = case.machine.node.device
        use = memory_use(step.graph(full), in_host_memory=device.target == CPU)
        assert use is not None  # recorded ops know their storages
        short = lacking(use, device, full)
        raise DoesNotFit(f'{short}; what would do: implementation.name "torchrec"')
    note = f"implementation.name {software!r} does not fit: TorchRec, as for designs, in its place"
    return replace(deployment, notes=(*deployment.notes, note))


def steps_of(deployment: Deployment) -> list[tuple[Phase, Step]]:
    """The kinds of steps of a deployment: one, or its phases."""
    case = deployment
    about = (case.workload, case.machine, case.batch, case.train)
    phases = case.phases or (Phase("", 1.0, case.placement, case.pipeline),)
    if case.in_own_software:
        return [(phases[0], Step(*about))]
    return [(phase, Step(*about, phase.placement, phase.pipeline)) for phase in phases]


def least_us(
    deployment: Deployment, overheads: str | None = None, *, enough_us: float = inf
) -> float:
    """What the steps of a deployment take at least: without evaluations and contention; of several
    kinds, the most frequent ones where that is `enough_us`. Raises as `deployment_period`."""
    deployment = replace(deployment, machine=unlimited(deployment.machine))
    costs = costs_of(deployment.machine, overheads, TIERED)
    steps = steps_of(deployment)
    total_us = moved_us([phase for phase, _ in steps], deployment.machine, costs)
    for phase, step in sorted(steps, key=lambda each: -each[0].steps_frac):
        if total_us < enough_us:
            step.tiers()
            total_us += phase.steps_frac * _least_us(step, costs)
    return total_us


def deployment_period(
    deployment: Deployment,
    costs: HostCosts | None,
    edits: tuple[NamedEdit, ...],
    every_rank: bool,
    machine: Cluster,
) -> Result:
    """The period of a deployment's steps, on `machine` in the place of its own: of one kind, or of
    its phases by their shares. Raises what `step_period` raises."""
    deployment = replace(deployment, machine=machine)
    phases, steps = zip(*steps_of(deployment), strict=True)
    results = [step_period(step, costs, edits, every_rank) for step in steps]
    notes = [note for result in results for note in result.notes]
    result = results[0]
    if len(phases) > 1:
        switch_us = moved_us(phases, deployment.machine, costs)
        result = weighted_result(results, phases, switch_us)
    return replace(result, notes=(*deployment.notes, *notes))


def moved_us(phases: Sequence[Phase], machine: Cluster, costs: HostCosts | None) -> float:
    """What moves between `phases`, per step: rows to the device, and back, one after the other;
    nothing else runs meanwhile."""
    total_us = 0.0
    for phase in phases:
        r = Recorder("cuda")
        moved = ((phase.to_device_bytes, CPU, r.place), (phase.to_host_bytes, r.place, CPU))
        for size, here, there in moved:
            if size:
                r.to_device(r.tensor((round(size / FP32_BYTES),), place=here), there)
        if ops := r.ops():
            graph = OpGraph(ops, data_edges(ops, r.views), source=SWITCH)
            result = predict_shapes([graph], machine, name=SWITCH, costs=costs)
            total_us += phase.steps_frac / phase.run_steps * result.step_us
    return total_us


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
        return sum(share * us for share, us in zip(shares, values, strict=True))

    taken = [share * result.step_us for share, result in zip(shares, results, strict=True)]
    main, step_us = results[taken.index(max(taken))], sum(taken)
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
    path, begun_us = list[PathPiece](), 0.0
    for phase, us in zip(phases, taken, strict=True):
        path.append(PathPiece(phase.name, "phase", begun_us, us))
        begun_us += us
    bounds = summed(result.bound_by or {} for result in results)
    if switch_us:
        bounds[SWITCH] = switch_us
    work: dict[str, Any] = dict(
        summed({name: getattr(each.rank, name) for name in DEVICE_WORK} for each in results)
    )
    latency_us = total_us("latency_us")
    whole = replace(
        main,
        ranks=[replace(main.rank, **work)],
        slowest=0,
        families=sorted(families, key=lambda row: -row["time_us"]),
        critical_path=path,
        bound_by=bounds or None,
        relieved_us=relieved_us,
        waiting=None,
        latency_us=None if latency_us is None else latency_us + switch_us,
        **{name: total_us(name) for name in ("low_us", "high_us", "draws_us")},
    )
    return longer(retimed(whole, lambda _: step_us), switch_us, SWITCH)
