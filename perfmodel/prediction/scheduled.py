"""Op graphs lowered to a machine, timed by models, scheduled; ranks meet at their collectives.

The kernels of a prediction from shapes, those of equal shapes together: work, bytes and time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats, Mask
from perfmodel.cost.durations import Durations, durations_of
from perfmodel.errors import SharedNote
from perfmodel.hardware import Cluster, Device, Host, host
from perfmodel.hardware.catalogue import PLAIN_HOST
from perfmodel.lowering import lower
from perfmodel.lowering.build import execution_graph
from perfmodel.lowering.build_cpu import cpu_graph, cpu_steps, rows_of
from perfmodel.lowering.draft import CAUSES, Built
from perfmodel.lowering.host import Profile, load_profile
from perfmodel.lowering.host.profile import CATALOGUE, EAGER, RECORDED_ON
from perfmodel.lowering.observed import HostTimes
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.repeat import behind_loader, serial_steps, with_carried_edges
from perfmodel.lowering.walk import CPU
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.spec import OPS
from perfmodel.timeline.graph.merge import merge
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace.columns import NONE
from perfmodel.workload.settings import IMPLEMENTATIONS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def place_collectives(rows: Rows, machine: Cluster) -> Rows:
    """`rows` with their collectives among as many nodes as their ranks fill, unless they say."""
    if "ranks" not in rows.dims or machine.nodes == 1:
        return rows
    nodes = np.ceil(rows.dims["ranks"] / machine.node.gpus).clip(1, machine.nodes)
    given = rows.dims.get("nodes", np.full(len(rows), np.nan))
    return replace(rows, dims={**rows.dims, "nodes": np.where(np.isnan(given), nodes, given)})


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


def host_ratio(source: Host, target: Host) -> float:
    """Time of host code on `target` divided by its time on `source`: single-thread speed only."""
    return source.single_thread_ratio / target.single_thread_ratio


@dataclass(frozen=True, eq=False)
class HostCosts:
    """What times the host's work, how much slower the target's host is, and that in words."""

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

    @property
    def _content(self) -> Hashable:
        """What tells these costs from others: profiles by which they are, since they are large."""
        profiles = (id(self.profile), *((rank, id(own)) for rank, own in self.of_rank.items()))
        return profiles, self.ratio, self.statistic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostCosts) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def profile_of(self, rank: int) -> Profile:
        """What times the host of `rank`."""
        return self.of_rank.get(rank, self.profile)


def host_costs(
    machine: Cluster, overheads: str | None = None, software: str | None = None
) -> HostCosts:
    """The saved profile `overheads`, or the package's for `software` (else PyTorch's operators) at
    the speed of `machine`'s hosts. Raises `ModelError` where there is no such profile."""
    if overheads is not None:
        profile = load_profile(overheads)
        return HostCosts(profile, 1.0, f"host overheads: {overheads}, as they are", name=overheads)
    shipped = EAGER if software is None else IMPLEMENTATIONS[software].overheads
    target, recorded = machine.node.host, host(RECORDED_ON.get(shipped, PLAIN_HOST))
    note = SharedNote(
        f"host overheads: {shipped}, scaled from {recorded.name} (assumed: its traces name no "
        "host) by single-thread speed"
    )
    about: dict[str, Any] = {"name": shipped, "recorded_on": recorded, "host": target}
    ratio = host_ratio(recorded, target)
    return HostCosts(_shipped(shipped), ratio, note, statistic=OTHERS_STATISTIC, **about)


@lru_cache
def _shipped(name: str) -> Profile:
    """A profile of the package, read once."""
    return load_profile(CATALOGUE / f"{name}.json").of_repeated()


@dataclass(frozen=True)
class ScheduledSteps:
    """The steps of one rank, or of several that meet, on a machine."""

    timeline: Timeline
    built: Built
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
        """Per piece."""
        return [OPS[piece.op].family for piece in self.pieces]

    def pieces_of(self, rank: int) -> Mask:
        """Which pieces one rank runs."""
        own = self.built.piece[self.timeline.graph.nodes_.rank == rank]
        chosen = np.zeros(len(self.pieces), bool)
        chosen[own[own != NONE]] = True
        return chosen


def schedule_shapes(
    graph: OpGraph,
    machine: Cluster,
    costs: HostCosts | None,
    *,
    tf32_matmul: bool = False,
    repeats: bool = False,
    loading_us: float = 0.0,
    times: HostTimes | None = None,
) -> ScheduledSteps:
    """The ops of one rank on `machine`; `costs` are not needed on a CPU.

    `tf32_matmul`: products of fp32 tensors run in TF32 where the device has it. `repeats`: the
    graph carries edges to the steps that follow, and waits for a loader that takes `loading_us`.
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
        lowered = lower(graph, device.target, device=device, tf32_matmul=tf32_matmul)
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
    if repeats and loading_us:
        built = behind_loader(built, loading_us)
    return ScheduledSteps(
        _as_measured(schedule(built.graph)), built, pieces, durations, notes, rows, ops
    )


def schedule_jointly(ranks: Sequence[ScheduledSteps], wheres: Sequence[str]) -> ScheduledSteps:
    """Ranks that were scheduled alone, scheduled so that their collectives start together."""
    graph = merge(
        [rank.timeline.graph for rank in ranks], [0] * len(ranks), list(wheres), modelled=True
    )
    own, pieces, nodes = [], 0, 0
    for rank in ranks:
        piece = rank.built.piece
        own.append(np.where(piece == NONE, NONE, piece + pieces))
        pieces, nodes = pieces + len(rank.pieces), nodes + len(piece)
    piece = np.append(np.concatenate(own), np.full(len(graph) - nodes, NONE))
    if graph.arrivals is not None:
        transfer, arrival = graph.arrivals.T
        piece[transfer], piece[arrival] = piece[arrival], NONE
    return ScheduledSteps(
        _as_measured(schedule(graph)),
        Built(graph, piece),
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


ON_DEVICE = ("kernel", "copy")
Kind = tuple[str, str, str, tuple[tuple[str, float], ...]]
"""Op, dtype, direction and dims of a kernel."""
MATRIX = ("matmul", "convolution", "attention")


@dataclass(frozen=True, eq=False, repr=False)
class KernelTable:
    """Per kind of kernel of one step, longest first: columns of one length.

    `flop`, `bytes` and `duration_us` are of one of them, `count` how many there are in a step.
    """

    device: Device
    op: tuple[str, ...]
    family: tuple[str, ...]
    dtype: tuple[str, ...]
    count: Floats
    flop: Floats
    bytes: Floats
    duration_us: Floats

    def __len__(self) -> int:
        return len(self.op)

    def to_frame(self) -> pd.DataFrame:
        """One row per kind of kernel."""
        import pandas as pd

        names = ("op", "family", "dtype", "count", "flop", "bytes", "duration_us")
        return pd.DataFrame({name: getattr(self, name) for name in names})

    def roofline(self) -> Figure:
        """Achieved rate over arithmetic intensity, below the device's roofs."""
        from perfmodel.plot import roofline_figure

        busy_us = self.count * self.duration_us
        counts = self.flop > 0
        frame = {
            "family": np.array(self.family, object)[counts],
            "intensity": self.flop[counts] / np.maximum(self.bytes[counts], 1.0),
            "tflop_per_s": self.flop[counts] / self.duration_us[counts] / 1e6,
            "time_us": busy_us[counts],
        }
        without_pct = 100 * float(busy_us[~counts].sum() / busy_us.sum()) if len(self) else 0.0
        device, pairs = self.device, zip(self.dtype, self.family, strict=True)
        peaks = {"fp32 vector": device.fp32_tflop_per_s}
        for dtype in sorted({dtype for dtype, family in pairs if family in MATRIX}):
            peaks[f"{dtype} matrix"] = device.matrix_tflop_per_s(dtype)
        title = f"{device.name}; {without_pct:.0f} % of the kernel time does no arithmetic"
        return roofline_figure(frame, peaks=peaks, gb_per_s=device.hbm_gb_per_s, title=title)


def kernel_table(prediction: ScheduledSteps, rank: int, device: Device) -> KernelTable:
    """What `rank` runs on its `device`, summed up over steps."""
    steps = max(int((prediction.timeline.graph.marks.rank == rank).sum()), 1)
    own = np.flatnonzero(prediction.pieces_of(rank))
    groups: dict[Kind, list[int]] = {}
    for at in own.tolist():
        piece = prediction.pieces[at]
        if piece.kind in ON_DEVICE:
            key = (piece.op, piece.dtype, piece.direction, tuple(sorted(piece.dims.items())))
            groups.setdefault(key, []).append(at)
    taken = prediction.durations.duration_us
    time_us = np.array([taken[rows].sum() for rows in groups.values()])
    count = np.array([len(rows) for rows in groups.values()], np.float64)
    order = np.argsort(-time_us, kind="stable") if groups else np.empty(0, np.int64)
    kinds = [list(groups)[at] for at in order.tolist()]
    rows = Rows.of(
        [
            {"op": op, "dtype": dtype, "direction": direction, "timing": KERNEL, **dict(dims)}
            for op, dtype, direction, dims in kinds
        ]
    )
    flop, moved = np.zeros(len(rows)), np.zeros(len(rows))
    for (op, direction), index in rows.grouped(lambda kind: (kind.op, kind.direction)):
        spec, dims = OPS[op].of(direction), rows.dims_of(op, index)
        flop[index], item_bytes = spec.flop(dims), rows.item_bytes[index]
        moved[index] = spec.read_bytes(dims, item_bytes) + spec.written_bytes(dims, item_bytes)
    return KernelTable(
        device,
        tuple(kind[0] for kind in kinds),
        tuple(OPS[kind[0]].kernel_family for kind in kinds),
        tuple(kind[1] for kind in kinds),
        count[order] / steps,
        flop,
        moved,
        time_us[order] / count[order],
    )
