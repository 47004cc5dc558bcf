"""Slowdown of kernels overlapped with collectives: what each asks of what they share.

Measured durations under a what-if are split into what they are alone and what is lost to others,
which follows from the new schedule.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.collectives.calls import place_collectives
from perfmodel.cost.collectives.learned import collective_durations, device_shares_of_rows
from perfmodel.cost.contract import COLLECTIVE, TIERS
from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.hardware import Cluster
from perfmodel.lowering.lower import CPU
from perfmodel.lowering.rules.cpu import rows_of
from perfmodel.ops.families import COMPUTE_BOUND, MEMORY_BOUND, classes_of_kernels
from perfmodel.ops.rows import Rows
from perfmodel.prediction.scheduled import ScheduledSteps
from perfmodel.prediction.transferred import known_machine, source_machine
from perfmodel.timeline.contention import MAX_LOST_FRAC, Load, contended_schedule, lost_us
from perfmodel.timeline.graph.kinds import NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace import Trace
from perfmodel.trace.columns import NONE

TILED = ("matmul", "convolution", "attention")
"""Families whose kernels keep every multiprocessor busy that their tiles reach."""
TILE_ELEMENTS, TILE_DEPTH = 128.0 * 128.0, 512.0
"""assumed: a thread block computes so many outputs, and so many products of each."""
STREAMING_SM_FRAC = 0.5
"""assumed: half the multiprocessors draw all of the memory's bandwidth."""


def with_contention(steps: ScheduledSteps, load: Load) -> ScheduledSteps:
    """`steps` with what its kernels lose to collectives beside them, under their `load`."""
    graph = steps.timeline.graph
    return rescheduled(steps, *_contended(graph, load, graph.nodes_.duration_us))


def _contended(graph: ExecutionGraph, load: Load, alone_us: Floats) -> tuple[Timeline, Floats]:
    def run(duration_us: Floats) -> tuple[Timeline, Floats]:
        timeline = schedule(graph, duration_us)
        return timeline, lost_us(timeline, load)

    return contended_schedule(run, alone_us)


def rescheduled(steps: ScheduledSteps, timeline: Timeline, taken_us: Floats) -> ScheduledSteps:
    """`steps` as `timeline` has it, its nodes of `taken_us` each; pieces take as much longer."""
    nodes = replace(timeline.graph.nodes_, start_us=timeline.start_us, duration_us=taken_us)
    graph = replace(timeline.graph, nodes_=nodes)
    piece, count = steps.built.piece, len(steps.pieces)
    own = piece != NONE
    alone = np.bincount(piece[own], steps.timeline.graph.nodes_.duration_us[own], count)
    taken = np.bincount(piece[own], taken_us[own], count)
    longer = np.divide(taken, alone, out=np.ones(count), where=alone > 0)
    was = steps.durations
    durations = replace(
        was,
        duration_us=was.duration_us * longer,
        low_us=was.low_us * longer,
        high_us=was.high_us * longer,
    )
    return replace(
        steps,
        timeline=Timeline(graph, timeline.start_us, timeline.end_us),
        built=replace(steps.built, graph=graph),
        durations=durations,
    )


def modelled_load(steps: ScheduledSteps, machine: Cluster) -> Load | None:
    """The load of the nodes of `steps` on their device of `machine`, each as it is alone: shares of
    multiprocessors and of memory bandwidth, which kernels read, and what collectives take. None
    where no collective slows anything down: on a CPU, or where ranks do not meet."""
    if machine.node.device.target == CPU or COLLECTIVE not in steps.families:
        return None
    rows = place_collectives(rows_of(steps.pieces), machine)
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
    piece = steps.built.piece
    of_node = {name: np.where(piece == NONE, 0.0, each[piece]) for name, each in columns.items()}
    return Load(**of_node)


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
    return _contended(graph, load, alone_us)[1]


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
    names = [graph.labels[node].lower() for node in here.tolist()]
    ops = [
        next((op for op, words in _COLLECTIVE_NAMES if any(map(name.count, words))), "all_to_all")
        for name in names
    ]
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
