"""Mode `model`: op graphs lowered, timed and scheduled; the period of a step that repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from types import MappingProxyType
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.cost.contract import parts_of
from perfmodel.cost.cpu.drift import remarks
from perfmodel.errors import SharedNote, UsageError, prefixed
from perfmodel.hardware import Cluster
from perfmodel.hardware.catalogue import equal_nodes
from perfmodel.hardware.generations import unknown_generations
from perfmodel.hardware.originals import slower_multiprocessors
from perfmodel.hardware.reads import figures_used
from perfmodel.lowering.build import COPY_STREAM, DISTRIBUTION_STREAM
from perfmodel.lowering.context import self_contained
from perfmodel.lowering.draft import LAG_US
from perfmodel.lowering.measured_host import HostTimes
from perfmodel.lowering.repeat import LOADER
from perfmodel.lowering.walk import CPU
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.families import family_of_kernel
from perfmodel.ops.graph import OpGraph, tensors_in
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import RECORDED, UNKNOWN
from perfmodel.prediction.contention_load import modelled_load, rescheduled, with_contention
from perfmodel.prediction.intervals import drawn_step
from perfmodel.prediction.kernel_table import kernel_table
from perfmodel.prediction.reasons import ModelExplainer, host_figures
from perfmodel.prediction.result import summarise
from perfmodel.prediction.scheduled import (
    KNOWN_SOFTWARE,
    HostCosts,
    ScheduledSteps,
    host_costs,
    schedule_jointly,
    schedule_shapes,
)
from perfmodel.prediction.types import Prediction, Result
from perfmodel.timeline.contention import Load, contended_schedule, lost_us
from perfmodel.timeline.graph.kinds import STREAM_KINDS, EdgeKind, NodeKind
from perfmodel.timeline.period import DeviceLags
from perfmodel.timeline.schedule import Timeline, measured
from perfmodel.timeline.steady import STEPS_AHEAD, Recurrence, SteadyState
from perfmodel.timeline.steps import steady_steps
from perfmodel.workload.memory import MemoryUse, memory_use, require_fit

HOST_NAME = "host"
COMPUTE, BUS = "compute", "bus"
BUS_FAMILIES = ("transfer", "host_bus")
"""What a device does at the rate of its bus: copies, and kernels that read rows of host memory."""
RESOURCE_NAMES = {
    COMPUTE: COMPUTE,
    "comm": "network",
    COPY_STREAM: "input copies",
    DISTRIBUTION_STREAM: "input distribution",
    LOADER: "data loading",
}
"""What people call streams, and the loader's thread; other threads are the host."""


GRAPHS, NO_HOST = "graph launches", "no host"
"""In addition to half of the host's work: the step in CUDA graphs, and without the host."""
HALF = 0.5
"""What is left of a resource's work where it is relieved."""
NOTABLE_FRAC = 0.1
"""Of a period: what takes less is not relieved, unless it takes most."""


def steady_period(
    steps: ScheduledSteps, machine: Cluster, load: Load | None
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
    built = replace(steps.built, graph=window.graph, piece=np.tile(steps.built.piece, copies))
    names = np.array(resource_names(steps), object)
    bounds = last[0].by_resource(names.tolist())
    largest = next(iter(bounds), HOST_NAME)
    relieved_us = {
        name: step.period_us(np.where(names == name, HALF, 1.0) * taken_us)
        for name, us in bounds.items()
        if name == largest or us > NOTABLE_FRAC * last[0].period_us
    }
    if largest == HOST_NAME and machine.node.device.target != CPU:
        captured = np.ones(len(graph))
        captured[steps.built.spared] = 0.0
        relieved_us[NO_HOST] = step.period_us(np.where(names == HOST_NAME, 0.0, taken_us))
        follows = np.isin(step.edges.kind, STREAM_KINDS)
        follows &= np.isin(step.edges.target, steps.built.close)
        lag_us = np.where(follows, LAG_US[EdgeKind.STREAM_GRAPH], step.edges.lag_us)
        in_graphs = replace(step, edges=replace(step.edges, lag_us=lag_us))
        relieved_us[GRAPHS] = in_graphs.period_us(captured * taken_us)
    return replace(one, timeline=window, built=built, copies=copies), bounds, relieved_us


def resource_names(steps: ScheduledSteps) -> list[str]:
    """What people call the resource of each node, the bus where a device waits for that."""
    nodes = steps.timeline.graph.nodes_
    beside = set(nodes.resource[nodes.kind == NodeKind.OFFLOAD].tolist())
    streams = [resource.rpartition("/")[2] for resource in steps.timeline.graph.resources]
    offloads = {streams[row] for row in beside}
    names = [
        stream.replace("_", " ")
        if stream in offloads
        else RESOURCE_NAMES.get(stream.partition(" ")[0], HOST_NAME)
        for stream in streams
    ]
    on_bus = [family in BUS_FAMILIES for family in steps.families]
    return [
        BUS if names[at] == COMPUTE and piece >= 0 and on_bus[piece] else names[at]
        for at, piece in zip(nodes.resource.tolist(), steps.built.piece.tolist(), strict=True)
    ]


MODEL = "model"
Noted = tuple[Result, list[str]]
"""A result, and what a user should know of it."""


def costs_of(machine: Cluster, costs_on: Callable[[Cluster], HostCosts]) -> HostCosts | None:
    """The costs of the host of `machine`; None of a CPU, whose models count the host in."""
    return None if machine.node.device.target == CPU else costs_on(machine)


def with_reads(found: Noted, machine: Cluster, costs: HostCosts | None) -> Noted:
    """A prediction on `machine` with the figures that it uses, and notes of its hosts before."""
    result, notes = found
    hosts = (costs, *(each for _, each in costs.others)) if costs else ()
    explainer = result.explainer
    families = explainer.found.families if isinstance(explainer, ModelExplainer) else ()
    parts = {"device"}.union(*map(parts_of, families))
    of_hosts = host_figures(costs) if costs else ()
    reads = dict.fromkeys((*figures_used(machine, parts), *of_hosts))
    return replace(result, reads=tuple(reads)), [*(each.note for each in hosts), *notes]


def scheduled_ranks(
    graphs: Sequence[OpGraph],
    machine: Cluster,
    costs: HostCosts | None,
    *,
    tf32_matmul: bool = False,
    repeats: bool = False,
    loading_us: float = 0.0,
    times: Mapping[int, HostTimes] = MappingProxyType({}),
) -> ScheduledSteps:
    """The ops of `graphs`, one per rank, on `machine`, which meet at their collectives; without
    contention. Arguments as of `schedule_shapes`, `times` per rank. Raises `TraceError` where
    collectives never meet."""
    about: dict[str, Any] = {"tf32_matmul": tf32_matmul, "repeats": repeats}
    ranks = [
        schedule_shapes(
            graph, machine, costs, loading_us=loading_us, times=times.get(graph.rank), **about
        )
        for graph in graphs
    ]
    if len(ranks) == 1:
        return ranks[0]
    return schedule_jointly(ranks, [graph.source for graph in graphs])


def least_period_us(alone: ScheduledSteps) -> float:
    """What a step that repeats takes at least: without contention."""
    graph = alone.timeline.graph
    return Recurrence.of(graph).period_us(graph.nodes_.duration_us)


def predict_shapes(
    graphs: Sequence[OpGraph],
    machine: Cluster,
    *,
    name: str,
    costs: HostCosts | None,
    alone: ScheduledSteps | None = None,
    must_fit: bool = False,
    recorded: bool = False,
    times: Mapping[int, HostTimes] = MappingProxyType({}),
    fuller: Sequence[OpGraph] = (),
) -> Noted:
    """The step of `graphs` (one per rank) on `machine`, and what a user should know of it.

    `alone` is what `scheduled_ranks` makes of them; of a step that repeats, and of the `recorded`
    steps of a trace, the period is the prediction. Memory is the fullest rank's, of these and of
    `fuller` ones. Raises `WorkloadError` where it `must_fit` and does not.
    """
    alone = alone or scheduled_ranks(graphs, machine, costs, times=times)
    repeats = alone.timeline.graph.carried is not None
    load = modelled_load(alone, machine)
    steps = with_contention(alone, load) if load else alone
    bounds, relieved_us = None, None
    latency_us = float(np.max(steps.timeline.step_us)) if repeats else None
    if repeats:
        steps, bounds, relieved_us = steady_period(alone, machine, load)
    lags = None
    if recorded:
        lags = DeviceLags.of(steps.timeline, steady_steps(measured(steps.timeline.graph)))
    result = summarise(steps.timeline, hardware=name, mode=MODEL, lags=lags, compare=False)
    rank = result.rank.rank
    use, fullest = _fullest([*graphs, *fuller], machine)
    memory = None
    if use is not None:
        device = machine.seen_by(fullest).node.device
        memory = use.to_dict(device) | ({"rank": fullest} if machine.gpus > 1 else {})
        if must_fit:
            require_fit(use, device, fullest)
    spread = KNOWN_SOFTWARE if costs is None else costs.seen_by(rank).spread
    drawn = drawn_step(steps, rank, spread, lags.periods if lags else None)
    low_us, high_us = drawn.interval
    host_ratio = {at: each.ratio for at, each in times.items()}
    result = replace(
        result,
        ranks=[
            replace(each, steps=[replace(step, measured_host_frac=0.0) for step in each.steps])
            for each in result.ranks
        ],
        low_us=low_us,
        high_us=high_us,
        draws_us=drawn.draws_us,
        latency_us=latency_us,
        bound_by=bounds,
        relieved_us=relieved_us,
        families=_family_table(steps, rank),
        coverage=_coverage(steps, rank),
        memory=memory,
        kernels=kernel_table(steps, rank, machine.seen_by(rank).node.device),
        explainer=ModelExplainer(steps, machine, costs, host_ratio),
    )
    devices = [node.device for node, _ in machine.kinds]
    about = (
        unknown_generations(devices),
        *(say(device) for say in (remarks, slower_multiprocessors) for device in devices),
    )
    return result, [*steps.notes, *chain.from_iterable(about)]


def _fullest(graphs: Sequence[OpGraph], machine: Cluster) -> tuple[MemoryUse | None, int]:
    """What the rank with least room left needs, if that can be told, and which it is."""
    on_host = machine.node.device.target == CPU
    needs = [(memory_use(each, in_host_memory=on_host), each.rank) for each in graphs]

    def beyond_bytes(need: tuple[MemoryUse | None, int]) -> float:
        use, rank = need
        return (use.total_bytes if use else 0.0) - machine.seen_by(rank).node.device.hbm_bytes

    return max(needs, key=beyond_bytes)


def too_large(result: Result) -> list[str]:
    """A note where its memory does not fit."""
    if result.memory is None or result.memory["fits"]:
        return []
    needed = result.memory["total_bytes"] / BYTES_PER_GB
    return [f"needs {needed:.1f} GB: more than its memory holds"]


def _family_table(scheduled: ScheduledSteps, rank: int) -> list[dict[str, Any]]:
    """Time and pieces of one rank per kernel family and step, largest first."""
    steps = int((scheduled.timeline.graph.marks.rank == rank).sum())
    own, taken = scheduled.pieces_of(rank), scheduled.durations.duration_us
    labels = dict(zip(scheduled.built.piece.tolist(), scheduled.timeline.graph.labels, strict=True))
    rows: dict[str, dict[str, Any]] = {}
    for at in np.flatnonzero(own).tolist():
        op = scheduled.pieces[at].op
        name = family_of_kernel(labels[at]) if op == RECORDED else OPS[op].kernel_family
        row = rows.setdefault(name, {"family": name, "time_us": 0.0, "count": 0})
        row["time_us"] += float(taken[at])
        row["count"] += 1
    for row in rows.values():
        row |= {key: round(row[key] / steps, 4) for key in ("time_us", "count")}
    return sorted(rows.values(), key=lambda row: -row["time_us"])


def _coverage(steps: ScheduledSteps, rank: int) -> dict[str, float]:
    """Shares of the rank's predicted time: of rules and of the fallback, and of guessed sizes."""
    own = steps.pieces_of(rank)
    taken = steps.durations.duration_us * own
    total = float(taken.sum()) or 1.0
    unknown = np.array([piece.op == UNKNOWN for piece in steps.pieces], bool)
    guessed = np.array([piece.guessed for piece in steps.pieces], bool)
    fallback = float(taken[unknown].sum()) / total
    return {
        "kernels": len(steps.timeline.graph.device_span(rank)[1]) // steps.copies,
        "modelled_frac": round(1 - fallback, 6),
        "fallback_frac": round(fallback, 6),
        "no_shapes_frac": round(float(taken[guessed].sum()) / total, 6),
        "unexplained_frac": 0.0,
    }


NARROW = ("fp16", "bf16")
UNPROFILED_FRAC = 0.78
"""What the host takes without a profiler, over saved profiles, recorded under one. Source: the
geometric mean of hosts of ten GPUs of KernelBench, 0.16 to 1.42 (without any one 0.73 to 0.93)."""
DEVICE_SPREAD, HOST_SPREAD = (0.6, 1.81), (0.6, 3.2)
"""Factors of the prediction within which 90 % of 1,053 passes of KernelBench lie, where the device
takes all of the time and where the host does."""


def predict_passes(
    graph: OpGraph, machines: Sequence[Cluster], edits: Sequence[NamedEdit], profile: str | None
) -> Prediction:
    """One pass through an op graph on each machine, as events around a call of a module measure it:
    from an idle device to the end of its last kernel, without a profiler. `profile` times the host.

    Raises `UsageError` for a GPU without units for a type of 16 bits that the graph holds.
    """
    held = {t.dtype for op in graph.ops for t in (*op.tensors, *tensors_in(op.outputs))}
    for machine, dtype in product(machines, NARROW):
        device = equal_nodes(machine, "a pass").node.device
        has_units = device.target == CPU or getattr(device, f"{dtype}_tflop_per_s")
        if dtype in held and not has_units:
            raise UsageError(f"{device.name}: no units for {dtype}: cast the module")
    graphs, notes = apply_edits([self_contained(graph)], edits) if edits else ([graph], [])
    results = []
    for machine in machines:
        costs = costs_of(machine, partial(_unprofiled_costs, profile=profile))
        result, prediction = with_reads(_pass(graphs, machine, costs), machine, costs)
        results.append(result)
        own = [*prediction, *too_large(result)]
        notes += [prefixed(result.hardware, note) for note in own]
    source = {
        "trace": graph.source,
        "device": ", ".join(result.hardware for result in results),
        "operators": len(graph),
        "batch": None,
        "edits": [edit.text for edit in edits],
        "ranks": [graph.rank],
        "events": 0,
    }
    return Prediction(source, results, list(dict.fromkeys(notes)))


def _unprofiled_costs(machine: Cluster, profile: str | None) -> HostCosts:
    costs = host_costs(machine, overheads=profile)
    if costs.profile.provenance.unwatched:
        return costs
    note = SharedNote(f"{costs.note}; x {UNPROFILED_FRAC} without a profiler")
    return replace(costs, ratio=costs.ratio * UNPROFILED_FRAC, note=note)


def _pass(graphs: Sequence[OpGraph], machine: Cluster, costs: HostCosts | None) -> Noted:
    """One pass; a GPU's interval is at least as wide as measured passes of modules say."""
    result, notes = predict_shapes(graphs, machine, name=machine.name, costs=costs)
    if costs is None:
        return result, notes
    device_us = min(float(result.rank.gpu_active_us), result.step_us)
    parts = np.array([device_us, result.step_us - device_us])
    low_us, high_us = parts @ np.array([DEVICE_SPREAD, HOST_SPREAD])
    low_us = min(result.low_us or low_us, float(low_us))
    high_us = max(result.high_us or high_us, float(high_us))
    return replace(result, low_us=low_us, high_us=high_us, draws_us=None), notes
