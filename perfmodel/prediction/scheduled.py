"""Op graphs lowered to a machine, timed by models, scheduled; ranks meet at their collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from types import MappingProxyType

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.cost.collectives.calls import place_collectives
from perfmodel.cost.durations import Durations, durations_of
from perfmodel.errors import SharedNote
from perfmodel.hardware import Cluster, Host, host
from perfmodel.hardware.catalogue import PLAIN_HOST
from perfmodel.hardware.schema import FigureRead, figure_read
from perfmodel.lowering import lower
from perfmodel.lowering.build import execution_graph
from perfmodel.lowering.draft import CAUSES, serial_steps, with_carried_edges
from perfmodel.lowering.host import Profile, load_profile
from perfmodel.lowering.host.profile import CATALOGUE, EAGER, RECORDED_ON
from perfmodel.lowering.lower import CPU
from perfmodel.lowering.observed import HostTimes
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.rules.cpu import cpu_graph, cpu_steps, rows_of
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.timeline.graph.merge import merge
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace.columns import NONE
from perfmodel.workload.settings import IMPLEMENTATIONS

OWN_STATISTIC = "mean_us"
"""Of a program's own profile: only means add up to the host's time (trimmed by a tenth at each end,
the hosts of eight traces are 13 % short in the median, with means 3 %)."""
OTHERS_STATISTIC = "trimmed_mean_us"
"""Of a profile that the package brings: the stalls of other programs are not this one's."""

OVERHEAD_OF_CAUSE = {cause: kind for kind, cause in CAUSES.items()}
"""What a profile files host work under, by the cause that a graph gives it."""


KNOWN_SOFTWARE = (0.85, 1.15)
"""assumed: host time of a known program or software, on the host or by the speed of one."""
UNKNOWN_SOFTWARE = (0.9, 2.2)
"""Host time of an execution trace, which names no software. Source: steps of five traces with their
own host costs over those with the package's: 0.98, 1.1, 1.5, 1.7 and 2.7 (a slow profiler)."""


HOST_SPEED = "single_thread_ratio"


def host_ratio(source: Host, target: Host) -> float:
    """Time of host code on `target` divided by its time on `source`: single-thread speed only."""
    return source.single_thread_ratio / target.single_thread_ratio


@dataclass(frozen=True, eq=False)
class HostCosts:
    """What times the host's work, how much slower the target's host is, and that in words; steps
    that are known are known by the very same costs."""

    profile: Profile
    ratio: float
    note: str
    of_rank: Mapping[int, Profile] = field(default_factory=lambda: MappingProxyType({}))
    """Profiles of single ranks, which count before `profile`: one may be slower than the others."""
    statistic: str = OWN_STATISTIC
    name: str = "the trace's own"
    """Of the profile."""
    recorded_on: Host | None = None
    host: Host | None = None
    """The target's, where speeds of hosts make the ratio."""
    spread: tuple[float, float] = KNOWN_SOFTWARE
    """Within which factors of it 90 % of host times lie."""

    def profile_of(self, rank: int) -> Profile:
        return self.of_rank.get(rank, self.profile)

    @property
    def figures(self) -> tuple[FigureRead, ...]:
        """What was read of the profiles' hosts and of the target's."""
        hosts = [host for host in (self.recorded_on, self.host) if host is not None]
        return tuple(dict.fromkeys(figure_read(each, "host", HOST_SPEED) for each in hosts))


def costs_of(
    machine: Cluster, overheads: str | None = None, software: str | None = None
) -> HostCosts | None:
    """The saved profile `overheads`, or the package's for `software` (else PyTorch's operators) at
    the speed of `machine`'s hosts; None of a CPU, whose models count the host in. Raises
    `ModelError` where there is no such profile."""
    if machine.node.device.target == CPU:
        return None
    if overheads is None:
        return _shipped(EAGER if software is None else IMPLEMENTATIONS[software].overheads, machine)
    profile = load_profile(overheads)
    return HostCosts(profile, 1.0, f"host overheads: {overheads}, as they are", name=overheads)


@lru_cache(maxsize=256)
def _shipped(name: str, machine: Cluster) -> HostCosts:
    """Those of a profile of the package; of one machine the very same each time."""
    target, recorded = machine.node.host, host(RECORDED_ON.get(name, PLAIN_HOST))
    note = SharedNote(
        f"host overheads: {name}, scaled from {recorded.name} (assumed: its traces name no "
        "host) by single-thread speed"
    )
    return HostCosts(
        _profile(name),
        host_ratio(recorded, target),
        note,
        statistic=OTHERS_STATISTIC,
        name=name,
        recorded_on=recorded,
        host=target,
    )


@lru_cache
def _profile(name: str) -> Profile:
    return load_profile(CATALOGUE / f"{name}.json").of_repeated()


@dataclass(frozen=True)
class ScheduledSteps:
    """The steps of one rank, or of several that meet, on a machine."""

    timeline: Timeline
    piece: Ints
    """Per node of it, the piece behind it, or -1."""
    pieces: tuple[Piece, ...]
    durations: Durations
    notes: tuple[str, ...]
    rows: Rows
    """The pieces as their models were asked."""
    ops: tuple[str, ...]
    """Per piece, the operator that launches it; empty where it is not told."""
    copies: int = 1
    """How often each piece is in the timeline."""

    @property
    def families(self) -> list[str]:
        return [OPS[piece.op].family for piece in self.pieces]


def schedule_shapes(
    graph: OpGraph,
    machine: Cluster,
    costs: HostCosts | None,
    *,
    repeats: bool = False,
    times: HostTimes | None = None,
) -> ScheduledSteps:
    """The ops of one rank on `machine`; `costs` are not needed on a CPU.

    `repeats`: the graph carries edges to the steps that follow.
    `times` is what a trace's host was measured to take between operators.

    Raises `ModelError` for sizes that cannot be.
    """
    device = machine.node.device
    if device.target == CPU:
        steps = cpu_steps(graph)
        pieces = tuple(chain.from_iterable(steps))
        asked = [place_collectives(rows_of(step), machine) for step in steps]
        durations = Durations.joined([durations_of(own, machine) for own in asked])
        rows, ops = Rows.joined(asked), ("",) * len(pieces)
        built = cpu_graph(steps, durations.duration_us, graph.rank)
        built = serial_steps(built) if repeats else built
        notes = graph.notes
    else:
        lowered = lower(graph, device.target, device=device)
        pieces = lowered.pieces
        rows = place_collectives(lowered.rows, machine)
        ops = tuple(lowered.graph.ops[owner].name for owner in lowered.owner.tolist())
        durations = durations_of(rows, machine)
        assert costs is not None
        profile = costs.profile_of(graph.rank)
        built = execution_graph(
            lowered,
            durations.duration_us,
            profile,
            host_ratio=costs.ratio,
            statistic=costs.statistic,
            times=times,
        )
        built = with_carried_edges(built, lowered) if repeats else built
        notes = (*graph.notes, *lowered.notes, *built.notes)
    return ScheduledSteps(
        _as_measured(schedule(built.graph)), built.piece, pieces, durations, notes, rows, ops
    )


def schedule_jointly(ranks: Sequence[ScheduledSteps], wheres: Sequence[str]) -> ScheduledSteps:
    """Ranks that were scheduled alone, scheduled so that their collectives start together."""
    graph = merge(
        [rank.timeline.graph for rank in ranks], [0] * len(ranks), list(wheres), modelled=True
    )
    own, pieces, nodes = [], 0, 0
    for rank in ranks:
        own.append(np.where(rank.piece == NONE, NONE, rank.piece + pieces))
        pieces, nodes = pieces + len(rank.pieces), nodes + len(rank.piece)
    piece = np.append(np.concatenate(own), np.full(len(graph) - nodes, NONE))
    if graph.arrivals is not None:
        transfer, arrival = graph.arrivals.T
        piece[transfer], piece[arrival] = piece[arrival], NONE
    return ScheduledSteps(
        _as_measured(schedule(graph)),
        piece,
        tuple(each for rank in ranks for each in rank.pieces),
        Durations.joined([rank.durations for rank in ranks]),
        tuple(dict.fromkeys(note for rank in ranks for note in rank.notes)),
        Rows.joined([rank.rows for rank in ranks]),
        tuple(chain.from_iterable(rank.ops for rank in ranks)),
    )


def _as_measured(timeline: Timeline) -> Timeline:
    """The timeline on a graph whose nodes start when it says."""
    graph = timeline.graph
    nodes = replace(graph.nodes_, start_us=timeline.start_us)
    return Timeline(replace(graph, nodes_=nodes), timeline.start_us, timeline.end_us)
