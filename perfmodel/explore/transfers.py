"""A trace on many machines at once: what `prediction.transferred` says of each, in tables.

Per op the ratio of two machines is a sum of the target's pieces over one of the source's. So each
operation of the device is a row of a sparse matrix over the distinct pieces; a family's pieces are
timed once for all machines that agree on the parts that its models use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, hstack

from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.contract import LOWERING, parts_of
from perfmodel.cost.durations import durations_of
from perfmodel.errors import TraceError
from perfmodel.explore.axes import Machines, MemoizedFigures, Points
from perfmodel.hardware import Cluster, cluster, node_of
from perfmodel.hardware.catalogue import equal_nodes
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.prediction.ratio_by_bound import carried_frac, host_ratio, transfer_ratio
from perfmodel.prediction.ratios import launches
from perfmodel.prediction.scheduled import place_collectives
from perfmodel.prediction.transferred import kernel_keys, mean_of_same_key, source_machine
from perfmodel.timeline.graph.kinds import Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace

Block = NDArray[np.float32]


@dataclass(frozen=True)
class _Term:
    """Operations whose time is a matrix product with what some pieces take."""

    rows: Ints
    """Nodes of the graph."""
    weights: csr_array
    """`[rows, pieces]`: microseconds of the operation per microsecond of the piece."""
    pieces: MemoizedFigures[Floats]

    def table_us(self, points: Points) -> tuple[Block, Ints]:
        """(microseconds `[rows, groups]`, the group of each point)."""
        answers, group = self.pieces.of(points)
        return (self.weights @ np.stack(answers, axis=1)).astype(np.float32), group


@dataclass(frozen=True)
class _Plan:
    """One way in which the trace's ops are lowered; the terms of an operation add up."""

    terms: tuple[_Term, ...]
    unexplained: Floats
    """Per operation, logarithm of measured over modelled on the source, where shapes say all."""


class TransferTables:
    """Durations of the nodes of `graph` on the machines of many points."""

    def __init__(self, trace: Trace, graph: ExecutionGraph, machines: Machines) -> None:
        """Raises `TraceError` where the trace does not name one GPU."""
        self.trace, self.graph, self.machines = trace, graph, machines
        self.source = source_machine(trace, "so no ratio to another machine is known").node.device
        self.home = cluster(self.source)
        self.rows = graph.device_span()[1]
        self.taken = graph.nodes_.duration_us[self.rows]
        self.labels = [graph.labels[row] for row in self.rows.tolist()]
        self.on_host = np.isin(graph.nodes_.scope, (Scope.HOST, Scope.ALLOCATOR))
        own_host = node_of(self.source).host
        self._host = MemoizedFigures(
            machines, lambda m: host_ratio(own_host, m.node.host), ("host.single_thread_ratio",)
        )
        self._carried = MemoizedFigures(
            machines, lambda m: carried_frac(self.source, m.node.device), ("device",)
        )
        self._plans = MemoizedFigures(machines, self._plan, LOWERING)
        try:
            self._launches = list(launches(trace, graph, self.rows))
        except TraceError:
            self._launches = []
        self._before = [each.on_source(self.home, self.taken) for each in self._launches]

    def blocks(self, points: Points, width: int) -> Iterator[tuple[Ints, Block]]:
        """(places among `points`, durations `[nodes, points]` in microseconds) of at most `width`
        points at a time."""
        plans, which = self._plans.of(points)
        for number, plan in enumerate(plans):
            own = np.flatnonzero(which == number)
            for begin in range(0, len(own), width):
                chosen = own[begin : begin + width]
                yield chosen, self._block(plan, points.take(chosen))

    def _block(self, plan: _Plan, points: Points) -> Block:
        usual = self.graph.nodes_.duration_us.astype(np.float32)
        block = np.repeat(usual[:, None], len(points), axis=1)
        ratios, group = self._host.of(points)
        block[self.on_host] *= np.array(ratios, np.float32)[group]
        block[self.rows] = 0.0
        for term in plan.terms:
            table, group = term.table_us(points)
            block[term.rows] += table[:, group]
        carried, group = self._carried.of(points)
        left = (1.0 - np.array(carried, np.float32))[group]
        lost = np.flatnonzero(plan.unexplained)
        block[self.rows[lost]] *= np.exp(-plan.unexplained[lost, None].astype(np.float32) * left)
        return block

    def _plan(self, machine: Cluster) -> _Plan:
        weights = coo_array((len(self.rows), 0)).tocsr()
        rows: list[Rows] = []
        unexplained = np.full(len(self.rows), np.nan)
        for launched, before in zip(self._launches, self._before, strict=True):
            pieces = launched.pieces_on(machine)
            there = pieces.by_op(np.ones(len(pieces.owner)))
            data, at, column = [], [], []
            for row, op, kind in launched.operations():
                chosen = before.compared(op, kind, there)
                if chosen is not None:
                    counted = pieces.counted(chosen)
                    column += counted.tolist()
                    at += [row] * len(counted)
                    data += [1.0 / chosen.sum_us(before.modelled)] * len(counted)
                    unexplained[row] = before.unexplained_log(chosen)
            shape = (len(self.rows), len(pieces.owner))
            weights = hstack([weights, coo_array((data, (at, column)), shape)], format="csr")
            rows.append(pieces.rows)
        known = np.diff(weights.indptr) > 0
        weights = _with_same_key_means(self, weights, known)
        by_model = np.diff(weights.indptr) > 0
        weights = csr_array(weights * self.taken[:, None])
        terms = list(self._terms(weights, rows))
        if not by_model.all():
            terms.append(self._roofline(np.flatnonzero(~by_model)))
        key = kernel_keys(self.trace, self.graph, self.rows)
        alike = mean_of_same_key(key, unexplained, self.taken)
        unexplained = np.where(np.isnan(unexplained), alike, unexplained)
        return _Plan(tuple(terms), np.nan_to_num(unexplained))

    def _terms(self, weights: csr_array, rows: list[Rows]) -> Iterator[_Term]:
        """One per family of pieces, each distinct piece once."""
        keys, column = _distinct(rows)
        families: dict[str, list[int]] = {}
        for place, record in enumerate(keys):
            families.setdefault(OPS[record["op"]].family, []).append(place)
        merged = weights @ coo_array(
            (np.ones(len(column)), (np.arange(len(column)), column)), (len(column), len(keys))
        )
        for family, places in families.items():
            own = merged.tocsc()[:, places].tocsr()
            used = np.flatnonzero(np.diff(own.indptr) > 0)
            if len(used):
                time_us = partial(_time_us, Rows.of([keys[place] for place in places]))
                pieces = MemoizedFigures(self.machines, time_us, parts_of(family))
                yield _Term(self.rows[used], own[used], pieces)

    def _roofline(self, at: Ints) -> _Term:
        """Operations that no model knows: the ratio of their class, by their names."""
        labels = [self.labels[row] for row in at.tolist()]
        families, dtypes = families_of_kernels(labels), dtypes_of_kernels(labels)
        taken = self.taken[at]

        def ratio(machine: Cluster) -> Floats:
            device = equal_nodes(machine, "a trace").node.device
            return transfer_ratio(families, dtypes, self.source, device, duration_us=taken)

        weights = coo_array((taken, (np.arange(len(at)), np.arange(len(at))))).tocsr()
        return _Term(self.rows[at], weights, MemoizedFigures(self.machines, ratio, ("device",)))


def _time_us(rows: Rows, machine: Cluster) -> Floats:
    """What pieces take on a machine."""
    return durations_of(place_collectives(rows, machine), machine).duration_us


def _with_same_key_means(
    transfers: TransferTables, weights: csr_array, known: NDArray[np.bool_]
) -> csr_array:
    """Rows that no op is known of, as means of those of the same rank, name and grid, or name."""
    key = kernel_keys(transfers.trace, transfers.graph, transfers.rows)
    weight = np.maximum(transfers.taken, 1e-9)
    for width in (3, 2):
        group = np.unique(key[:, :width], axis=0, return_inverse=True)[1].reshape(-1)
        total = np.bincount(group, weight * known, minlength=group.max(initial=-1) + 1)
        lacks = np.flatnonzero((np.diff(weights.indptr) == 0) & (total[group] > 0))
        if not len(lacks):
            continue
        members = np.flatnonzero(known)
        of_group = coo_array(
            (weight[members] / total[group[members]], (group[members], members)),
            (len(total), len(known)),
        ).tocsr()
        places = coo_array(
            (np.ones(len(lacks)), (lacks, group[lacks])), (len(known), len(total))
        ).tocsr()
        weights = csr_array(weights + places @ of_group @ csr_array(weights))
    return weights


def _distinct(parts: list[Rows]) -> tuple[list[dict[str, Any]], Ints]:
    """Distinct rows as records, and for each row of all parts in turn which of them it is."""
    place: dict[tuple[Any, ...], int] = {}
    records: list[dict[str, Any]] = []
    column = []
    for rows in parts:
        names = list(rows.dims)
        values = np.array([rows.dims[name] for name in names]).reshape(len(names), len(rows))
        texts = zip(rows.op, rows.dtype, rows.direction, rows.timing, strict=True)
        for at, (op, dtype, direction, timing) in enumerate(texts):
            dims = {n: v for n, v in zip(names, values[:, at].tolist(), strict=True) if v == v}
            record = {"op": op, "dtype": dtype, "direction": direction, "timing": timing, **dims}
            key = tuple(sorted(record.items()))
            if key not in place:
                place[key] = len(records)
                records.append(record)
            column.append(place[key])
    return records, np.array(column, np.int64)
