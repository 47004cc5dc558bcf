"""The operators of a profile that have a rate: what each is lowered to, beside its kernels' time.

Only work with shapes counts: FLOP and bytes are those that the vocabulary gives for what an
operator is lowered to, and its time is that of the kernels that were launched for it.

Calls of one operator repeat: of each kind of call tree one is lowered, and its work stands beside
the time of all of the kind.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, distinct, distinct_pairs
from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.errors import HardwareError
from perfmodel.hardware import Device, from_driver_name
from perfmodel.lowering.lower import Lowered, lower
from perfmodel.lowering.observed import uses_tf32, with_placement
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.walk import Target
from perfmodel.ops.dtypes import DTYPES
from perfmodel.ops.graph import NO_OP, Op
from perfmodel.ops.read.profile import of_kineto
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import UNKNOWN
from perfmodel.ops.vocabulary.movement import COLLECTIVE, TRANSFER
from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.rates import Rate, Rates, by_time
from perfmodel.trace.categories import Category, is_communication
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import by_thread, link
from perfmodel.trace.window import take_rows


def rates(hot: Hotspots) -> Rates:
    """The rates of the operators of one rank within its steps.

    Raises `PerfmodelError` where the shapes cannot be used.
    """
    device, rows, notes = _rated(hot)
    counted = ~hot.rank.named(hot.links.device_rows, is_communication)
    total_us = float(hot.device_us[counted].sum()) / max(hot.clock.count, 1)
    rated_us = sum(row.device_us for row in rows)
    return Rates(tuple(rows), device, rated_us / total_us if total_us else 0.0, "; ".join(notes))


def _rated(hot: Hotspots) -> tuple[str, list[Rate], list[str]]:
    """The catalogue's name of the rank's device ('' where it has none), the rates of operators,
    most time first, and notes on what is missing."""
    device, notes = None, []
    if not hot.rank.devices:
        notes.append("the trace names no device: no shares of a roofline")
    else:
        first = hot.rank.devices[0]
        try:
            device = from_driver_name(first.name, first.memory_bytes or None)
        except HardwareError:
            notes.append(f"{first.name} is not in the catalogue: no shares of a roofline")
    trees = CallTrees.of(hot)
    if trees.unreadable:
        notes.append(f"{trees.unreadable} operators left out whose shapes are not numbers")
    return "" if device is None else device.name, rated_rows(hot, trees, device), notes


MAX_OPERATORS = 2000
"""Of all kinds of call tree together: those with most device time are looked at."""
_MATRIX = ("matmul", "convolution", "attention")
_ARGUMENTS = ("name", "input_shapes", "input_dtypes", "input_values", "input_strides")
"""The columns in which equal calls are equal."""
_SHAPES = re.compile(r"[\[\]\d,\s-]*")
"""`Input Dims` of numbers alone."""
_HIP = re.compile("hip")
_MAX_SHAPES = 4


@dataclass(frozen=True)
class CallTrees:
    """Outermost operators with all that they call, those of equal names and arguments as one kind.

    Operators stand by thread, then time, so that each tree is a stretch of them.
    """

    ops: Ints
    """Rows of all operators."""
    tree: Ints
    """Per operator: its tree."""
    first: Ints
    """Per tree: position in `ops` of its outermost operator."""
    example: Ints
    """Per tree: the first one of its kind, or -1 where it is not looked at."""
    unreadable: int

    @classmethod
    def of(cls, hot: Hotspots) -> CallTrees:
        """The kinds of tree that took device time, as many as `MAX_OPERATORS` allow."""
        rank = hot.rank
        ops = by_thread(rank, rank.of(Category.CPU_OP))
        is_top = np.zeros(len(rank), np.bool_)
        is_top[hot.links.top_ops] = True
        first = np.flatnonzero(is_top[ops])
        tree = np.cumsum(is_top[ops]) - 1
        texts = rank.strings.texts
        shapes = distinct(rank.input_shapes[ops])
        bad = [at for at in shapes.tolist() if at >= 0 and not _SHAPES.fullmatch(texts[at])]
        is_bad = np.isin(rank.input_shapes[ops], bad)
        us = np.zeros(len(rank))
        launched = hot.launched_by >= 0
        np.add.at(us, hot.launched_by[launched], hot.device_us[launched])
        of_tree = np.bincount(tree, us[ops], minlength=len(first))
        of_tree[tree[is_bad]] = 0.0
        keys = np.stack([getattr(rank, name)[ops] for name in _ARGUMENTS], axis=1)
        ends = np.append(first[1:], len(ops))
        kinds: dict[bytes, list[int]] = {}
        for at in np.flatnonzero(of_tree > 0).tolist():
            key = np.ascontiguousarray(keys[first[at] : ends[at]]).tobytes()
            kinds.setdefault(key, []).append(at)
        example = np.full(len(first), NONE, np.int64)
        room = MAX_OPERATORS
        for same in sorted(kinds.values(), key=lambda same: -of_tree[same].sum()):
            room -= int(ends[same[0]] - first[same[0]])
            if room < 0:
                break
            example[same] = same[0]
        return cls(ops, tree, first, example, int(np.count_nonzero(is_bad)))


def rated_rows(hot: Hotspots, trees: CallTrees, device: Device | None) -> list[Rate]:
    """One example of each kind of tree lowered, beside the time of all of the kind."""
    rank, links = hot.rank, hot.links
    launched = np.flatnonzero((hot.launched_by >= 0) & (hot.device_us > 0))
    place = np.full(len(rank), NONE, np.int64)
    place[trees.ops] = np.arange(len(trees.ops))
    position = place[hot.launched_by[launched]]
    tree = trees.tree[position]
    example = trees.example[tree]
    launched, position, tree = (x[example >= 0] for x in (launched, position, tree))
    example = example[example >= 0]
    if not len(launched):
        return []
    examples = distinct(example)
    ops = trees.ops[np.isin(trees.tree, examples)]
    shown = launched[tree == example]
    rows = distinct(np.concatenate([ops, links.device_launch[shown], links.device_rows[shown]]))
    part = take_rows(rank, rows)
    part_links = replace(link(part), recorded_frac=1.0)
    graph = with_placement(of_kineto(part, part_links, part.world_size or 1), part, part_links)
    is_hip = part.name_matches(_HIP)[part.of(Category.RUNTIME)].any()
    target: Target = device.target if device is not None else "rocm" if is_hip else "cuda"
    lowered = lower(graph, target, device=device, tf32_matmul=uses_tf32(part))
    work = _OperatorWork.of(lowered, device)
    op_of_row = np.full(len(part), NO_OP, np.int64)
    op_of_row[[op.event for op in graph.ops]] = np.arange(len(graph))
    row = trees.ops[trees.first[example] + position - trees.first[tree]]
    op = op_of_row[np.searchsorted(rows, row)]
    answering = lowered.answered_by[op]
    owner = np.where(answering == NO_OP, op, answering)
    us = np.bincount(owner, hot.device_us[launched], minlength=len(graph)).astype(np.float64)
    count = np.bincount(distinct_pairs(owner, tree)[0], minlength=len(graph))
    return _grouped_rates(lowered, work, us, count, max(hot.clock.count, 1))


@dataclass(frozen=True)
class _OperatorWork:
    """Per op of a graph: what its pieces cannot do without, and how long a device needs for it."""

    flop: Floats
    moved_bytes: Floats
    compute_us: Floats
    """Of pieces that are bound by arithmetic, the time at the peak rate; else 0."""
    memory_us: Floats
    is_known: Mask
    """Ops all of whose work is known, and is work of the device's cores."""

    @classmethod
    def of(cls, lowered: Lowered, device: Device | None) -> _OperatorWork:
        pieces, owner = lowered.pieces, lowered.owner
        known = np.zeros(len(lowered.graph), np.bool_)
        known[owner] = True
        known[owner[[not _is_rated(piece) for piece in pieces]]] = False
        chosen = np.flatnonzero(known[owner]) if len(owner) else owner
        rows = lowered.rows.take(chosen)
        flop, moved, compute, memory = np.zeros((4, len(rows)))
        for group in groups_of(rows):
            at = group.index
            flop[at], moved[at] = group.flop, group.moved_bytes
            if device is not None:
                on_matrix_units = OPS[group.op].family in _MATRIX
                peak = [
                    device.matrix_tflop_per_s(dtype)
                    if on_matrix_units and dtype in DTYPES
                    else device.fp32_tflop_per_s
                    for dtype in group.dtypes
                ]
                compute[at] = group.flop / np.array(peak) / 1e6
                memory[at] = group.moved_bytes / device.hbm_gb_per_s / 1e3
        bound = compute >= memory

        def summed(values: Floats) -> Floats:
            result = np.bincount(owner[chosen], values, minlength=len(lowered.graph))
            return result.astype(np.float64)

        return cls(
            summed(flop),
            summed(moved),
            summed(np.where(bound, compute, 0.0)),
            summed(np.where(bound, 0.0, memory)),
            known,
        )


def _is_rated(piece: Piece) -> bool:
    return (
        not piece.guessed
        and piece.op != UNKNOWN
        and OPS[piece.op].family not in (COLLECTIVE, TRANSFER)
    )


def _grouped_rates(
    lowered: Lowered, work: _OperatorWork, us: Floats, count: Ints, steps: int
) -> list[Rate]:
    """The ops of a graph that took time, those of one name and arguments together."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for at in np.flatnonzero((us > 0) & work.is_known).tolist():
        op = lowered.graph.ops[at]
        dtype = next((tensor.dtype for tensor in op.tensors if tensor.shape), "")
        groups[op.name, _shapes_of(op), dtype].append(at)
    result = []
    for (name, shapes, dtype), same in groups.items():
        calls = count[same]
        compute = float((work.compute_us[same] * calls).sum())
        memory = float((work.memory_us[same] * calls).sum())
        has_peaks = compute + memory > 0
        result.append(
            Rate(
                operator=name,
                shapes=shapes,
                dtype=dtype,
                count=float(calls.sum()) / steps,
                device_us=float(us[same].sum()) / steps,
                flop=float((work.flop[same] * calls).sum()) / steps,
                moved_bytes=float((work.moved_bytes[same] * calls).sum()) / steps,
                roofline_us=(compute + memory) / steps if has_peaks else None,
                bound_by=("compute" if compute >= memory else "memory") if has_peaks else None,
            )
        )
    return by_time(result)


def _shapes_of(op: Op) -> str:
    """`512x1024 1024x4096`: the tensors that it was given, scalars left out."""
    shapes = ["x".join(map(str, tensor.shape)) for tensor in op.tensors if tensor.shape]
    more = len(shapes) - _MAX_SHAPES
    return " ".join([*shapes[:_MAX_SHAPES], *([f"and {more} more"] if more > 0 else [])])
