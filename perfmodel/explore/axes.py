"""Axes of a sweep, its points (a full grid, or a table), and their machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.errors import HardwareError, UsageError
from perfmodel.hardware import KINDS, Cluster, Device, Part, cluster, load, node_of, with_settings
from perfmodel.hardware.schema import InconsistentError, figure_values

MAX_POINTS = 10**7
"""Of a sweep, whose rows are all held."""


@dataclass(frozen=True)
class Points:
    """`n` points; per axis the distinct values, and which of them each point has."""

    values: Mapping[str, Sequence[Any]]
    code: Mapping[str, Ints]
    count: int

    def __len__(self) -> int:
        return self.count

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]]) -> Points:
        """From a column of values per axis, all of one length; an empty mapping is one point."""
        values: dict[str, Sequence[Any]] = {}
        code: dict[str, Ints] = {}
        for axis, column in columns.items():
            place: dict[Any, int] = {}
            marks = [place.setdefault((type(each), each), len(place)) for each in column]
            values[axis] = [each for _, each in place]
            code[axis] = np.array(marks, np.int64)
        return cls(values, code, len(next(iter(columns.values()))) if columns else 1)

    @classmethod
    def grid(cls, axes: Mapping[str, Sequence[Any]]) -> Points:
        """Every combination of the axes' values, the last axis fastest. Raises `UsageError` for
        more than `MAX_POINTS`."""
        values = {axis: list(dict.fromkeys(each)) for axis, each in axes.items()}
        count = prod(map(len, values.values()))
        if count > MAX_POINTS:
            raise UsageError(f"a grid of {count:,} points: expected at most {MAX_POINTS:,}")
        number, code = np.arange(count), dict[str, Ints]()
        for axis in reversed(values):
            number, code[axis] = np.divmod(number, max(len(values[axis]), 1))
        return cls(values, {axis: code[axis] for axis in values}, count)

    def take(self, index: Ints) -> Points:
        return Points(self.values, {a: code[index] for a, code in self.code.items()}, len(index))

    def at(self, point: int) -> dict[str, Any]:
        return {axis: self.values[axis][code[point]] for axis, code in self.code.items()}

    def column(self, axis: str) -> list[Any]:
        values = self.values[axis]
        return [values[at] for at in self.code[axis].tolist()]

    def groups(self, axes: Sequence[str]) -> tuple[list[tuple[Any, ...]], Ints, Ints]:
        """(values of `axes` per group of points that share them, the first point of each, which
        group each point is in)."""
        joined = np.zeros(self.count, np.int64)
        for axis in axes:
            pair = joined * len(self.values[axis]) + self.code[axis]
            joined = np.unique(pair, return_inverse=True)[1].reshape(-1).astype(np.int64)
        first = np.unique(joined, return_index=True)[1].astype(np.int64)
        keys = [
            tuple(self.values[axis][self.code[axis][at]] for axis in axes) for at in first.tolist()
        ]
        return keys, first, joined


def name_of(value: Any) -> str:
    """A text as it is, a list as JSON, a trace by its source, a workload or a part by its name."""
    if isinstance(value, (str, int, float, tuple)):
        return value if isinstance(value, str) else json.dumps(value)
    return str(getattr(value, "source", None) or value.name)


def whole_number(axis: str, value: Any) -> int:
    """A value of an axis of counts, which a table may hold as a float; `UsageError` for a part."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value % 1:
        raise UsageError(f"axis {axis}: expected a whole number, got {str(value)[:30]!r}")
    return int(value)


HARDWARE, NODES = "hardware", "nodes"
_PROBES = 3
"""Values of a numeric axis that are looked at for which figures it changes."""
_MAX_REMEMBERED = 20_000

T = TypeVar("T")


def is_axis(name: str) -> bool:
    """Whether an axis of that name is one of machines."""
    return name in (HARDWARE, NODES) or name.partition(".")[0] in KINDS


@dataclass(frozen=True)
class Machines:
    """The machine of each point: `base` (name, file, part), unless an axis `hardware` names it.

    Axes `KIND.KEY` set figures and parts as `--set` does, `nodes` how many equal nodes. With
    `alone`, a device by itself is one rank, as for workloads.
    """

    axes: Mapping[str, Sequence[Any]]
    """Name to the values that occur, or to the ends of a range."""
    base: str | Part | None = None
    alone: bool = False
    affected: Mapping[str, frozenset[str]] = field(init=False, compare=False)
    """Per axis, the figures that it changes, by key."""
    _made: dict[tuple[Any, ...], Cluster] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "affected", {axis: self._affected(axis) for axis in self.axes})

    @property
    def usual(self) -> dict[str, Any]:
        return {axis: values[0] for axis, values in self.axes.items()}

    def remembered(self, values: Mapping[str, Any]) -> Cluster:
        """`at`, built once while not too many others come between."""
        key = tuple(values[axis] for axis in self.axes)
        if key not in self._made:
            if len(self._made) >= _MAX_REMEMBERED:
                self._made.clear()
            self._made[key] = self.at(values)
        return self._made[key]

    def at(self, values: Mapping[str, Any]) -> Cluster:
        """The machine with the values of its axes. Raises `HardwareError` that names the axis."""
        changes = {axis: values[axis] for axis in self.axes if axis in values}
        named = changes.pop(HARDWARE, self.base)
        if named is None:
            raise UsageError("no machine: name one as hardware, or make it an axis")
        if not isinstance(named, (str, Part)):
            raise UsageError(f"axis {HARDWARE}: expected names or files, got {str(named)[:30]}")
        nodes = changes.pop(NODES, None)
        part = named if isinstance(named, Part) else load(named)
        settings = [
            f"{axis}={value!r}" if isinstance(value, float) else f"{axis}={value}"
            for axis, value in changes.items()
        ]
        if isinstance(part, Device) and self.alone:
            part = replace(node_of(part), gpus=1)
        try:
            machine = cluster(part, None if nodes is None else whole_number(NODES, nodes))
            changed = with_settings(machine, settings)
        except HardwareError as error:
            raise type(error)(error.args[0].replace("--set", "axis", 1)) from None
        if not isinstance(part, Device):
            return changed
        node = replace(changed.node, name=changed.node.device.name)
        return replace(changed, node=node)

    def _affected(self, axis: str) -> frozenset[str]:
        values = list(dict.fromkeys(self.axes[axis]))
        if len(values) > _PROBES and all(isinstance(value, (int, float)) for value in values):
            values = [min(values), values[len(values) // 2], max(values)]
        every: list[dict[str, Any]] = []
        for value in values:
            try:
                every.append(figure_values(self.at({**self.usual, axis: value})))
            except HardwareError as error:
                if value == values[-1] and not every:
                    raise
                if not isinstance(error, InconsistentError):
                    raise
        keys = {name for each in every for name in each}
        changed = {n for n in keys if any(each.get(n) != every[0].get(n) for each in every)}
        if len(every) < len(values):
            changed |= {axis} if axis in keys else keys
        return frozenset(changed)


MUST_FIT = (
    *("cluster", "node", "nic", "storage"),
    *("device.l2_bytes", "device.hbm_bytes", "device.base_mhz", "device.boost_mhz"),
    *("device.pcie_gb_per_s", "device.target"),
)
"""What `hardware.schema.consistent` looks at: a machine is built for each value of these."""


@dataclass
class MemoizedFigures(Generic[T]):
    """What `evaluate` says of machines, asked once for all that agree on the `parts` it uses: kinds
    of parts (`link`) and single figures (`device.tdp_w`)."""

    machines: Machines
    evaluate: Callable[[Cluster], T]
    parts: Collection[str]
    _answers: dict[tuple[Any, ...], T] = field(default_factory=dict)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Those that change one of the parts."""
        return tuple(
            axis
            for axis, changed in self.machines.affected.items()
            if any(key in self.parts or key.partition(".")[0] in self.parts for key in changed)
        )

    def of(self, points: Points) -> tuple[list[T], Ints]:
        """(one answer per group of points that agree, the group of each point)."""
        keys, first, group = points.groups(self.axes)
        if len(self._answers) > max(_MAX_REMEMBERED, 2 * len(keys)):
            self._answers.clear()
        for key, at in zip(keys, first.tolist(), strict=True):
            if key not in self._answers:
                self._answers[key] = self.evaluate(self._machine(key, points, at))
        return [self._answers[key] for key in keys], group

    def _machine(self, key: tuple[Any, ...], points: Points, at: int) -> Cluster:
        """One of the group's: other axes have their first values, or those of a point of the group
        where the first values make no machine."""
        try:
            return self.machines.remembered(
                self.machines.usual | dict(zip(self.axes, key, strict=True))
            )
        except HardwareError:
            return self.machines.remembered(points.at(at))
