"""A workload at each point: its own settings, those of its design, and its machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.economics import running
from perfmodel.errors import UsageError
from perfmodel.explore.machines import HARDWARE, Machines, is_axis
from perfmodel.explore.objectives import figures
from perfmodel.explore.points import Points
from perfmodel.explore.spec import Spec
from perfmodel.prediction import predict_workload
from perfmodel.trace.columns import Floats
from perfmodel.workload import Workload, load_workload

NAME, BATCH, OF_WORKLOAD = "workload", "batch", "workload."


class WorkloadFigures:
    """A workload predicted from shapes at every point, one by one."""

    def __init__(self, spec: Spec) -> None:
        """Raises `PerfmodelError` for axes that name nothing."""
        from perfmodel.explore.evaluate import prices_of

        self.spec, self.columns = spec, spec.objectives
        values = spec.space.values
        own = {axis: each for axis, each in values.items() if is_axis(axis)}
        if spec.hardware is None and HARDWARE not in own:
            raise UsageError(f"{spec.where}: say where it runs: hardware, as a key or an axis")
        self.machines = Machines(own, base=spec.hardware, alone=True)
        self.prices = prices_of(spec)
        self.base = None if NAME in values else load_workload(spec.input)
        for axis, each in values.items():
            if axis in own or axis in (NAME, BATCH):
                continue
            if not axis.startswith(OF_WORKLOAD):
                raise UsageError(
                    f"{spec.where}: axis {axis} names nothing: expected hardware, nodes, KIND.KEY, "
                    "workload, workload.KEY or batch"
                )
            for value in each:
                self._workload({axis: value} | ({NAME: values[NAME][0]} if NAME in values else {}))

    def __call__(self, points: Points) -> dict[str, Floats]:
        rows = [self._figures(points.at(point)) for point in range(len(points))]
        return {name: np.array([row[name] for row in rows]) for name in self.columns}

    def _figures(self, values: Mapping[str, Any]) -> dict[str, float]:
        workload = self._workload(values)
        batch = int(values.get(BATCH, workload.batch))
        machine = self.machines.at(values)
        result = predict_workload(
            workload, hardware=[machine], batch=batch, train=self.spec.training
        ).results[0]
        step_us = np.array([result.step_us])
        busy = np.array([result.rank.gpu_active_us / result.step_us])
        told = figures(self.columns, step_us, batch, running(machine, self.prices), busy)
        return {name: float(each[0]) for name, each in told.items()}

    def _workload(self, values: Mapping[str, Any]) -> Workload:
        found = self.base or load_workload(values[NAME])
        changes = {
            axis.removeprefix(OF_WORKLOAD).replace(".", "__"): value
            for axis, value in values.items()
            if axis.startswith(OF_WORKLOAD)
        }
        return found.with_(**changes) if changes else found
