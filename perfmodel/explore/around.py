"""Points around one: what a sweep's input is at a base point, and with single axes moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.errors import UsageError
from perfmodel.explore.axes import TABLE, Range, Space
from perfmodel.explore.evaluate import evaluation_of
from perfmodel.explore.machines import HARDWARE, Machines
from perfmodel.explore.points import Points
from perfmodel.explore.spec import Spec
from perfmodel.hardware.reads import values_of
from perfmodel.trace.columns import Floats


def base_of(spec: Spec) -> dict[str, Any]:
    """The value of every axis at the point that others are compared with.

    What `[at]` says; else of a figure the hardware's own, else the first value. Raises `UsageError`
    for an `[at]` that names no axis.
    """
    for name in spec.at:
        if name not in spec.space.axes:
            raise UsageError(f"{spec.where}: at.{name} is none of the axes")
    found = {axis: values[0] for axis, values in spec.space.values.items()} | dict(spec.at)
    if spec.hardware is not None or HARDWARE in found:
        named = {axis: found[axis] for axis in (HARDWARE,) if axis in found}
        machines = Machines({axis: [value] for axis, value in named.items()}, base=spec.hardware)
        own = values_of(machines.at(named))
        for axis in spec.space.axes:
            if axis not in spec.at and is_number(own.get(axis)):
                found[axis] = own[axis]
    return found


def figures_at(spec: Spec, rows: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """The objectives of any points of the axes. Raises `PerfmodelError` where one cannot be."""
    columns = {axis: tuple(row[axis] for row in rows) for axis in spec.space.axes}
    evaluate = evaluation_of(replace(spec, space=Space(columns, TABLE)))
    return evaluate(Points.of(columns))


def numeric_axes(spec: Spec, base: Mapping[str, Any]) -> list[str]:
    """Axes that can be moved a little. Raises `UsageError` where there is none."""
    found = [axis for axis in spec.space.axes if is_number(base[axis])]
    if not found:
        raise UsageError(f"{spec.where}: no axis has numbers")
    return found


def bounds_of(spec: Spec, axis: str) -> tuple[float, float, bool]:
    """(least, largest, whole numbers only) of a numeric axis."""
    found = spec.space.axes.get(axis)
    if found is None:
        raise UsageError(f"{spec.where}: no axis {axis}; expected {', '.join(spec.space.axes)}")
    if isinstance(found, Range):
        return found.low, found.high, found.whole
    if not found or not all(is_number(value) for value in found):
        raise UsageError(f"{spec.where}: axis {axis} has no numbers")
    return min(found), max(found), all(isinstance(value, int) for value in found)


def is_number(value: Any) -> bool:
    """Whether a value can be moved a little."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
