"""Op graphs lowered to a machine, timed by models, scheduled; ranks meet at their collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from perfmodel.duration import Durations, durations_of
from perfmodel.graph.merge import merge
from perfmodel.graph.ops import OpGraph
from perfmodel.hardware import Cluster
from perfmodel.lowering import lower
from perfmodel.lowering.build import execution_graph
from perfmodel.lowering.build_cpu import cpu_graph
from perfmodel.lowering.cpu_step import cpu_steps
from perfmodel.lowering.draft import Built
from perfmodel.lowering.measured_host import HostTimes
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.repeat import loaded, one_after_another, repeating
from perfmodel.lowering.step_rows import rows_of
from perfmodel.lowering.walk import CPU
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.prediction.host_costs import HostCosts
from perfmodel.prediction.placed import placed
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace.columns import NONE, Mask


@dataclass(frozen=True)
class Scheduled:
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
) -> Scheduled:
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
        asked = [placed(rows_of(step), machine) for step in steps]
        found = Durations.joined([durations_of(own, machine) for own in asked])
        rows, ops = Rows.joined(asked), ("",) * len(pieces)
        built = cpu_graph(steps, found.duration_us, graph.rank)
        built = one_after_another(built) if repeats else built
        notes = graph.notes
    else:
        lowered = lower(graph, device.target, device=device, tf32_matmul=tf32_matmul)
        pieces = lowered.pieces
        rows = placed(lowered.rows, machine)
        ops = tuple(lowered.graph.ops[owner].name for owner in lowered.owner.tolist())
        found = durations_of(rows, machine)
        assert costs is not None
        profile = costs.profile_of(graph.rank)
        built = execution_graph(
            lowered,
            found.duration_us,
            profile,
            host_ratio=costs.ratio,
            statistic=costs.statistic,
            times=times,
        )
        built = repeating(built, lowered) if repeats else built
        notes = (*graph.notes, *lowered.notes)
    if repeats and loading_us:
        built = loaded(built, loading_us)
    return Scheduled(_as_measured(schedule(built.graph)), built, pieces, found, notes, rows, ops)


def met(ranks: Sequence[Scheduled], wheres: Sequence[str]) -> Scheduled:
    """Ranks that were scheduled alone, scheduled so that their collectives start together."""
    graph = merge(
        [rank.timeline.graph for rank in ranks], [0] * len(ranks), list(wheres), modelled=True
    )
    offset = np.cumsum([0, *(len(rank.pieces) for rank in ranks)])[:-1]
    own = [
        np.where(rank.built.piece == NONE, NONE, rank.built.piece + at)
        for rank, at in zip(ranks, offset, strict=True)
    ]
    piece = np.concatenate(own)
    piece = np.append(piece, np.full(len(graph) - len(piece), NONE))
    if graph.arrivals is not None:
        transfer, arrival = graph.arrivals.T
        piece[transfer], piece[arrival] = piece[arrival], NONE
    return Scheduled(
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
