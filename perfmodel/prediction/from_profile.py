"""Mode `model` for a trace: its ops' shapes, and what else its profile tells: kernels that no shape
tells, host time that no operator stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import Note, UsageError
from perfmodel.hardware import Cluster, Device
from perfmodel.hardware.parts import Target
from perfmodel.lowering import lower
from perfmodel.lowering.host import Profile
from perfmodel.lowering.host.measure import measure
from perfmodel.lowering.lower import CPU
from perfmodel.lowering.observed import (
    HostTimes,
    measured_stretches,
    unexplained_waits,
    with_placement,
    with_streams,
)
from perfmodel.lowering.piece import OF_PROFILE
from perfmodel.lowering.recorded import Recorded, with_recorded, with_waits
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.families import CLASS_OF_FAMILY
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.prediction.result import recorded_figures
from perfmodel.prediction.scheduled import (
    KNOWN_SOFTWARE,
    UNKNOWN_SOFTWARE,
    HostCosts,
    costs_of,
    host_ratio,
)
from perfmodel.prediction.shapes import predict_shapes, too_large, with_reads
from perfmodel.prediction.transferred import HOST_SPREAD, RATIO_SPREAD, transfer_ratio
from perfmodel.prediction.types import Result
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.graph.build import build_rank
from perfmodel.timeline.graph.kinds import Cause
from perfmodel.timeline.schedule import measured, ranks_of, steady_steps
from perfmodel.trace import Trace

MAX_LAUNCHERS = 3
"""How many launchers of recorded kernels a warning names."""
MIN_NOTED_US = 1.0
"""Host time per step below this is not worth a warning."""


@dataclass(frozen=True)
class ProfileData:
    """The ranks' ops with what was recorded beside them, and the host's measured time."""

    trace: Trace
    own: Cluster | None
    """The machine that it was recorded on, where the trace names its GPU."""
    graphs: tuple[OpGraph, ...]
    recorded: dict[int, Recorded]
    """By rank; none of a rank without device work."""
    times: dict[int, HostTimes]
    """By rank, of all of the main thread's gaps."""
    waits_us: dict[int, float]
    """By rank, the mean per step of idle time that nothing explains."""

    def stays_on(self, machine: Cluster) -> bool:
        """Whether `machine` has the device of the trace."""
        return self.own is not None and self.own.node.device == machine.node.device

    def host_ratio(self, machine: Cluster) -> tuple[float, str]:
        """How much longer the host of `machine` takes than the trace's own, and that in words."""
        if self.own is None:
            return 1.0, ", whose host is not known, so not scaled"
        own, host = self.own.node.host, machine.node.host
        ratio = 1.0 if self.stays_on(machine) else host_ratio(own, host)
        if ratio == 1.0:
            return 1.0, ""
        return ratio, f", times {ratio:.2f} from {own.name} (assumed) to {host.name}"


def profile_data(trace: Trace, own: Cluster | None) -> ProfileData:
    """The ranks' op graphs with what their profiles tell: where tensors lay, streams, the kernels
    that no rule stands for on `own`, its machine. Raises `TraceError` for a rank without shapes."""
    timed = trace.recorded
    device = None if own is None else own.node.device
    target: Target = "cuda" if device is None or device.target == CPU else device.target
    graphs, recorded, times, waits_us = [], {}, {}, {}
    for graph in op_graph(trace):
        if graph.rank in timed:
            rank, links = timed[graph.rank]
            truth = build_rank(rank, links)
            times[graph.rank] = HostTimes(measured_stretches(rank, links, truth))
            graph = with_placement(graph, rank, links)
            if len(links.device_rows):
                data = with_recorded(lower(graph, target), rank, links, truth)
                recorded[graph.rank], graph = data, data.graph
            graph = with_streams(graph, rank, links)
            waits = unexplained_waits(truth)
            waits_us[graph.rank] = sum(waits.values()) / max(len(links.steps), 1)
            graph = with_waits(graph, rank, links, waits)
        graphs.append(graph)
    return ProfileData(trace, own, tuple(graphs), recorded, times, waits_us)


def recorded_kernels_on(
    profile: ProfileData, graphs: Sequence[OpGraph], machine: Cluster
) -> tuple[list[OpGraph], list[str]]:
    """`graphs` with their recorded kernels as on `machine`, and what to say of them: their share,
    what launched most of them, and waits that nothing explains."""
    on_cpu, notes = machine.node.device.target == CPU, list[str]()
    waited_us = max(profile.waits_us.values(), default=0.0)
    if waited_us >= MIN_NOTED_US:
        notes.append(
            f"{waited_us / 1e3:.2f} ms per step in which the device waited for what the trace does "
            f"not tell: {'missing' if on_cpu else 'as long as recorded'}"
        )
    total, by = 0.0, Counter[str]()
    for each in profile.recorded.values():
        total += each.total_us
        by.update(each.by_launcher_us)
    if total and by:
        most = by.most_common(MAX_LAUNCHERS)
        told = ", ".join(f"{name or 'not recorded'} {100 * us / total:.1f} %" for name, us in most)
        share = f"{100 * sum(by.values()) / total:.1f} % of the trace's device time"
        notes.append(
            f"{share} is missing: kernels that no operator with shapes launched ({told})"
            if on_cpu
            else f"{share} is in kernels that no operator with shapes and a rule stands for "
            f"({told}): they take as long as recorded, on another device by their class's ratio"
        )
    kept = any(op.name.startswith(OF_PROFILE) for graph in graphs for op in graph.ops)
    if profile.stays_on(machine) or not kept or on_cpu:
        return list(graphs), notes
    if profile.own is None:
        return list(graphs), [*notes, "recorded kernels: as they are, their GPU is not known"]
    devices = profile.own.node.device, machine.node.device
    return [_scaled(graph, *devices) for graph in graphs], notes


def _scaled(graph: OpGraph, source: Device, target: Device) -> OpGraph:
    """`graph` with its recorded kernels as on `target`, by the ratios of their classes."""
    at = [index for index, op in enumerate(graph.ops) if op.name.startswith(OF_PROFILE)]
    names = [graph.ops[index].name.removeprefix(OF_PROFILE) for index in at]
    taken_us = [float(graph.ops[index].attributes["recorded_us"]) for index in at]
    families, dtypes = families_of_kernels(names), dtypes_of_kernels(names)
    ratios = transfer_ratio(families, dtypes, source, target, duration_us=taken_us)
    ops = list(graph.ops)
    for index, family, ratio in zip(at, families, ratios.tolist(), strict=True):
        about = {"ratio": repr(ratio), "spread": repr(RATIO_SPREAD[CLASS_OF_FAMILY[family]])}
        ops[index] = replace(ops[index], attributes={**ops[index].attributes, **about})
    return replace(graph, ops=tuple(ops))


def host_times(
    profile: ProfileData, machine: Cluster, costs: HostCosts | None, batch_ratio: float
) -> tuple[dict[int, HostTimes], list[str]]:
    """Per rank, the main thread's measured time between operators, by the hosts' speed, and data
    loading, by the batch too; and what to say of it. `costs` time the operators; a CPU's models
    have no place for either."""
    if costs is None:
        loading = max((t.step_us(Cause.DATA_LOADING) for t in profile.times.values()), default=0.0)
        said = f"{loading / 1e3:.2f} ms of data loading per step are missing"
        return {}, [said] if loading >= MIN_NOTED_US else []
    ratio, how = profile.host_ratio(machine)
    scaled = {
        rank: replace(times.with_loading(batch_ratio), ratio=ratio)
        for rank, times in profile.times.items()
    }
    longest = max(scaled.values(), key=_taken_us, default=None)
    if longest is None or _taken_us(longest) < MIN_NOTED_US:
        return scaled, []
    loading, gaps = (longest.step_us(cause) / 1e3 for cause in (Cause.DATA_LOADING, Cause.HOST_T1))
    note = (
        f"host time from the trace{how}: {loading:.2f} ms of data loading and {gaps:.2f} ms "
        "between operators, per step"
    )
    return scaled, [note]


def _taken_us(times: HostTimes) -> float:
    return times.step_us(Cause.DATA_LOADING) + times.step_us(Cause.HOST_T1)


def shapes_on(
    profile: ProfileData,
    graphs: Sequence[OpGraph],
    machine: Cluster,
    *,
    nodes: int | None,
    overheads: str | None,
    batch_ratio: float = 1.0,
) -> Result:
    """`graphs`, those of `profile` or edits of them, on `machine`, of so many `nodes` if asked for;
    host costs are the trace's own, by the speed of the hosts, where it has any, else a profile's.
    Raises `UsageError` for edits that need more devices than there are."""
    ranks, placed = max(graph.world_size for graph in graphs), list[str]()
    holds = f"{ranks} ranks do not fit: it has {machine.gpus} devices"
    if ranks > machine.gpus and ranks > max(graph.world_size for graph in profile.graphs):
        raise UsageError(f"{machine.name}: {holds}; ask for more --nodes")
    if ranks > machine.gpus > 1:
        placed.append(f"{holds}; its collectives are those of {machine.gpus}")
    filled = -(-ranks // machine.node.gpus)
    if nodes is not None and filled < nodes:
        text = f"{ranks} ranks fill {filled} of {nodes} nodes"
        placed.append(f"{text}: --edit ranks=COUNT changes how many")

    costs = costs_of(machine, overheads)
    if costs is not None and overheads is None:
        costs = replace(costs, spread=UNKNOWN_SOFTWARE)
        if profile.recorded:
            costs = own_costs(profile, machine, costs)
    moved, lines = recorded_kernels_on(profile, graphs, machine)
    times, host_lines = host_times(profile, machine, costs, batch_ratio)
    result = predict_shapes(
        moved,
        machine,
        name=machine.name if nodes is None else f"{nodes} x {machine.name}",
        costs=costs,
        times=times,
    )
    rank, coverage = result.rank.rank, dict(result.coverage)
    if (recorded := profile.recorded.get(rank)) is not None:
        coverage["modelled_frac"] = round(recorded.modelled_frac, 6)
        coverage["fallback_frac"] = round(1 - recorded.modelled_frac, 6)
        coverage["recorded_frac"] = round(recorded.recorded_frac, 6)
    taken_us = _taken_us(times[rank]) if rank in times else 0.0
    coverage["host_from_trace_us"] = round(taken_us, 4)
    coverage["waits_from_trace_us"] = round(profile.waits_us.get(rank, 0.0), 4)
    notes = (*host_lines, *lines, *result.notes)
    result = with_reads(replace(result, coverage=coverage, notes=notes), machine, costs)
    return replace(result, notes=(*placed, *too_large(result), *result.notes))


def own_costs(profile: ProfileData, machine: Cluster, costs: HostCosts) -> HostCosts:
    """The trace's own host costs on `machine`, rank by rank; what it has none of by the usual
    `costs` there."""
    samples = {rank: measure(*recorded) for rank, recorded in profile.trace.recorded.items()}
    ratio, how = profile.host_ratio(machine)
    usual = costs.profile
    return HostCosts(
        Profile.from_samples(*samples.values()).completed(usual),
        ratio,
        Note(f"host overheads: the trace's own, per operator{how}"),
        {rank: Profile.from_samples(own).completed(usual) for rank, own in samples.items()},
        spread=KNOWN_SOFTWARE if ratio == 1.0 else (1 / HOST_SPREAD, HOST_SPREAD),
    )


def with_measured(result: Result, trace: Trace) -> Result:
    """The trace's own figures beside the prediction on its own machine."""
    true = measured(build_graph(trace))
    of_rank, steady = true.graph.marks.rank, steady_steps(true)
    known = {
        rank: recorded_figures(true, rank, np.flatnonzero(of_rank == rank)[steady])
        for rank in ranks_of(true.graph)
    }
    ranks = [replace(each, measured=known.get(each.rank)) for each in result.ranks]
    return replace(result, ranks=ranks)
