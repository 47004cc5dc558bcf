"""What pieces ask of their device and take from others on it: the load that contention is of."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats
from perfmodel.cost.collectives.sharing import device_shares_of_rows
from perfmodel.cost.durations import COLLECTIVE
from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.cost.tiers import TIERS
from perfmodel.hardware import Cluster, Device
from perfmodel.lowering.build_cpu import rows_of
from perfmodel.lowering.walk import CPU
from perfmodel.ops.rows import Rows
from perfmodel.prediction.scheduled import ScheduledSteps, place_collectives
from perfmodel.timeline.contention import Load, contended_schedule, lost_us
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.trace.columns import NONE

TILED = ("matmul", "convolution", "attention")
"""Families whose kernels keep every multiprocessor busy that their tiles reach."""
TILE_ELEMENTS, TILE_DEPTH = 128.0 * 128.0, 512.0
"""assumed: a thread block computes so many outputs, and so many products of each."""
STREAMING_SM_FRAC = 0.5
"""assumed: half the multiprocessors draw all of the memory's bandwidth."""


def with_contention(steps: ScheduledSteps, machine: Cluster) -> ScheduledSteps:
    """`found` with what its kernels lose to collectives beside them, on a GPU."""
    if not has_contention(steps, machine):
        return steps
    load = modelled_load(steps, machine)
    graph = steps.timeline.graph

    def run(duration_us: Floats) -> tuple[Timeline, Floats]:
        timeline = schedule(graph, duration_us)
        return timeline, lost_us(timeline, load)

    timeline, taken_us = contended_schedule(run, graph.nodes_.duration_us)
    return rescheduled(steps, timeline, taken_us)


def has_contention(steps: ScheduledSteps, machine: Cluster) -> bool:
    """Whether a collective may slow anything down: not where ranks meet in a CPU's memory."""
    return machine.node.device.target != CPU and COLLECTIVE in steps.families


def rescheduled(steps: ScheduledSteps, timeline: Timeline, taken_us: Floats) -> ScheduledSteps:
    """`found` as `timeline` has it, its nodes of `taken_us` each; pieces take as much longer."""
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


def modelled_load(steps: ScheduledSteps, machine: Cluster) -> Load:
    """The load of the nodes of `found` on their device of `machine`, each as it is alone."""
    rows = place_collectives(rows_of(steps.pieces), machine)
    duration_us, families = steps.durations.duration_us, np.array(steps.families, object)
    columns = np.zeros((len(fields(Load)), len(rows)))
    machines, kind = steps.machines(machine)
    for number, each in enumerate(machines):
        here = np.flatnonzero(kind == number)
        columns[:, here] = _loads(rows.take(here), families[here], duration_us[here], each)
    piece = steps.built.piece
    return Load(*(np.where(piece == NONE, 0.0, column[piece]) for column in columns))


def _loads(
    rows: Rows, families: NDArray[np.object_], duration_us: Floats, machine: Cluster
) -> Floats:
    """The columns of `Load` of rows on one device, `[columns, rows]`."""
    sm, hbm, reads = _used_shares(rows, families, duration_us, machine.node.device)
    own = np.flatnonzero(families == COLLECTIVE)
    taken = device_shares_of_rows(rows.take(own), machine, duration_us[own])
    shares = (taken.sm_frac, taken.held_frac, taken.hbm_frac, taken.delay_us, taken.wire_frac)
    of_collectives = np.zeros((len(shares), len(rows)))
    of_collectives[:, own] = shares
    return np.vstack([sm, hbm, of_collectives[:-1], reads, of_collectives[-1]])


def _used_shares(
    rows: Rows, families: NDArray[np.object_], duration_us: Floats, device: Device
) -> tuple[Floats, Floats, Floats]:
    """Shares of multiprocessors and of memory bandwidth that kernels use alone, and which read."""
    sm, hbm, reads = (np.zeros(len(rows)) for _ in range(3))
    reached = device.stream_gb_per_s * 1e3
    for group in groups_of(rows):
        at = group.index
        if families[at[0]] == COLLECTIVE or families[at[0]] in TIERS:
            continue
        hbm[at] = np.minimum(group.moved_bytes / reached / np.maximum(duration_us[at], 1e-9), 1.0)
        sm[at] = STREAMING_SM_FRAC * hbm[at]
        reads[at] = group.read_bytes > 0
        if families[at[0]] in TILED:
            outputs = group.written_bytes / group.item_bytes
            blocks = np.maximum(outputs, group.flop / (2 * TILE_DEPTH)) / TILE_ELEMENTS
            sm[at] = np.maximum(sm[at], np.minimum(blocks / device.sm_count, 1.0))
    return sm, hbm, reads
