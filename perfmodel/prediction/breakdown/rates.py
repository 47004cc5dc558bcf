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

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct, distinct_pairs
from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.hardware import Device, from_driver_name
from perfmodel.hardware.parts import Target
from perfmodel.lowering.lower import Lowered, lower
from perfmodel.lowering.observed import with_placement
from perfmodel.lowering.rules.copies import ONE_BYTE, TABLE, collective
from perfmodel.ops.graph import NO_OP, Op
from perfmodel.ops.read.arguments import collective_of, of_event
from perfmodel.ops.read.profile import of_kineto
from perfmodel.ops.spec import DTYPES, OPS
from perfmodel.ops.vocabulary.streaming import COLLECTIVE, TRANSFER, UNKNOWN
from perfmodel.plot.names import short_name
from perfmodel.prediction.breakdown.hotspots import UNFIT, Hotspots, NamedSums, summed
from perfmodel.trace.categories import HOST_COLLECTIVE_NAME, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Nesting, by_thread, link
from perfmodel.trace.window import take_rows

_MATRIX = ("matmul", "convolution", "attention")
_ARGUMENTS = ("name", "input_shapes", "input_dtypes", "input_values", "input_strides")
"""The columns in which equal calls are equal."""
_MAX_SHAPES = 4
"""Further ones, such as the numbers of ids that every step has of its own, tell no rows apart."""


def rate_sums(hot: Hotspots) -> NamedSums:
    """The work of the operators of one rank within its steps, by operator and shapes; its
    `device_us` is of all that could have a rate: communication is left out."""
    rank, device, note = hot.rank, None, ""
    ops = rank.of(Category.CPU_OP)
    if not len(hot.links.device_rows):
        return NamedSums.none("no device operations")
    if not len(ops) or (rank.input_shapes[ops] == NONE).all():
        return NamedSums.none("no shapes recorded: profile with record_shapes=True")
    if not rank.devices:
        note = "the trace names no device: no shares of a roofline"
    else:
        first = rank.devices[0]
        try:
            device = from_driver_name(first.name, first.memory_bytes or None)
        except HardwareError:
            note = f"{first.name} is not in the catalogue: no shares of a roofline"
    try:
        sums = _rated(hot, device)
    except UNFIT as error:
        said = str(error) if isinstance(error, PerfmodelError) else repr(error)
        return NamedSums.none(f"the shapes cannot be used: {said}")
    return replace(sums, device="" if device is None else device.name, note=note)


def _rated(hot: Hotspots, device: Device | None) -> NamedSums:
    """One example of each kind of call tree that took device time lowered, for the time of all of
    the kind. A tree is an outermost operator with all that it calls, a stretch of its thread."""
    rank, links = hot.rank, hot.links
    launched = np.flatnonzero((hot.launched_by >= 0) & (hot.device_us > 0))
    if not len(launched):
        return NamedSums.none()
    ops = by_thread(rank, rank.of(Category.CPU_OP))
    is_top = np.isin(ops, links.top_ops)
    first, tree_of = np.flatnonzero(is_top), np.cumsum(is_top) - 1
    place = np.full(len(rank), NONE, np.int64)
    place[ops] = np.arange(len(ops))
    position = place[hot.launched_by[launched]]
    tree, ends = tree_of[position], np.append(first[1:], len(ops))
    keys = np.stack([getattr(rank, name)[ops] for name in _ARGUMENTS], axis=1)
    kinds, example_of = dict[bytes, int](), np.full(len(first), NONE, np.int64)
    for at in distinct(tree).tolist():
        own = np.ascontiguousarray(keys[first[at] : ends[at]]).tobytes()
        example_of[at] = kinds.setdefault(own, at)
    example = example_of[tree]
    shown = launched[tree == example]
    lowered_ops = ops[np.isin(tree_of, example)]
    beside = (links.device_launch[shown], links.device_rows[shown])
    rows = distinct(np.concatenate([lowered_ops, *beside]))
    part = take_rows(rank, rows)
    part_links = replace(link(part), recorded_frac=1.0)
    graph = with_placement(of_kineto(part, part_links, part.world_size or 1), part, part_links)
    is_hip = part.name_matches(re.compile("hip"))[part.of(Category.RUNTIME)].any()
    target: Target = device.target if device is not None else "rocm" if is_hip else "cuda"
    lowered = lower(graph, target, device=device)
    op_of_row = np.full(len(part), NO_OP, np.int64)
    op_of_row[[op.event for op in graph.ops]] = np.arange(len(graph))
    row = ops[first[example] + position - first[tree]]
    op = op_of_row[np.searchsorted(rows, row)]
    answering = lowered.answered_by[op]
    owner = np.where(answering == NO_OP, op, answering)
    taken_us = np.bincount(owner, hot.device_us[launched], minlength=len(graph)).astype(np.float64)
    count = np.bincount(distinct_pairs(owner, tree)[0], minlength=len(graph))
    counted = ~rank.is_communication[links.device_rows]
    names, sums = _sums_by_shape(lowered, device, taken_us, count)
    total_us = float(hot.device_us[counted].sum())
    return NamedSums(names, sums, hot.clock.count, hot.clock.total_us, total_us)


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


def _sums_by_shape(
    lowered: Lowered, device: Device | None, us: Floats, count: Ints
) -> tuple[tuple[str, ...], dict[str, Floats]]:
    """The ops of a graph that took time, by name, shapes and dtype, apart by tabs."""
    work, known = _work_of_ops(lowered, device)
    groups: dict[str, list[int]] = defaultdict(list)
    for at in np.flatnonzero((us > 0) & known).tolist():
        op = lowered.graph.ops[at]
        given = [tensor for tensor in op.tensors if tensor.shape]  # no scalars
        shapes = ["x".join(map(str, tensor.shape)) for tensor in given]
        if (more := len(shapes) - _MAX_SHAPES) > 0:
            shapes[_MAX_SHAPES:] = [f"and {more} more"]
        dtype = given[0].dtype if given else ""
        groups[f"{op.name}\t{' '.join(shapes)}\t{dtype}"].append(at)
    table = np.vstack([count, us, work * count])
    sums = [table[:, same].sum(axis=1) for same in groups.values()]
    names = ("count", "device_us", "flop", "moved_bytes", "compute_us", "memory_us")
    columns = np.array(sums).reshape(-1, len(names)).T
    return tuple(groups), dict(zip(names, columns, strict=True))


_LIBRARY = re.compile(r"[nrhux]ccl|gloo:", re.I)
"""Kernels and annotations that are named after the collective they are."""
_SAID = (
    *("collective", "process_group", "group_size", "in_elements", "out_elements"),
    *("collective_dtype", "in_split", "out_split"),
)
"""Columns in which equal collectives are equal."""


def collective_sums(hot: Hotspots) -> NamedSums:
    """By collective, process group and its size: times within the steps, and of those whose sizes
    are recorded bytes, bytes over the bus, and how long each ran in all."""
    rank, rows = hot.rank, hot.links.device_rows
    if len(rows):
        at = np.flatnonzero(rank.is_communication[rows] & (hot.device_us > 0))
        # What is sent says the kernel itself, else the innermost such operator around its launch.
        rows, us, launch = rows[at], hot.device_us[at], hot.links.device_launch[at]
        said = np.where(rank.collective[rows] >= 0, rows, NONE)
        ops = rank.of(Category.CPU_OP)
        saying = Nesting(rank, ops[rank.collective[ops] >= 0])
        asked = np.flatnonzero((said < 0) & (launch >= 0))
        said[asked] = saying.innermost(launch[asked])
    else:
        rows = rank.of(Category.ANNOTATION, named=HOST_COLLECTIVE_NAME)
        us = hot.clock.within_us(rank.start_us[rows], rank.end_us[rows])
        rows, us = rows[us > 0], us[us > 0]
        said = np.where(rank.collective[rows] >= 0, rows, NONE)
    if not len(rows):
        return NamedSums.none()
    records = (np.append(getattr(rank, column).astype(np.int64), NONE)[said] for column in _SAID)
    alike = np.stack([rank.name[rows], *records])
    _, first, kind = np.unique(alike, axis=1, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    examples = zip(rows[first].tolist(), said[first].tolist(), strict=True)
    names, sizes, buses = zip(*(_name_and_bytes(rank, *each) for each in examples), strict=True)
    keys = {name: at for at, name in enumerate(dict.fromkeys(names))}
    key = np.array([keys[name] for name in names])[kind]
    kernels = np.bincount(said[said >= 0], minlength=len(rank))  # of one call share its bytes
    share = np.where(said >= 0, 1.0 / np.maximum(kernels[said], 1), 1.0)
    size, bus = (np.array(each, np.float64)[kind] * share for each in (sizes, buses))
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


def _name_and_bytes(rank: RankTrace, row: int, record: int) -> tuple[str, float, float]:
    """Of the collective in `row`, by what `record` (-1: nothing) says of it: collective, process
    group and its size apart by tabs, bytes and bytes over the bus (0 where they are not known)."""
    if record == NONE:
        name = short_name(rank.text(row)).removeprefix("gloo:")
        word = collective_of(name) if _LIBRARY.search(rank.text(row)) else name
        return f"{TABLE.get(word, word)}\t\t", 0.0, 0.0
    known = of_event(rank, record)
    ranks = known.get("group_size", "") if rank.group_size[record] > 0 else ""
    key = "\t".join((known.get("collective", ""), known.get("process_group", ""), ranks))
    try:
        piece = next(iter(collective(Op("record_param_comms", attributes=known))), None)
    except UNFIT:
        piece = None
    if piece is None or piece.guessed or piece.dims["size_bytes"] <= ONE_BYTE:
        return key, 0.0, 0.0
    dims = {name: np.array(value) for name, value in piece.dims.items()}
    bus_bytes = float(OPS[piece.op].read_bytes(dims, np.array(1.0))) if ranks else 0.0
    return key, piece.dims["size_bytes"], bus_bytes
