"""Mode `model`: op graphs lowered, timed and scheduled; the period of a step that repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, distinct
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.cost.contract import parts_of
from perfmodel.cost.durations import uncalibrated
from perfmodel.errors import SharedNote, UsageError
from perfmodel.hardware import Cluster
from perfmodel.hardware.catalogue import unknown_generations
from perfmodel.hardware.schema import figures_used
from perfmodel.lowering.context import self_contained
from perfmodel.lowering.draft import COPY_STREAM, DISTRIBUTION_STREAM
from perfmodel.lowering.lower import CPU
from perfmodel.lowering.observed import HostTimes
from perfmodel.ops.edits.compiled import CALL
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.families import family_of_kernel
from perfmodel.ops.graph import OpGraph, tensors_in
from perfmodel.ops.read.module import COMPILED, EAGER, INTO_GRAPH
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.streaming import RECORDED, UNKNOWN
from perfmodel.prediction.contention import (
    Load,
    contended_schedule,
    lost_us,
    modelled_load,
    rescheduled,
    schedule_under,
)
from perfmodel.prediction.explain import ModelExplainer
from perfmodel.prediction.intervals import interval_of, model_draws
from perfmodel.prediction.result import KindsOfWork, family_rows, summarise
from perfmodel.prediction.running_cost import within_limit
from perfmodel.prediction.scheduled import (
    KNOWN_SOFTWARE,
    HostCosts,
    ScheduledSteps,
    costs_of,
    schedule_jointly,
    schedule_shapes,
)
from perfmodel.prediction.types import MODEL, Prediction, Result
from perfmodel.timeline.graph.kinds import NodeKind
from perfmodel.timeline.period import DeviceLags
from perfmodel.timeline.schedule import Timeline, measured, steady_steps
from perfmodel.timeline.steady import STEPS_AHEAD, Recurrence, SteadyState
from perfmodel.trace.columns import NONE
from perfmodel.workload.memory_tiers import memory_use, require_fit

HOST_NAME = "host"
COMPUTE, BUS = "compute", "bus"
BUS_FAMILIES = ("transfer", "host_bus")
"""What a device does at the rate of its bus: copies, and kernels that read rows of host memory."""
RESOURCE_NAMES = {
    COMPUTE: COMPUTE,
    "comm": "network",
    COPY_STREAM: "input copies",
    "stash": "copies to the host",
    DISTRIBUTION_STREAM: "input distribution",
}
"""What people call streams; threads are the host."""


HALF = 0.5
"""What is left of a resource's work where it is relieved."""
NOTABLE_FRAC = 0.1
"""Of a period: what takes less is not relieved, unless it takes most."""


def steady_period(
    steps: ScheduledSteps, load: Load | None
) -> tuple[ScheduledSteps, dict[str, float], dict[str, float]]:
    """One period of `steps`, whose graph carries edges to later steps, under `load`; what decides
    it, and what it would be with less of that."""
    graph = steps.timeline.graph
    step = Recurrence.of(graph)
    last: list[SteadyState] = []

    def run(duration_us: Floats) -> tuple[Timeline, Floats]:
        last[:] = [step.steady_state(duration_us)]
        window = last[0].window()
        if load is None:
            return window, np.zeros(len(graph))
        shown = slice(STEPS_AHEAD * len(graph), (STEPS_AHEAD + 1) * len(graph))
        lost = lost_us(window, load.tiled(len(window.graph) // len(graph)), shown)
        return window, lost[shown]

    window, taken_us = contended_schedule(run, graph.nodes_.duration_us)
    copies = len(window.graph) // len(graph)
    one = rescheduled(steps, steps.timeline, taken_us)
    piece = np.tile(steps.piece, copies)
    nodes, resources = graph.nodes_, graph.resources
    streams = [resource.rpartition("/")[2] for resource in resources]
    offloads = {streams[row] for row in nodes.resource[nodes.kind == NodeKind.OFFLOAD].tolist()}
    of_resource = [
        stream.replace("_", " ")
        if stream in offloads
        else RESOURCE_NAMES.get(stream.partition(" ")[0], HOST_NAME)
        for stream in streams
    ]
    names = np.array([of_resource[at] for at in nodes.resource.tolist()], object)
    # Of pieces that a device does at the rate of its bus, the bus.
    on_bus = np.array([*(family in BUS_FAMILIES for family in steps.families), False], bool)
    names[(names == COMPUTE) & on_bus[steps.piece]] = BUS
    bounds = last[0].by_resource(names.tolist())
    largest = next(iter(bounds), HOST_NAME)
    relieved_us = {
        name: step.period_us(np.where(names == name, HALF, 1.0) * taken_us)
        for name, us in bounds.items()
        if name == largest or us > NOTABLE_FRAC * last[0].period_us
    }
    return replace(one, timeline=window, piece=piece, copies=copies), bounds, relieved_us


def with_reads(result: Result, machine: Cluster, costs: HostCosts | None) -> Result:
    """A prediction on `machine` with the figures that it uses, and what times its hosts as the
    first of its notes."""
    explainer = result.explainer
    families = explainer.found.families if isinstance(explainer, ModelExplainer) else ()
    parts = {"device"}.union(*map(parts_of, families))
    figures, notes = figures_used(machine, parts), result.notes
    if costs is not None:
        figures, notes = (*figures, *costs.figures), (costs.note, *notes)
    return replace(result, reads=tuple(dict.fromkeys(figures)), notes=notes)


def scheduled_ranks(
    graphs: Sequence[OpGraph],
    machine: Cluster,
    costs: HostCosts | None,
    *,
    repeats: bool = False,
    times: Mapping[int, HostTimes] = MappingProxyType({}),
) -> ScheduledSteps:
    """The ops of `graphs`, one per rank, on `machine`, which meet at their collectives; without
    contention. Arguments as of `schedule_shapes`, `times` per rank. Raises `TraceError` where
    collectives never meet."""
    ranks = [
        schedule_shapes(each, machine, costs, repeats=repeats, times=times.get(each.rank))
        for each in graphs
    ]
    if len(ranks) == 1:
        return ranks[0]
    return schedule_jointly(ranks, [graph.source for graph in graphs])


def predict_shapes(
    graphs: Sequence[OpGraph],
    machine: Cluster,
    *,
    name: str,
    costs: HostCosts | None,
    alone: ScheduledSteps | None = None,
    must_fit: bool = False,
    times: Mapping[int, HostTimes] | None = None,
    fuller: Sequence[OpGraph] = (),
) -> Result:
    """The step of `graphs` (one per rank) on `machine`.

    `alone` is what `scheduled_ranks` makes of them; of a step that repeats, and of the recorded
    steps of a trace, which have `times` per rank, the period is the prediction. Memory is the
    fullest rank's, of these and of `fuller` ones. Raises `WorkloadError` where it `must_fit` and
    does not.
    """
    of_host = times or {}
    alone = alone or scheduled_ranks(graphs, machine, costs, times=of_host)
    load, graph = modelled_load(alone, machine), alone.timeline.graph
    timeline, taken_us = alone.timeline, graph.nodes_.duration_us
    if load is not None:
        timeline, taken_us = schedule_under(load, graph, taken_us)
    latency_us, bounds, relieved_us = None, None, None
    if graph.carried is not None:
        latency_us = float(np.max(timeline.step_us))
        steps, bounds, relieved_us = steady_period(alone, load)
    else:
        steps = alone if load is None else rescheduled(alone, timeline, taken_us)
    shown = steps.timeline
    lags = None if times is None else DeviceLags.of(shown, steady_steps(measured(shown.graph)))
    about: dict[str, Any] = {"compare": False, "kinds_of_work": partial(_kinds_of_work, steps)}
    result = summarise(shown, hardware=name, mode=MODEL, lags=lags, **about)
    device = machine.node.device
    on_host = device.target == CPU
    needs = [(memory_use(it, in_host_memory=on_host), it.rank) for it in (*graphs, *fuller)]
    fullest_of = max(needs, key=lambda need: need[0].total_bytes if need[0] else 0.0)
    (use, fullest), memory = fullest_of, None
    if use is not None:
        memory = use.to_dict(device) | ({"rank": fullest} if machine.gpus > 1 else {})
        if must_fit:
            require_fit(use, device, fullest)
    spread = KNOWN_SOFTWARE if costs is None else costs.spread
    draws_us = model_draws(result, steps, spread)
    low_us, high_us = interval_of(result.step_us, draws_us)
    return replace(
        result,
        low_us=low_us,
        high_us=high_us,
        draws_us=draws_us,
        latency_us=latency_us,
        bound_by=bounds,
        relieved_us=relieved_us,
        memory=memory,
        explainer=ModelExplainer(steps, machine, costs, {r: t.ratio for r, t in of_host.items()}),
        notes=(*steps.notes, *unknown_generations([device]), *uncalibrated(device)),
    )


def with_edits(
    graphs: Sequence[OpGraph], edits: Sequence[NamedEdit], *, must_change: bool = True
) -> tuple[list[OpGraph], list[str]]:
    """`graphs` under `edits`, in turn, and what of them could not be done (`apply_edits`)."""
    if not edits:
        return list(graphs), []
    return apply_edits(map(self_contained, graphs), edits, must_change=must_change)


def too_large(result: Result) -> tuple[str, ...]:
    """A note where its memory does not fit."""
    if result.memory is None or result.memory["fits"]:
        return ()
    needed = result.memory["total_bytes"] / BYTES_PER_GB
    return (f"needs {needed:.1f} GB: more than its memory holds",)


def _kinds_of_work(steps: ScheduledSteps, rank: int) -> KindsOfWork:
    """By the ops of one rank's pieces; of its predicted time the shares of rules, of the fallback,
    and of guessed sizes."""
    graph = steps.timeline.graph
    own = distinct(steps.piece[(graph.nodes_.rank == rank) & (steps.piece != NONE)])
    us, pieces = steps.durations.duration_us[own], [steps.pieces[at] for at in own.tolist()]
    labels = dict(zip(steps.piece.tolist(), graph.labels, strict=True))
    names = [
        family_of_kernel(labels[at]) if piece.op == RECORDED else OPS[piece.op].kernel_family
        for at, piece in zip(own.tolist(), pieces, strict=True)
    ]
    unknown, guessed = (
        round(float(us[np.array(those, bool)].sum() / (us.sum() or 1.0)), 6)
        for those in ([each.op == UNKNOWN for each in pieces], [each.guessed for each in pieces])
    )
    coverage = {
        "kernels": len(graph.device_span(rank)[1]) // steps.copies,
        "modelled_frac": round(1 - unknown, 6),
        "fallback_frac": unknown,
        "no_shapes_frac": guessed,
        "unexplained_frac": 0.0,
    }
    return family_rows(names, us, int((graph.marks.rank == rank).sum())), coverage


NARROW = ("fp16", "bf16")
UNPROFILED_FRAC = 0.78
"""What the host takes without a profiler, over saved profiles, recorded under one. Source: the
geometric mean of hosts of ten GPUs of KernelBench, 0.16 to 1.42 (without any one 0.73 to 0.93)."""
PASS_SPREAD = {EAGER: ((0.62, 1.49), (0.58, 2.65)), COMPILED: ((0.73, 1.47), (0.54, 1.62))}
"""Factors of a pass's device and host times that 1 of 16 passes lie below, and above: of those that
one of them decides, KernelBench (nine GPUs) and timm (RTX 3090 and 4090) weighed alike; 720 and 355
of the device, 112 and 214 of the host. The kernels' own intervals told nothing of which were off.
Source: `benchmarks/modules.py`, and timm's published times."""


def predict_passes(
    graph: OpGraph,
    machines: Sequence[Cluster],
    edits: Sequence[NamedEdit],
    profile: str | None,
    beside: Sequence[OpGraph] = (),
) -> Prediction:
    """One pass through an op graph on each machine, as events around a call of a module measure it:
    from an idle device to the end of its last kernel, without a profiler. `profile` times the host;
    `beside` are the graphs of other ranks, which it meets.

    GPUs without units for a type of 16 bits that the graph holds are left out; raises `UsageError`
    where none is left.
    """
    every, notes = with_edits([graph, *beside, *graph.others], edits)
    graphs, ops = every[: 1 + len(beside)], [op for each in every for op in each.ops]
    held = {t.dtype for op in ops for t in (*op.tensors, *tensors_in(op.outputs))}
    for dtype in filter(held.__contains__, NARROW):
        rate = attrgetter(f"node.device.{dtype}_tflop_per_s")
        able = [each for each in machines if each.node.device.target == CPU or rate(each)]
        lacking = ", ".join(each.name for each in machines if each not in able)
        why = f"{lacking}: no units for {dtype}: cast the module"
        if not able:
            raise UsageError(why)
        machines, notes = able, [*notes, *[f"left out {why}"] * bool(lacking)]
    results, how = [], COMPILED if graph.ops[0].name == CALL else EAGER
    for machine in machines:
        costs = costs_of(machine, profile)
        if costs is not None and not costs.profile.provenance.unwatched:
            note = SharedNote(f"{costs.note}; x {UNPROFILED_FRAC} without a profiler")
            costs = replace(costs, ratio=costs.ratio * UNPROFILED_FRAC, note=note)
        run = graphs
        if costs is None:  # on a CPU nothing is captured, nor copied to where a CUDA graph reads it
            run = [
                replace(each, ops=tuple(op for op in each.ops if INTO_GRAPH not in op.attributes))
                for each in graphs
            ]
        once = partial(predict_shapes, run, name=machine.name, costs=costs)
        result = with_reads(within_limit(machine, once), machine, costs)
        if costs is not None:  # what no model knows keeps its own interval
            active_us = min(float(result.rank.gpu_active_us), result.step_us)
            known_us = active_us * result.coverage["modelled_frac"]
            parts_us = known_us, result.step_us - active_us, active_us - known_us
            unknown = np.array([result.low_us, result.high_us], float) / (result.step_us or 1.0)
            low_us, high_us = np.transpose([*PASS_SPREAD[how], unknown]) @ parts_us
            result = replace(result, low_us=float(low_us), high_us=float(high_us), draws_us=None)
        results.append(replace(result, notes=(*result.notes, *too_large(result))))
    for other in graph.others:
        found = predict_passes(other, machines, edits, profile).results
        results = [_widened(*pair) for pair in zip(results, found, strict=True)]
    source = {
        "trace": graph.source,
        "device": ", ".join(result.hardware for result in results),
        "operators": sum(map(len, (graph, *beside))),
        "batch": None,
        "edits": [edit.text for edit in edits],
        "ranks": [each.rank for each in graphs],
        "events": 0,
    }
    return Prediction.of(source, results, notes)


def _widened(result: Result, other: Result) -> Result:
    """With an interval that covers another's too."""
    low_us = min(each.low_us or 0.0 for each in (result, other))
    high_us = max(each.high_us or 0.0 for each in (result, other))
    return replace(result, low_us=low_us, high_us=high_us, draws_us=None)
