"""What runs beside a collective takes longer: a bounded fixed point of durations and load, and what
each asks of what they share, as models say and as was measured.

Collectives hold multiprocessors and move bytes through device memory; kernels beside them work
with what is left. Where kernels saturate the memory, a collective gets no more of it than its
share of multiprocessors. Collectives of one rank beside one another share its wires, where
together they ask for more than these carry. Measured durations under a what-if are split into what
they are alone and what is lost to others, which follows from the new schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from perfmodel.base.arrays import Floats, Ints, distinct
from perfmodel.cost.collectives.learned import collective_durations, device_shares_of_rows
from perfmodel.cost.contract import COLLECTIVE, TIERS
from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.hardware import Cluster
from perfmodel.lowering.lower import CPU
from perfmodel.ops.families import COMPUTE_BOUND, MEMORY_BOUND, classes_of_kernels
from perfmodel.ops.read.arguments import collective_of
from perfmodel.ops.rows import Rows
from perfmodel.prediction.scheduled import ScheduledSteps
from perfmodel.prediction.transferred import known_machine, source_machine
from perfmodel.timeline.graph.kinds import EdgeKind, NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace import Trace
from perfmodel.trace.columns import NONE

MAX_ROUNDS = 8
"""Schedules at most."""
CONVERGED_FRAC = 1e-3
"""A round that moves no duration by more than this share of it (of 1 us at least) is the last."""
DAMPED_FROM = 3
"""From this round on durations go half the way, so that two that lengthen one another settle."""
MATRIX_ELEMENTS = 1 << 18
"""Of what is compared with what at once."""
MAX_LOST_FRAC = 0.9
"""assumed: beside others everything keeps at least a tenth of its pace."""


@dataclass(frozen=True)
class Load:
    """What nodes ask of their device, and what they take from others on it; one entry per node,
    shares of the whole device."""

    sm_used_frac: Floats
    """Multiprocessors that a kernel keeps busy when it runs alone."""
    hbm_used_frac: Floats
    """Memory bandwidth that it draws when it runs alone."""
    sm_taken_frac: Floats
    """Multiprocessors that a collective holds while it transfers."""
    sm_held_frac: Floats
    """While it waits for other ranks."""
    hbm_taken_frac: Floats
    """Memory bandwidth that it draws while it transfers."""
    delay_us: Floats
    """How much longer a kernel that reads waits for its data beside the transfer."""
    reads: Floats
    """1 for a kernel that waits for data from memory."""
    wire_used_frac: Floats
    """Of a collective's time alone, what its bytes take on links or adapters."""

    def tiled(self, copies: int) -> Load:
        """The load of a graph that is repeated `copies` times."""
        return Load(*(np.tile(column, copies) for column in vars(self).values()))


def contended_schedule(
    run: Callable[[Floats], tuple[Timeline, Floats]], alone_us: Floats
) -> tuple[Timeline, Floats]:
    """The schedule in which every node takes what the load beside it makes of its own duration.

    `run` schedules durations `[n]` and says what each node loses of its own to others beside it
    `[n]`; `alone_us` are durations without that. A node that loses a share takes so much longer
    that the rest of its time is what it takes alone; the share follows from the next schedule.
    Returns the last schedule and its durations.
    """
    taken = alone_us
    timeline, lost = run(taken)
    for round_ in range(1, MAX_ROUNDS):
        share = np.divide(lost, taken, out=np.zeros(len(taken)), where=taken > 0)
        longer = alone_us / (1 - np.minimum(share, MAX_LOST_FRAC))
        if (np.abs(longer - taken) <= CONVERGED_FRAC * np.maximum(taken, 1.0)).all():
            break
        taken = longer if round_ < DAMPED_FROM else (longer + taken) / 2
        timeline, lost = run(taken)
    return timeline, taken


def lost_us(timeline: Timeline, load: Load, nodes: slice = slice(None)) -> Floats:
    """Of the duration of each of `nodes`, what it loses to the collectives beside it on its rank,
    and a collective to kernels; 0 of other nodes. A collective's ranks are all in it or all not."""
    graph = timeline.graph
    duration = timeline.end_us - timeline.start_us
    result = np.zeros(len(graph))
    transfers = (load.sm_taken_frac > 0) & (duration > 0)
    kernels = graph.on_device & ~transfers & (duration > 0)
    kernels &= np.maximum(np.maximum(load.sm_used_frac, load.hbm_used_frac), load.reads) > 0
    is_asked = np.zeros(len(graph), np.bool_)
    is_asked[nodes] = True
    for rank in distinct(graph.nodes_.rank[transfers]).tolist():
        collectives = np.flatnonzero(transfers & (graph.nodes_.rank == rank))
        others = np.flatnonzero(kernels & (graph.nodes_.rank == rank))
        asked, losing = others[is_asked[others]], collectives[is_asked[collectives]]
        stretches = _constant_loads(timeline, load, collectives)
        for part in _parts(stretches.shape[1], len(others)):
            start_us, end_us, sm_frac, hbm_frac, delay_us, wire_frac = stretches[:, part, None]
            overlap = _overlap_us(timeline, asked, start_us, end_us)
            slower = np.maximum(
                load.sm_used_frac[asked] / (1 - sm_frac), load.hbm_used_frac[asked] + hbm_frac
            )
            stalled = delay_us * (load.reads[asked] / duration[asked])
            lost = overlap * (_lost_frac(slower) + np.minimum(stalled, 1.0))
            result[asked] += lost.sum(axis=0)
            overlap = _overlap_us(timeline, losing, start_us, end_us)
            result[losing] += (overlap * _lost_frac(wire_frac)).sum(axis=0)
        for part in _parts(len(losing), len(others)):
            some = losing[part]
            ends = timeline.start_us[some][:, None], timeline.end_us[some][:, None]
            overlap = _overlap_us(timeline, others, *ends)
            left = np.maximum(load.sm_taken_frac[some][:, None], 1 - load.hbm_used_frac[others])
            slower = load.hbm_taken_frac[some][:, None] / np.maximum(left, 1e-9)
            result[some] += (overlap * _lost_frac(slower)).sum(axis=1)
    return _equal_over_ranks(graph, np.minimum(result, MAX_LOST_FRAC * duration))


def _lost_frac(slower: Floats) -> Floats:
    """The share of a duration that is lost by what goes `slower` times slower."""
    return 1 - 1 / np.maximum(slower, 1.0)


def _constant_loads(timeline: Timeline, load: Load, transfers: Ints) -> Floats:
    """`[6, stretches]`, in order: from when until when the transfers of one rank, and the waits
    before them, hold the same; shares of multiprocessors and memory bandwidth; the delay of reads;
    and of the wires, what all that transfer ask for."""
    start, end = timeline.start_us[transfers], timeline.end_us[transfers]
    arrival = np.full(len(timeline.graph), NONE, np.int64)
    if timeline.graph.arrivals is not None:
        arrival[timeline.graph.arrivals[:, 0]] = timeline.graph.arrivals[:, 1]
    arrival = arrival[transfers]
    awaited = np.flatnonzero(arrival != NONE)
    since = timeline.start_us[arrival[awaited]]
    edges = distinct(np.concatenate([start, end, since]))

    def held(values: Floats, from_us: Floats = start, until_us: Floats = end) -> Floats:
        change = np.zeros(len(edges))
        np.add.at(change, np.searchsorted(edges, from_us), values)
        np.add.at(change, np.searchsorted(edges, until_us), -values)
        return np.cumsum(change)[:-1]

    sm = held(load.sm_taken_frac[transfers])
    sm += held(load.sm_held_frac[transfers[awaited]], since, start[awaited])
    sm, hbm = sm.clip(0, MAX_LOST_FRAC), held(load.hbm_taken_frac[transfers]).clip(0)
    busy = np.flatnonzero((sm > 1e-9) | (hbm > 1e-9))
    delay_us, wire = held(load.delay_us[transfers]), held(load.wire_used_frac[transfers])
    return np.stack([edges[:-1], edges[1:], sm, hbm, delay_us, wire])[:, busy]


def _parts(count: int, width: int) -> Iterator[slice]:
    """All of `count` rows of a matrix `width` wide, as many at once as are quick to hold."""
    most = max(MATRIX_ELEMENTS // max(width, 1), 1)
    return (slice(start, start + most) for start in range(0, count, most))


def _overlap_us(timeline: Timeline, rows: Ints, start_us: Floats, end_us: Floats) -> Floats:
    """For how long each of `rows` runs in each of the stretches `[n, 1]`, `[stretches, rows]`."""
    begin = np.maximum(timeline.start_us[rows], start_us)
    overlap: Floats = np.minimum(timeline.end_us[rows], end_us) - begin
    return overlap.clip(0.0)


def _equal_over_ranks(graph: ExecutionGraph, lost: Floats) -> Floats:
    """`lost` with one value for all ranks of a collective: they end together."""
    edges = graph.edges_
    meets = np.flatnonzero(edges.kind == EdgeKind.RENDEZVOUS)
    if graph.arrivals is None or not len(meets):
        return lost
    is_arrival = np.zeros(len(graph), np.bool_)
    is_arrival[graph.arrivals[:, 0]] = True
    meets = meets[is_arrival[edges.target[meets]]]
    most = np.zeros(len(graph))
    np.maximum.at(most, edges.source[meets], lost[edges.target[meets]])
    lost[edges.target[meets]] = most[edges.source[meets]]
    return lost


TILED = ("matmul", "convolution", "attention")
"""Families whose kernels keep every multiprocessor busy that their tiles reach."""
TILE_ELEMENTS, TILE_DEPTH = 128.0 * 128.0, 512.0
"""assumed: a thread block computes so many outputs, and so many products of each."""
STREAMING_SM_FRAC = 0.5
"""assumed: half the multiprocessors draw all of the memory's bandwidth."""


def schedule_under(load: Load, graph: ExecutionGraph, alone_us: Floats) -> tuple[Timeline, Floats]:
    """The schedule of `graph`, and what its nodes take in it, where each loses what the `load` of
    others beside it costs; `alone_us` is what they take alone."""

    def run(duration_us: Floats) -> tuple[Timeline, Floats]:
        timeline = schedule(graph, duration_us)
        return timeline, lost_us(timeline, load)

    return contended_schedule(run, alone_us)


def rescheduled(steps: ScheduledSteps, timeline: Timeline, taken_us: Floats) -> ScheduledSteps:
    """`steps` as `timeline` has it, its nodes of `taken_us` each; pieces take as much longer."""
    nodes = replace(timeline.graph.nodes_, start_us=timeline.start_us, duration_us=taken_us)
    graph = replace(timeline.graph, nodes_=nodes)
    piece, count = steps.piece, len(steps.pieces)
    own = piece != NONE
    alone = np.bincount(piece[own], steps.timeline.graph.nodes_.duration_us[own], count)
    taken = np.bincount(piece[own], taken_us[own], count)
    longer = np.divide(taken, alone, out=np.ones(count), where=alone > 0)
    was, names = steps.durations, ("duration_us", "low_us", "high_us")
    durations = replace(was, **{name: getattr(was, name) * longer for name in names})
    return replace(
        steps, timeline=Timeline(graph, timeline.start_us, timeline.end_us), durations=durations
    )


def modelled_load(steps: ScheduledSteps, machine: Cluster) -> Load | None:
    """The load of the nodes of `steps` on their device of `machine`, each as it is alone: shares of
    multiprocessors and of memory bandwidth, which kernels read, and what collectives take. None
    where no collective slows anything down: on a CPU, or where ranks do not meet."""
    if machine.node.device.target == CPU or COLLECTIVE not in steps.families:
        return None
    rows = steps.rows
    duration_us, families = steps.durations.duration_us, np.array(steps.families, object)
    columns = {each.name: np.zeros(len(rows)) for each in fields(Load)}
    sm, hbm, device = columns["sm_used_frac"], columns["hbm_used_frac"], machine.node.device
    reached = device.stream_gb_per_s * 1e3
    for group in groups_of(rows):
        at = group.index
        if families[at[0]] == COLLECTIVE or families[at[0]] in TIERS:
            continue
        hbm[at] = np.minimum(group.moved_bytes / reached / np.maximum(duration_us[at], 1e-9), 1.0)
        sm[at] = STREAMING_SM_FRAC * hbm[at]
        columns["reads"][at] = group.read_bytes > 0
        if families[at[0]] in TILED:
            outputs = group.written_bytes / group.item_bytes
            blocks = np.maximum(outputs, group.flop / (2 * TILE_DEPTH)) / TILE_ELEMENTS
            sm[at] = np.maximum(sm[at], np.minimum(blocks / device.sm_count, 1.0))
    own = np.flatnonzero(families == COLLECTIVE)
    taken = device_shares_of_rows(rows.take(own), machine, duration_us[own])
    columns["sm_taken_frac"][own], columns["sm_held_frac"][own] = taken.sm_frac, taken.held_frac
    columns["hbm_taken_frac"][own], columns["delay_us"][own] = taken.hbm_frac, taken.delay_us
    columns["wire_used_frac"][own] = taken.wire_frac
    piece = steps.piece
    of_node = {name: np.where(piece == NONE, 0.0, each[piece]) for name, each in columns.items()}
    return Load(**of_node)


LONG_US = 15.0
"""assumed: kernels from this length on use all of what bounds them; shorter ones wait for data."""
LARGE_BYTES = 2.0**26
"""Of this size on collectives move bytes at their full rate."""
_NOT_EXCHANGED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
"""Collectives that kernels are named after; all other kernels exchange."""


def without_contention(trace: Trace, graph: ExecutionGraph, duration_us: Floats) -> Floats | None:
    """`duration_us` of a measured graph, each less what it lost; None where nothing ran beside a
    collective of a GPU that is known."""
    machine = known_machine(trace) if len(_transfers(graph)) else None
    if machine is None:
        return None
    load = measured_load(trace, graph, duration_us, machine)
    lost = lost_us(schedule(graph, duration_us), load)
    alone_us: Floats = duration_us - np.minimum(lost, MAX_LOST_FRAC * duration_us)
    return alone_us


def contended(trace: Trace, graph: ExecutionGraph, alone_us: Floats) -> Floats:
    """`alone_us` (`without_contention`) of the nodes of `graph`, an edit of the measured one, with
    what they lose in the schedule that they lead to."""
    load = measured_load(trace, graph, alone_us, source_machine(trace, ""))
    return schedule_under(load, graph, alone_us)[1]


def _transfers(graph: ExecutionGraph) -> Ints:
    """Collectives on a device; where ranks meet, what is left of them after the meeting."""
    _, last = graph.device_span()
    transfers: Ints = last[graph.nodes_.kind[last] == NodeKind.COLLECTIVE]
    return transfers


def measured_load(
    trace: Trace, graph: ExecutionGraph, duration_us: Floats, machine: Cluster
) -> Load:
    """Shares by kernel name and length, as many traces record no shapes; of collectives by their
    modelled rates. One of a rank alone, maybe all waiting, moves nothing."""
    nodes = np.flatnonzero(graph.on_device)
    kind = np.array(classes_of_kernels(graph.labels[node] for node in nodes.tolist()), object)
    columns = {each.name: np.zeros(len(graph)) for each in fields(Load)}
    is_long = duration_us[nodes] >= LONG_US
    tiled, streams = (kind == COMPUTE_BOUND) & is_long, (kind == MEMORY_BOUND) & is_long
    columns["sm_used_frac"][nodes] = tiled + STREAMING_SM_FRAC * streams
    columns["hbm_used_frac"][nodes] = streams
    columns["reads"][nodes] = np.isin(kind, (COMPUTE_BOUND, MEMORY_BOUND))

    here = _transfers(graph)
    names = [collective_of(graph.labels[node]) for node in here.tolist()]
    ops = [name if name in _NOT_EXCHANGED else "all_to_all" for name in names]
    ranks = max(trace.world_size, 2)
    taken_us = np.maximum(duration_us[here], 1e-3)

    def rows(size_bytes: Floats) -> Rows:
        about = {"ranks": float(min(ranks, machine.gpus))}
        pairs = zip(ops, size_bytes.tolist(), strict=True)
        return Rows.of([{"op": op, "size_bytes": size, **about} for op, size in pairs])

    large = rows(np.full(len(here), LARGE_BYTES))
    rate = LARGE_BYTES / collective_durations(large, machine).duration_us
    shares = device_shares_of_rows(rows(np.maximum(rate * taken_us, 1.0)), machine, taken_us)
    meets = np.isin(here, [] if graph.arrivals is None else graph.arrivals[:, 0])
    for name in ("sm_used_frac", "hbm_used_frac", "reads"):
        columns[name][here] = 0.0
    columns["sm_taken_frac"][here] = np.where(meets, shares.sm_frac, shares.held_frac)
    columns["sm_held_frac"][here] = shares.held_frac
    columns["hbm_taken_frac"][here] = np.where(meets, shares.hbm_frac, 0.0)
    columns["wire_used_frac"][here] = 1.0
    return Load(**columns)
