"""A workload at each point: its own settings, its design and that one's settings, its machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.designs import DESIGNS, Deployment, deployment_of
from perfmodel.designs.composed import PLUS, Composed, composed
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore.axes import HARDWARE, Machines, Points, is_axis, whole_number
from perfmodel.explore.planner.document import read_plan
from perfmodel.explore.planner.planned import ESTIMATORS, plan_deployment
from perfmodel.explore.spec import Spec, figures, running_figures
from perfmodel.hardware.reads import FigureRead
from perfmodel.prediction import predict
from perfmodel.prediction.compare import activity_of, fastest
from perfmodel.prediction.running_cost import operating_costs
from perfmodel.prediction.types import Result
from perfmodel.workload import Workload, load_workload

NAME, BATCH, DESIGN, OF_WORKLOAD, DOT = "workload", "batch", "design", "workload.", "."
PLAN, SHARDING, SAVED = "plan", "implementation.sharding", ".json"
"""An axis `plan` is one of the workload's ways to shard its tables, a planner, or a saved plan."""


class WorkloadFigures:
    """A workload predicted from shapes at every point, one by one."""

    def __init__(self, spec: Spec) -> None:
        """Raises `PerfmodelError` for axes that name nothing."""
        self.spec, self.columns = spec, spec.objectives
        values = spec.space.values
        own = {axis: each for axis, each in values.items() if is_axis(axis)}
        if spec.hardware is None and HARDWARE not in own:
            raise UsageError(f"{spec.where}: hardware is missing: give it as a key or an axis")
        self.machines = Machines(own, base=spec.hardware, alone=True)
        usual = {axis: each[0] for axis, each in values.items()}
        for axis, each in values.items():
            self._require(axis)
            if axis not in own:
                self._require_one([{**usual, axis: value} for value in each])

    def __call__(self, points: Points) -> dict[str, Floats]:
        columns: dict[tuple[Any, ...], dict[str, float]] = {}
        rows = []
        for point in range(len(points)):
            values = self._acting(points.at(point))
            key = tuple(values.items())
            if key not in columns:
                result, start = self._predicted(values)
                told = figures(
                    self.columns,
                    np.array([result.step_us]),
                    start.batch,
                    operating_costs(start.machine, self.spec.prices),
                    activity_of(result, start),
                )
                columns[key] = {name: float(each[0]) for name, each in told.items()}
            rows.append(columns[key])
        return {name: np.array([row[name] for row in rows]) for name in self.columns}

    def _acting(self, values: dict[str, Any]) -> dict[str, Any]:
        """Without settings of designs that are not the point's."""
        names = (values.get(DESIGN, self.spec.design) or "").split(PLUS)
        idle = {name for name in DESIGNS if name not in [each.strip() for each in names]}
        return {axis: v for axis, v in values.items() if axis.partition(DOT)[0] not in idle}

    def reads(self, point: Points) -> tuple[FigureRead, ...]:
        """Of the point's prediction, and what the running of its machine costs."""
        values = self._acting(point.at(0))
        result, start = self._predicted(values)
        return tuple(dict.fromkeys((*result.reads, *running_figures(self.columns, start.machine))))

    def _predicted(self, values: Mapping[str, Any]) -> tuple[Result, Deployment]:
        """The step of a point, and what is deployed there."""
        workload, design = self._workload(values), self._designed(values)
        batch = whole_number(BATCH, values.get(BATCH, workload.batch))
        machine = self.machines.at(values)
        train = self.spec.training
        start = deployment_of(workload, machine, batch, train=train)
        plan = _planner(values.get(PLAN))
        if design is None and plan is None:
            result = predict(workload, hardware=[machine], batch=batch, train=train)
        else:
            start = start if plan is None else _planned(start, plan)
            if design is None:
                result = predict(start)
            else:
                start, result = fastest(design, start)
        return result.results[0], start

    def _require_one(self, several: list[dict[str, Any]]) -> None:
        """Values that go with nothing are an error; those that only some go with, of points."""
        errors = []
        for values in several:
            try:
                self._workload(values)
                self._designed(self._acting(values))
            except PerfmodelError as error:
                errors.append(error)
        if len(errors) == len(several):
            raise errors[0]

    def _require(self, axis: str) -> None:
        first, dot, key = axis.partition(DOT)
        known = axis in (NAME, BATCH, DESIGN, PLAN) or is_axis(axis)
        if not known and not (dot and (first in (NAME, DESIGN) or first in DESIGNS)):
            raise UsageError(
                f"axis {axis} names nothing: expected hardware, nodes, KIND.KEY, workload, "
                "workload.KEY, batch, plan, design, design.KEY or DESIGN.KEY"
            )
        for value in self.spec.space.values[axis] if axis == DESIGN else ():
            if not isinstance(value, str):
                raise UsageError(f"axis {DESIGN}: expected names of designs, got {value!r}")
        if first not in DESIGNS:
            return
        texts = self.spec.space.values.get(DESIGN, [self.spec.design or ""])
        if not any(first in [name.strip() for name in str(text).split(PLUS)] for text in texts):
            raise UsageError(f"axis {axis}: {first} is not among the sweep's designs")
        for value in self.spec.space.values[axis]:
            composed(first, {first: {key: value}})

    def _workload(self, values: Mapping[str, Any]) -> Workload:
        workload = load_workload(values.get(NAME, self.spec.input))
        changes = {
            axis.removeprefix(OF_WORKLOAD): value
            for axis, value in values.items()
            if axis.startswith(OF_WORKLOAD)
        }
        if PLAN in values and _planner(values[PLAN]) is None:
            changes[SHARDING] = values[PLAN]
        return workload.with_(**{k.replace(DOT, "__"): v for k, v in changes.items()})

    def _designed(self, values: Mapping[str, Any]) -> Composed | None:
        """The design of a point; None where the sweep is not of designs."""
        text = values.get(DESIGN, self.spec.design)
        names = [] if text is None else [name.strip() for name in text.split(PLUS)]
        settings: dict[str, dict[str, Any]] = {}
        for axis, value in values.items():
            first, dot, key = axis.partition(DOT)
            if not dot or (first != DESIGN and first not in DESIGNS):
                continue
            if text is None:
                raise UsageError(
                    f"axis {axis}: its design is missing: give `design` as a key or an axis"
                )
            for name in names if first == DESIGN else [first]:
                settings.setdefault(name, {})[key] = value
        return None if text is None else composed(text, settings)


def _planner(plan: Any) -> str | None:
    """A value of the axis `plan` that makes a placement: a planner or a file."""
    return plan if plan in ESTIMATORS or str(plan).endswith(SAVED) else None


def _planned(start: Deployment, plan: str) -> Deployment:
    """`start` with its tables where a planner, or a saved plan, has them."""
    if plan in ESTIMATORS:
        return plan_deployment(start, estimator=plan).deployment
    return start.with_(placement=read_plan(plan, start.workload, start.machine), own_layout=None)
