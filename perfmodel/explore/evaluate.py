"""What each point of a sweep takes: columns of figures from points, of a trace or a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.designs import DESIGNS, deployment_of
from perfmodel.designs.composed import PLUS, Composed, composed
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore.axes import (
    HARDWARE,
    MUST_FIT,
    Machines,
    MemoizedFigures,
    Points,
    is_axis,
    whole_number,
)
from perfmodel.explore.spec import BATCH, COST, ENERGY, OBJECTIVES, RATE, STEP, Spec
from perfmodel.hardware import KINDS, Cluster
from perfmodel.hardware.schema import FigureRead, figures_used
from perfmodel.prediction.compare import fastest
from perfmodel.prediction.request import changed_workload
from perfmodel.prediction.run import predict
from perfmodel.prediction.running_cost import (
    Activity,
    OperatingCosts,
    activity_of,
    copies_of,
    operating_costs,
)
from perfmodel.prediction.transferred import source_machine, transfer_durations
from perfmodel.prediction.types import Result
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import measured, steady_steps
from perfmodel.trace import Trace, read


def figures(
    names: Sequence[str],
    step_us: Floats,
    samples: float | Floats | None,
    running: OperatingCosts,
    activity: Activity,
) -> dict[str, Floats]:
    """`names` of one machine at steps of `samples` each; a cost without a known price is NaN."""
    columns = {STEP: step_us}
    columns["power_w"] = np.broadcast_to(running.power_w(activity), step_us.shape)
    if samples is not None:
        rate = samples / step_us * 1e6
        costs = running.economics(rate, activity)
        usd = costs.usd_per_million_samples
        unknown = np.full(len(rate), np.nan)
        columns |= {RATE: rate, COST: unknown if usd is None else np.asarray(usd, np.float64)}
        columns[ENERGY] = np.asarray(costs.energy_j_per_sample, np.float64)
    return {name: np.asarray(columns[name], np.float64) for name in names}


RUNNING = (
    *("cluster", "node", "device.target", "device.boost_mhz"),
    *(f"{kind}.{name}" for kind in KINDS for name in ("tdp_w", "price_usd", "capacity_bytes")),
)
"""What running a machine costs by: prices, watts, how many of each part."""


def running_figures(columns: Sequence[str], machine: Cluster) -> tuple[FigureRead, ...]:
    """Those that other columns than the step use of a machine."""
    return () if tuple(columns) == (STEP,) else figures_used(machine, RUNNING)


POWER_LIMIT = "device.tdp_w"
"""Which clock it leaves, a whole step decides: of traces a sweep moves kernels one by one."""


class TraceFigures:
    """A trace moved to the machine of each point, and changed as its axes say. Samples and money
    are of as many copies of its job as the machine runs at once."""

    def __init__(self, spec: Spec) -> None:
        """Raises `UsageError` for axes that a trace has not."""
        from perfmodel.explore import periods  # Numba: workloads do without

        values = spec.points.values
        for axis in values:
            if not is_axis(axis):
                raise UsageError(
                    f"axis {axis} names nothing that a trace can change: expected "
                    "hardware, nodes or KIND.KEY such as device.hbm_gb_per_s"
                )
            if axis == POWER_LIMIT:
                raise UsageError(f"axis {axis}: `predict --set {axis}=W` says it of a trace")
        self.columns, self.samples = spec.objectives, spec.batch
        for name in self.columns:
            if OBJECTIVES[name].needs_samples and spec.batch is None:
                raise UsageError(f"{name} needs batch, the samples of one step")
        trace = spec.trace if isinstance(spec.trace, Trace) else read(spec.trace)
        base = spec.hardware
        if base is None and HARDWARE not in values:
            base = source_machine(trace, "so name one as hardware").node.device.name
        machines = Machines({axis: values[axis] for axis in values if is_axis(axis)}, base=base)
        graph = build_graph(trace)
        self.transfers = periods.TransferTables(trace, graph, machines)
        self.periods = Periods.of(graph, steady_steps(measured(graph)))
        self.width = int(np.clip(periods.BLOCK_CELLS // max(1, len(graph)), *periods.WIDTHS))
        self.ranks = trace.world_size
        self.machines, self.prices = machines, spec.prices
        self.running = MemoizedFigures(
            machines, lambda each: (operating_costs(each, self.prices), each.gpus), RUNNING
        )
        self.possible = MemoizedFigures(machines, lambda machine: machine, MUST_FIT)

    def __call__(self, points: Points) -> dict[str, Floats]:
        from perfmodel.explore.periods import many_periods_us

        self.possible.of(points)
        step_us, busy = np.empty((2, len(points)))
        rows, steps = self.transfers.rows, len(self.transfers.graph.marks.end)
        for places, block in self.transfers.blocks(points, self.width):
            every_us = many_periods_us(self.periods, block)
            step_us[places] = np.median(every_us, axis=1).max(axis=0)  # of the slowest rank
            busy[places] = block[rows].sum(axis=0) / (steps * step_us[places])
        if self.columns == (STEP,):
            return {STEP: step_us}
        result = {name: np.empty(len(points)) for name in self.columns}
        answers, group = self.running.of(points)
        for number, (costs, devices) in enumerate(answers):
            chosen = group == number
            activity = Activity(device_frac=busy[chosen].clip(0.0, 1.0))
            done = self.samples and self.samples * float(copies_of(self.ranks, devices))
            values = figures(self.columns, step_us[chosen], done, costs, activity)
            for name, column in values.items():
                result[name][chosen] = column
        return result

    def predicted(self, values: Mapping[str, Any]) -> Result:
        """One point, with its interval."""
        return predict(self.transfers.trace, hardware=[self.machines.at(values)]).results[0]

    def reads(self, point: Points) -> tuple[FigureRead, ...]:
        """Of both machines of the transfer, and what the running of the target costs."""
        machine = self.machines.at(point.at(0))
        graph = self.transfers.graph
        moved = transfer_durations(self.transfers.trace, graph, graph.nodes_.duration_us, machine)
        return tuple(dict.fromkeys((*moved.reads, *running_figures(self.columns, machine))))


NAME, DESIGN, OF_WORKLOAD, DOT = "workload", "design", "workload.", "."


class WorkloadFigures:
    """A workload predicted from shapes at every point, one by one."""

    def __init__(self, spec: Spec) -> None:
        """Raises `PerfmodelError` for axes that name nothing."""
        self.spec, self.columns = spec, spec.objectives
        self._known: dict[tuple[Any, ...], dict[str, float]] = {}
        values = spec.points.values
        self.read = lru_cache(partial(changed_workload, settings=()))
        self.workload = None if NAME in values else changed_workload(spec.workload, ())
        own = {axis: each for axis, each in values.items() if is_axis(axis)}
        if spec.hardware is None and HARDWARE not in own:
            raise UsageError("hardware is missing: give it as a key or an axis")
        self.machines = Machines(own, base=spec.hardware, alone=True)
        designs = PLUS.join(map(str, values.get(DESIGN, [spec.design or ""])))
        named = [name.strip() for name in designs.split(PLUS)]
        for axis in values:
            first, dot, _ = axis.partition(DOT)
            known = axis in (NAME, BATCH, DESIGN) or axis in own
            if not known and not (dot and (first in (NAME, DESIGN) or first in DESIGNS)):
                raise UsageError(
                    f"axis {axis} names nothing: expected hardware, nodes, KIND.KEY, workload, "
                    "workload.KEY, batch, design, design.KEY or DESIGN.KEY"
                )
            if first in DESIGNS and first not in named:
                raise UsageError(f"axis {axis}: {first} is not among the sweep's designs")

    def __call__(self, points: Points) -> dict[str, Floats]:
        rows = []
        for point in range(len(points)):
            values = self._acting(points.at(point))
            key = tuple(values.items())
            if key not in self._known:
                result, machine, batch = self._predicted(values)
                told = figures(
                    self.columns,
                    np.array([result.step_us]),
                    batch,
                    operating_costs(machine, self.spec.prices),
                    activity_of(result, machine),
                )
                self._known[key] = {name: float(each[0]) for name, each in told.items()}
            rows.append(self._known[key])
        return {name: np.array([row[name] for row in rows]) for name in self.columns}

    def _acting(self, values: dict[str, Any]) -> dict[str, Any]:
        """Without settings of designs that are not the point's."""
        names = str(values.get(DESIGN, self.spec.design) or "").split(PLUS)
        idle = {name for name in DESIGNS if name not in [each.strip() for each in names]}
        return {axis: v for axis, v in values.items() if axis.partition(DOT)[0] not in idle}

    def reads(self, point: Points) -> tuple[FigureRead, ...]:
        """Of the point's prediction, and what the running of its machine costs."""
        values = self._acting(point.at(0))
        result, machine, _ = self._predicted(values)
        return tuple(dict.fromkeys((*result.reads, *running_figures(self.columns, machine))))

    def predicted(self, values: Mapping[str, Any]) -> Result:
        """One point, with its interval."""
        return self._predicted(self._acting({**values}))[0]

    def _predicted(self, values: Mapping[str, Any]) -> tuple[Result, Cluster, int]:
        """The step of a point, the machine that it runs on, and its batch."""
        workload = self.workload or self.read(values[NAME])
        changes = {
            axis.removeprefix(OF_WORKLOAD).replace(DOT, "__"): value
            for axis, value in values.items()
            if axis.startswith(OF_WORKLOAD)
        }
        workload, design = workload.with_(**changes), self._designed(values)
        batch = whole_number(BATCH, values.get(BATCH, workload.batch))
        machine, train = self.machines.at(values), self.spec.training
        if design is None:
            own = predict(workload, hardware=[machine], batch=batch, train=train)
            return own.results[0], machine, batch
        start = deployment_of(workload, machine, batch, train=train)
        deployed, result = fastest(design, start)
        return result.results[0], deployed.machine, deployed.batch

    def _designed(self, values: Mapping[str, Any]) -> Composed | None:
        """The design of a point; None where the sweep is not of designs."""
        text = values.get(DESIGN, self.spec.design)
        if text is not None and not isinstance(text, str):
            raise UsageError(f"axis {DESIGN}: expected names of designs, got {text!r}")
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


Evaluate: TypeAlias = TraceFigures | WorkloadFigures
"""`columns` of figures of points, in order, and which figures of hardware a point's rest on."""


def evaluation_of(spec: Spec) -> Evaluate:
    """Reads the input of a sweep, and says what is wrong with its axes. Raises `PerfmodelError`."""
    try:
        return WorkloadFigures(spec) if spec.trace is None else TraceFigures(spec)
    except PerfmodelError as error:
        raise type(error)(f"{spec.where}: {error}") from None
