"""Slowdown of kernels overlapped with collectives: what each asks of what they share."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.collectives.durations import device_shares_of_rows
from perfmodel.cost.contract import COLLECTIVE
from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.cost.tiers import TIERS
from perfmodel.hardware import Cluster
from perfmodel.lowering.build_cpu import rows_of
from perfmodel.lowering.walk import CPU
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


def with_contention(steps: ScheduledSteps, load: Load) -> ScheduledSteps:
    """`steps` with what its kernels lose to collectives beside them, under their `load`."""
    graph = steps.timeline.graph

    def run(duration_us: Floats) -> tuple[Timeline, Floats]:
        timeline = schedule(graph, duration_us)
        return timeline, lost_us(timeline, load)

    return rescheduled(steps, *contended_schedule(run, graph.nodes_.duration_us))


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
