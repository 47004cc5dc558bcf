"""Work with shapes over the time of its kernels: rates of operators, bandwidths of collectives.

FLOP and bytes are those that the vocabulary gives for what an operator is lowered to. Calls of one
operator repeat: of each kind of call tree one is lowered, for the time of all of them. Sizes and
bandwidths of collectives are those of nccl-tests. A kernel waits for the other ranks too, so that
its bandwidth is what was reached, not what the wires allow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct, distinct_pairs
from perfmodel.base.units import BYTES_PER_GB, US_PER_S
from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.errors import HardwareError
from perfmodel.hardware import Device, from_driver_name
from perfmodel.lowering.lower import Lowered, lower
from perfmodel.lowering.observed import uses_tf32, with_placement
from perfmodel.lowering.rules.copies import ONE_BYTE, TABLE, collective
from perfmodel.lowering.walk import Target
from perfmodel.ops.dtypes import DTYPES
from perfmodel.ops.graph import NO_OP, Op
from perfmodel.ops.read.arguments import collective_of, of_event
from perfmodel.ops.read.profile import of_kineto
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import COLLECTIVE, TRANSFER, UNKNOWN
from perfmodel.plot.names import short_name
from perfmodel.prediction.breakdown.hotspots import Hotspots, Nesting
from perfmodel.prediction.breakdown.tables import (
    NamedSums,
    Rates,
    Records,
    by_time,
    rate_of,
    summed,
)
from perfmodel.trace.categories import HOST_COLLECTIVE_NAME, Category, is_communication
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import by_thread, link
from perfmodel.trace.window import take_rows

MAX_OPERATORS = 2000
"""Of all kinds of call tree together: those with most device time are looked at."""
_MATRIX = ("matmul", "convolution", "attention")
_ARGUMENTS = ("name", "input_shapes", "input_dtypes", "input_values", "input_strides")
"""The columns in which equal calls are equal."""
_SHAPES = re.compile(r"[\[\]\d,\s-]*")
"""`Input Dims` of numbers alone."""
_HIP = re.compile("hip")
_MAX_SHAPES = 4


def rates(hot: Hotspots) -> Rates:
    """The rates of the operators of one rank within its steps.

    Raises `PerfmodelError` where the shapes cannot be used.
    """
    device, notes = None, []
    if not hot.rank.devices:
        notes.append("the trace names no device: no shares of a roofline")
    else:
        first = hot.rank.devices[0]
        try:
            device = from_driver_name(first.name, first.memory_bytes or None)
        except HardwareError:
            notes.append(f"{first.name} is not in the catalogue: no shares of a roofline")
    rows, unreadable = _rated_rows(hot, device)
    if unreadable:
        notes.append(f"{unreadable} operators left out whose shapes are not numbers")
    counted = ~hot.rank.named(is_communication)[hot.links.device_rows]
    total_us = float(hot.device_us[counted].sum()) / max(hot.clock.count, 1)
    rated_frac = sum(row["device_us"] for row in rows) / total_us if total_us else 0.0
    return Rates(rows, "" if device is None else device.name, rated_frac, "; ".join(notes))


def _rated_rows(hot: Hotspots, device: Device | None) -> tuple[Records, int]:
    """One example of each kind of call tree lowered, for the time of all of the kind, as many as
    `MAX_OPERATORS` allow of those that took device time; and how many operators have unreadable
    shapes. A tree is an outermost operator with all that it calls, a stretch of its thread."""
    rank, links = hot.rank, hot.links
    ops = by_thread(rank, rank.of(Category.CPU_OP))
    is_top = np.isin(ops, links.top_ops)
    first, tree_of = np.flatnonzero(is_top), np.cumsum(is_top) - 1
    texts = rank.strings.texts
    shapes = distinct(rank.input_shapes[ops]).tolist()
    bad = [at for at in shapes if at >= 0 and not _SHAPES.fullmatch(texts[at])]
    is_bad = np.isin(rank.input_shapes[ops], bad)
    by_known = hot.launched_by >= 0
    us = np.bincount(hot.launched_by[by_known], hot.device_us[by_known], minlength=len(rank))
    of_tree = np.bincount(tree_of, us[ops], minlength=len(first))
    of_tree[tree_of[is_bad]] = 0.0
    keys = np.stack([getattr(rank, name)[ops] for name in _ARGUMENTS], axis=1)
    ends = np.append(first[1:], len(ops))
    kinds: dict[bytes, list[int]] = defaultdict(list)
    for at in np.flatnonzero(of_tree > 0).tolist():
        kinds[np.ascontiguousarray(keys[first[at] : ends[at]]).tobytes()].append(at)
    example_of, room = np.full(len(first), NONE, np.int64), MAX_OPERATORS
    for same in sorted(kinds.values(), key=lambda same: -of_tree[same].sum()):
        room -= int(ends[same[0]] - first[same[0]])
        if room < 0:
            break
        example_of[same] = same[0]
    launched = np.flatnonzero(by_known & (hot.device_us > 0))
    place = np.full(len(rank), NONE, np.int64)
    place[ops] = np.arange(len(ops))
    position = place[hot.launched_by[launched]]
    known = example_of[tree_of[position]] >= 0
    launched, position = launched[known], position[known]
    tree = tree_of[position]
    example, unreadable = example_of[tree], int(np.count_nonzero(is_bad))
    if not len(launched):
        return [], unreadable
    shown = launched[tree == example]
    lowered_ops = ops[np.isin(tree_of, example)]
    beside = (links.device_launch[shown], links.device_rows[shown])
    rows = distinct(np.concatenate([lowered_ops, *beside]))
    part = take_rows(rank, rows)
    part_links = replace(link(part), recorded_frac=1.0)
    graph = with_placement(of_kineto(part, part_links, part.world_size or 1), part, part_links)
    is_hip = part.name_matches(_HIP)[part.of(Category.RUNTIME)].any()
    target: Target = device.target if device is not None else "rocm" if is_hip else "cuda"
    lowered = lower(graph, target, device=device, tf32_matmul=uses_tf32(part))
    op_of_row = np.full(len(part), NO_OP, np.int64)
    op_of_row[[op.event for op in graph.ops]] = np.arange(len(graph))
    row = ops[first[example] + position - first[tree]]
    op = op_of_row[np.searchsorted(rows, row)]
    answering = lowered.answered_by[op]
    owner = np.where(answering == NO_OP, op, answering)
    taken_us = np.bincount(owner, hot.device_us[launched], minlength=len(graph)).astype(np.float64)
    count = np.bincount(distinct_pairs(owner, tree)[0], minlength=len(graph))
    steps = max(hot.clock.count, 1)
    return _grouped_rates(lowered, device, taken_us, count, steps), unreadable


def _work_of_ops(lowered: Lowered, device: Device | None) -> tuple[Floats, Mask]:
    """`[4, ops]`: FLOP and bytes that the pieces of an op cannot do without, microseconds at peak
    rates of its pieces that are bound by arithmetic, and of those bound by memory; and which ops
    are known in all of their work, all of it the device's cores'."""
    owner, count = lowered.owner, len(lowered.graph)
    unrated = [
        piece.guessed or piece.op == UNKNOWN or OPS[piece.op].family in (COLLECTIVE, TRANSFER)
        for piece in lowered.pieces
    ]
    known = np.zeros(count, np.bool_)
    known[owner] = True
    known[owner[unrated]] = False
    chosen = np.flatnonzero(known[owner]) if len(owner) else owner
    rows = lowered.rows.take(chosen)
    work = np.zeros((4, len(rows)))
    for group in groups_of(rows):
        work[:2, group.index] = group.flop, group.moved_bytes
        if device is None:
            continue
        peaks = [
            device.matrix_tflop_per_s(dtype)
            if OPS[group.op].family in _MATRIX and dtype in DTYPES
            else device.fp32_tflop_per_s
            for dtype in group.dtypes
        ]
        compute_us = group.flop / np.array(peaks) / 1e6
        memory_us = group.moved_bytes / device.hbm_gb_per_s / 1e3
        by_compute = compute_us >= memory_us
        work[2, group.index] = np.where(by_compute, compute_us, 0.0)
        work[3, group.index] = np.where(by_compute, 0.0, memory_us)
    return np.stack([np.bincount(owner[chosen], row, minlength=count) for row in work]), known


def _grouped_rates(
    lowered: Lowered, device: Device | None, us: Floats, count: Ints, steps: int
) -> Records:
    """The ops of a graph that took time, those of one name and arguments together."""
    work, known = _work_of_ops(lowered, device)
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for at in np.flatnonzero((us > 0) & known).tolist():
        op = lowered.graph.ops[at]
        given = [tensor for tensor in op.tensors if tensor.shape]  # no scalars
        shapes = ["x".join(map(str, tensor.shape)) for tensor in given]
        if (more := len(shapes) - _MAX_SHAPES) > 0:
            shapes[_MAX_SHAPES:] = [f"and {more} more"]
        groups[op.name, " ".join(shapes), given[0].dtype if given else ""].append(at)
    result = []
    for (name, shapes_text, dtype), same in groups.items():
        flop, moved, compute_us, memory_us = (work[:, same] * count[same]).sum(axis=1) / steps
        least_us = float(compute_us + memory_us)
        row = {
            "operator": name,
            "shapes": shapes_text,
            "dtype": dtype,
            "count": float(count[same].sum()) / steps,
            "device_us": float(us[same].sum()) / steps,
            "flop": float(flop),
            "moved_bytes": float(moved),
            "roofline_us": least_us or None,
            "bound_by": ("compute" if compute_us >= memory_us else "memory") if least_us else None,
        }
        result.append(rate_of(row))
    return by_time(result)


_LIBRARY = re.compile(r"[nrhux]ccl|gloo:", re.I)
"""Kernels and annotations that are named after the collective they are."""
_SAID = (
    *("collective", "process_group", "group_size", "in_elements", "out_elements"),
    *("collective_dtype", "in_split", "out_split"),
)
"""Columns in which equal collectives are equal."""


class _Kind(NamedTuple):
    """What collectives of one kind have in common; sizes are 0 where they are not recorded."""

    key: str
    size_bytes: float = 0.0
    bus_bytes: float = 0.0


def collective_sums(hot: Hotspots) -> NamedSums:
    """By collective, process group and its size: times within the steps, and of those whose sizes
    are recorded bytes, bytes over the bus, and how long each ran in all."""
    rank, rows = hot.rank, hot.links.device_rows
    if len(rows):
        at = np.flatnonzero(rank.named(is_communication)[rows] & (hot.device_us > 0))
        # What is sent says the kernel itself, else the innermost such operator around its launch.
        rows, us, launch = rows[at], hot.device_us[at], hot.links.device_launch[at]
        said = np.where(rank.collective[rows] >= 0, rows, NONE)
        ops = rank.of(Category.CPU_OP)
        saying = Nesting(rank, ops[rank.collective[ops] >= 0])
        asked = np.flatnonzero((said < 0) & (launch >= 0))
        said[asked] = saying.innermost(launch[asked])
    else:
        notes = rank.of(Category.ANNOTATION)
        rows = notes[rank.name_matches(HOST_COLLECTIVE_NAME)[notes]]
        us = hot.clock.within_us(rank.start_us[rows], rank.end_us[rows])
        rows, us = rows[us > 0], us[us > 0]
        said = np.where(rank.collective[rows] >= 0, rows, NONE)
    records = (np.append(getattr(rank, column).astype(np.int64), NONE)[said] for column in _SAID)
    alike = np.stack([rank.name[rows], *records])
    _, first, kind = np.unique(alike, axis=1, return_index=True, return_inverse=True)
    kinds = [_kind(rank, int(rows[x]), int(said[x])) for x in first.tolist()]
    keys = {each.key: at for at, each in enumerate({each.key: each for each in kinds}.values())}
    key = np.array([keys[each.key] for each in kinds], np.int64)[kind.reshape(-1)]
    kernels = np.bincount(said[said >= 0], minlength=len(rank))  # of one call share its bytes
    share = np.where(said >= 0, 1.0 / np.maximum(kernels[said], 1), 1.0)
    size, bus = (
        np.array([getattr(each, x) for each in kinds], np.float64)[kind.reshape(-1)] * share
        for x in ("size_bytes", "bus_bytes")
    )
    ran_us = rank.duration_us[rows]
    columns = {
        "count": None,
        "device_us": us,
        "size_bytes": size,
        "sized_us": np.where(size > 0, ran_us, 0.0),
        "bus_bytes": bus,
        "bus_us": np.where(bus > 0, ran_us, 0.0),
    }
    sums = {name: summed(key, column, len(keys)) for name, column in columns.items()}
    total_us = float(hot.device_us.sum())
    return NamedSums(tuple(keys), sums, hot.clock.count, hot.clock.total_us, total_us)


def collective_rows(sums: NamedSums, most: int | None = None) -> Records:
    """Collectives per step, most time first; None where the trace does not say."""
    result = []
    for row in sums.rows(("device_us",), most):
        head, _, ranks = row["name"].rpartition("\t")
        name, _, group = head.partition("\t")
        sized = {
            key: row[bytes_] / BYTES_PER_GB / row[us] * US_PER_S if row[us] else None
            for key, bytes_, us in (
                ("algbw_gb_per_s", "size_bytes", "sized_us"),
                ("busbw_gb_per_s", "bus_bytes", "bus_us"),
            )
        }
        result.append(
            {
                "collective": name,
                "process_group": group or None,
                "group_size": int(ranks) if ranks else None,
                "count": row["count"],
                "size_bytes": row["size_bytes"] or None,
                "time_us": row["device_us"],
                "mean_us": row["device_us"] / row["count"],
                "step_frac": row["step_frac"],
                **sized,
            }
        )
    return result


def _kind(rank: RankTrace, row: int, record: int) -> _Kind:
    """What the collective in `row` is, by what `record` (-1: nothing) says of it."""
    if record == NONE:
        name = short_name(rank.text(row)).removeprefix("gloo:")
        word = collective_of(name) if _LIBRARY.search(rank.text(row)) else name
        return _Kind(f"{TABLE.get(word, word)}\t\t")
    known = of_event(rank, record)
    ranks = known.get("group_size", "") if rank.group_size[record] > 0 else ""
    key = "\t".join((known.get("collective", ""), known.get("process_group", ""), ranks))
    piece = next(iter(collective(Op("record_param_comms", attributes=known))), None)
    size_bytes = 0.0 if piece is None or piece.guessed else piece.dims["size_bytes"]
    if piece is None or size_bytes <= ONE_BYTE:
        return _Kind(key)
    dims = {name: np.array(value) for name, value in piece.dims.items()}
    bus_bytes = float(OPS[piece.op].read_bytes(dims, np.array(1.0))) if ranks else 0.0
    return _Kind(key, size_bytes, bus_bytes)
