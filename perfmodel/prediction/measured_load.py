"""The load of a measured graph: what its kernels and collectives ask of what they share.

A trace says which kernels ran beside collectives, and how long they took there. A what-if moves
them; so durations are taken apart into what they are alone and what is lost to others, and put
together again by the schedule that the what-if leads to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.collectives.durations import collective_durations
from perfmodel.cost.collectives.sharing import device_shares_of_rows
from perfmodel.errors import HardwareError, TraceError
from perfmodel.graph.kinds import NodeKind
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Cluster, cluster
from perfmodel.ops.families import COMPUTE_BOUND, MEMORY_BOUND, classes_of_kernels
from perfmodel.ops.rows import Rows
from perfmodel.prediction.contention_load import STREAMING_SM_FRAC
from perfmodel.prediction.transferred import source_device
from perfmodel.timeline.contention import MOST_LOST_FRAC, Load, contended_schedule, lost_us
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace import RankTrace, Trace
from perfmodel.trace.columns import NONE

LONG_US = 15.0
"""assumed: kernels from this length on use all of what bounds them; shorter ones wait for data."""
LARGE_BYTES = 2.0**26
"""Of this size on collectives move bytes at their full rate."""
_COLLECTIVE_NAMES = (
    ("all_reduce", ("allreduce", "all_reduce")),
    ("reduce_scatter", ("reducescatter", "reduce_scatter")),
    ("all_gather", ("allgather", "all_gather")),
    ("broadcast", ("broadcast",)),
)
"""Op of the vocabulary by what a kernel's name holds; all others exchange."""


@dataclass(frozen=True)
class UncontendedDurations:
    """Durations of a measured graph without what collectives and kernels cost one another."""

    trace: Trace
    machine: Cluster
    alone_us: Floats

    def together(self, graph: ExecutionGraph, alone_us: Floats) -> Floats:
        """`alone_us` of the nodes of `graph`, an edit of the measured one, with what they lose in
        the schedule that they lead to."""
        load = measured_load(self.trace, graph, alone_us, self.machine)

        def run(duration_us: Floats) -> tuple[Timeline, Floats]:
            timeline = schedule(graph, duration_us)
            return timeline, lost_us(timeline, load)

        return contended_schedule(run, alone_us)[1]


def without_contention(
    trace: Trace, graph: ExecutionGraph, duration_us: Floats
) -> UncontendedDurations | None:
    """`duration_us` of a measured graph, each less what it lost; None where nothing ran beside a
    collective of a GPU that is known."""
    if not len(_transfers(graph)):
        return None
    try:
        machine = cluster(source_device(trace, ""))
    except (TraceError, HardwareError):
        return None
    load = measured_load(trace, graph, duration_us, machine)
    lost = lost_us(schedule(graph, duration_us), load)
    return UncontendedDurations(
        trace, machine, duration_us - np.minimum(lost, MOST_LOST_FRAC * duration_us)
    )


def measured_load(
    trace: Trace, graph: ExecutionGraph, duration_us: Floats, machine: Cluster
) -> Load:
    """Shares by kernel name and length, since many traces record no shapes; of collectives the
    thread blocks that the trace records, and the rate that the model knows.

    A collective of a rank alone may be all waiting: it holds blocks and moves nothing.
    """
    nodes = np.flatnonzero(graph.on_device)
    kind = np.array(classes_of_kernels(graph.labels[node] for node in nodes.tolist()), object)
    columns = {name: np.zeros(len(graph)) for name in Load.__dataclass_fields__}
    is_long = duration_us[nodes] >= LONG_US
    tiled, streams = (kind == COMPUTE_BOUND) & is_long, (kind == MEMORY_BOUND) & is_long
    columns["sm_used_frac"][nodes] = tiled + STREAMING_SM_FRAC * streams
    columns["hbm_used_frac"][nodes] = streams
    columns["reads"][nodes] = np.isin(kind, (COMPUTE_BOUND, MEMORY_BOUND))
    transfers = _transfers(graph)
    for name, values in _transfer_load(trace, graph, duration_us, transfers, machine).items():
        columns[name][transfers] = values
    for name in ("sm_used_frac", "hbm_used_frac", "reads"):
        columns[name][transfers] = 0.0
    return Load(**columns)


def _transfers(graph: ExecutionGraph) -> Ints:
    """Collectives on a device; where ranks meet, what is left of them after the meeting."""
    _, last = graph.device_span()
    transfers: Ints = last[graph.nodes_.kind[last] == NodeKind.COLLECTIVE]
    return transfers


def _transfer_load(
    trace: Trace, graph: ExecutionGraph, duration_us: Floats, nodes: Ints, machine: Cluster
) -> dict[str, Floats]:
    ops = [_op(graph.labels[node]) for node in nodes.tolist()]
    ranks = float(max(len(trace.ranks), *(rank.world_size or 1 for rank in trace.ranks), 2))
    taken_us = np.maximum(duration_us[nodes], 1e-3)

    def rows(size_bytes: Floats) -> Rows:
        return Rows.of(
            [
                {"op": op, "size_bytes": float(size), "ranks": min(ranks, machine.gpus)}
                for op, size in zip(ops, size_bytes, strict=True)
            ]
        )

    large = rows(np.full(len(nodes), LARGE_BYTES))
    rate = LARGE_BYTES / collective_durations(large, machine).duration_us
    shares = device_shares_of_rows(rows(np.maximum(rate * taken_us, 1.0)), machine, taken_us)
    told = _blocks(trace, graph, nodes) / max(machine.node.device.sm_count, 1)
    sm = np.where(told > 0, told, shares.sm_frac)
    meets = np.isin(nodes, [] if graph.arrivals is None else graph.arrivals[:, 0])
    held = sm * shares.held_frac / shares.sm_frac
    return {
        "sm_taken_frac": np.where(meets, sm, held),
        "sm_held_frac": held,
        "hbm_taken_frac": np.where(meets, shares.hbm_frac, 0.0),
        "wire_used_frac": np.ones(len(nodes)),
    }


def _op(label: str) -> str:
    name = label.lower()
    return next(
        (op for op, words in _COLLECTIVE_NAMES if any(word in name for word in words)), "all_to_all"
    )


def _blocks(trace: Trace, graph: ExecutionGraph, nodes: Ints) -> Floats:
    """Thread blocks of each collective's kernel; 0 where the trace does not say."""
    blocks = np.zeros(len(nodes))
    for rank in trace.ranks:
        own = np.flatnonzero(
            (graph.nodes_.rank[nodes] == rank.rank) & (graph.nodes_.row[nodes] >= 0)
        )
        grids = rank.grid[graph.nodes_.row[nodes[own]]]
        size = {grid: _grid_blocks(rank, grid) for grid in np.unique(grids).tolist()}
        blocks[own] = [size[grid] for grid in grids.tolist()]
    return blocks


def _grid_blocks(rank: RankTrace, grid: int) -> float:
    sizes: Sequence[str] = rank.strings[grid].strip("[]").split(",") if grid != NONE else ()
    numbers = [float(size) for size in sizes if size.strip().isdecimal()]
    return float(np.prod(numbers)) if numbers else 0.0
