"""Device work of a graph by step, and its durations predicted from the other steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.graph.types import ExecutionGraph
from perfmodel.ops.families import families_of_kernels
from perfmodel.prediction.leave_out import step_of_nodes
from perfmodel.trace.columns import Floats, Ints, codes
from perfmodel.validate.types import Kind, Row, rows_of


@dataclass(frozen=True)
class DeviceWork:
    """Kernels, copies and collectives within steps; one element per operation."""

    node: Ints
    step: Ints
    rank: Ints
    """Index of its rank."""
    families: tuple[str, ...]
    family: Ints
    """Index into `families`."""
    duration_us: Floats
    groups: tuple[Ints, ...]
    """Per level, finest first: operations of one group stand in for one another."""

    @classmethod
    def of(cls, graph: ExecutionGraph) -> DeviceWork:
        """The device work of all ranks."""
        node = graph.device_span()[1]
        step = step_of_nodes(graph)[node]
        marks = graph.marks
        ranks, rank = np.unique(graph.nodes_.rank[node], return_inverse=True)
        end_us = graph.nodes_.end_us[marks.end].reshape(-1, _steps(graph))
        row = np.searchsorted(np.unique(marks.rank), ranks)[rank]
        inside = (step >= 0) & (graph.nodes_.start_us[node] < end_us[row, step])
        node, step, row = node[inside], step[inside], row[inside]
        labels = [graph.labels[n] for n in node]
        label = codes(labels)
        names = families_of_kernels(labels)
        families = tuple(sorted(set(names)))
        family = np.array([families.index(name) for name in names], np.int64)
        nth = _nth(graph.nodes_.start_us[node], row, step, label)
        groups = (_joined(row, label, nth), _joined(row, label), _joined(row, family))
        duration = graph.nodes_.duration_us[node]
        return cls(node, step, row, families, family, duration, groups)

    def predicted_us(self, step: int, teachers: Ints) -> Floats:
        """Per operation of `step`: the mean duration of its finest group among `teachers` (steps).

        The n-th launch of a kernel in its step learns from the n-th, else from all of its name,
        else from all of its family; nan where no teacher has any.
        """
        own, taught = self.step == step, np.isin(self.step, teachers)
        found = np.full(int(own.sum()), np.nan)
        for group in self.groups:
            size = int(group.max()) + 1 if len(group) else 0
            count = np.bincount(group[taught], minlength=size)
            total = np.bincount(group[taught], self.duration_us[taught], minlength=size)
            with np.errstate(invalid="ignore"):
                mean = (total / count)[group[own]]
            found = np.where(np.isnan(found), mean, found)
        return np.where(np.isnan(found), self._mean_us(taught), found)

    def _mean_us(self, rows: np.ndarray) -> float:
        return float(self.duration_us[rows].mean()) if rows.any() else float("nan")


def family_rows(trace: str, work: DeviceWork, steady: Ints, held: Ints) -> list[Row]:
    """Per kernel family: errors of its device time per rank and held step."""
    if not len(work.node) or len(steady) < 2:
        return []
    size = (int(work.rank.max()) + 1, len(work.families))
    sums: list[tuple[Floats, Floats]] = []
    for step in held.tolist():
        own = work.step == step
        cell = work.rank[own] * size[1] + work.family[own]
        predicted = work.predicted_us(step, np.setdiff1d(steady, [step]))
        sums.append((_sums(cell, predicted, size), _sums(cell, work.duration_us[own], size)))
    predicted, true = (np.stack(side) for side in zip(*sums, strict=True))
    rows = []
    for at, family in enumerate(work.families):
        rows += rows_of(trace, Kind.FAMILY, family, predicted[..., at], true[..., at])
    return rows


def _sums(cell: Ints, us: Floats, size: tuple[int, int]) -> Floats:
    total = np.bincount(cell, us, minlength=size[0] * size[1])
    return total.astype(np.float64).reshape(size)


def _steps(graph: ExecutionGraph) -> int:
    return len(graph.marks.name) // len(np.unique(graph.marks.rank))


def _joined(*columns: Ints) -> Ints:
    if not len(columns[0]):
        return columns[0]
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def _nth(start_us: Floats, rank: Ints, step: Ints, label: Ints) -> Ints:
    """Per operation: how many of its name came before it in its step."""
    found = np.zeros(len(start_us), np.int64)
    seen: dict[tuple[int, int, int], int] = {}
    for row in np.argsort(start_us, kind="stable").tolist():
        key = (int(rank[row]), int(step[row]), int(label[row]))
        found[row] = seen[key] = seen.get(key, -1) + 1
    return found
