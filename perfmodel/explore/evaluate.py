"""What each point of a sweep takes: columns of figures from points, by kind of input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from perfmodel.base.arrays import Floats
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
from perfmodel.explore.periods import Durations, many_periods_us
from perfmodel.explore.spec import (
    OBJECTIVES,
    RUNNING,
    STEP,
    TRACE,
    TRACES,
    WORKLOAD,
    Spec,
    figures,
    running_figures,
)
from perfmodel.explore.transfers import TransferTables
from perfmodel.hardware.reads import FigureRead
from perfmodel.prediction.run import predict
from perfmodel.prediction.running_cost import Activity, operating_costs
from perfmodel.prediction.transferred import source_machine, transfer_durations
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import measured
from perfmodel.timeline.steps import steady_steps
from perfmodel.trace import Trace, read

WIDTH, MIN_WIDTH = 4096, 64
"""Points that are scheduled at once, of small graphs and of large ones."""
BLOCK_CELLS = 1 << 23
"""Durations that are held at once: 32 MB."""


class TraceSteps:
    """What `predict(trace, hardware=…)` says of the step of each point: the slowest rank's median
    period over the steady steps."""

    def __init__(self, trace: Trace, machines: Machines) -> None:
        """Raises `TraceError` where the trace does not name one GPU."""
        graph = build_graph(trace)
        self.transfers = TransferTables(trace, graph, machines)
        self.periods = Periods.of(graph, steady_steps(measured(graph)))
        self.width = int(np.clip(BLOCK_CELLS // max(1, len(graph)), MIN_WIDTH, WIDTH))
        """Points that are scheduled at once, so that memory is bounded for any graph."""

    def step_us(self, points: Points) -> Floats:
        """Per point."""
        times_us = np.empty(len(points))
        for places, block in self.transfers.blocks(points, self.width):
            times_us[places] = self.of_block(block)
        return times_us

    def of_block(self, duration_us: Durations) -> Floats:
        """From durations of the graph's nodes `[nodes, points]`."""
        every_us = many_periods_us(self.periods, duration_us)
        slowest: Floats = np.median(every_us, axis=1).max(axis=0)
        return slowest


class Evaluate(Protocol):
    """Figures of points: `columns` of them, in order."""

    columns: tuple[str, ...]

    def __call__(self, points: Points) -> dict[str, Floats]:
        """One value per point and column; raises `PerfmodelError` for points that cannot be."""
        ...

    def reads(self, point: Points) -> tuple[FigureRead, ...]:
        """The figures of the parts of hardware that one point's figures use."""
        ...


BATCH, RANKS = "batch", "ranks"
"""Axes that change a trace's shapes: samples per rank, and how many ranks of equal work."""


class TraceFigures:
    """A trace moved to the machine of each point, and changed as its axes say."""

    def __init__(self, spec: Spec) -> None:
        """Raises `UsageError` for axes that a trace has not."""
        for axis in spec.space.axes:
            if not is_axis(axis) and axis not in (BATCH, RANKS):
                raise UsageError(
                    f"{spec.where}: axis {axis} names nothing that a trace can change: expected "
                    "hardware, nodes, batch, ranks or KIND.KEY such as device.hbm_gb_per_s"
                )
        self.columns, self.samples = spec.objectives, spec.batch
        for name in self.columns:
            if (
                OBJECTIVES[name].needs_samples
                and spec.batch is None
                and BATCH not in spec.space.axes
            ):
                raise UsageError(f"{spec.where}: {name} needs batch, the samples of one step")
        trace, base = read(spec.input), spec.hardware
        if base is None and HARDWARE not in spec.space.axes:
            base = source_machine(trace, "so name one as hardware").node.device.name
        values = spec.space.values
        machines = Machines({axis: values[axis] for axis in values if is_axis(axis)}, base=base)
        self.steps, self.changes = TraceSteps(trace, machines), {BATCH, RANKS} & {*values}
        self.ranks = max(len(trace.ranks), *(rank.world_size or 1 for rank in trace.ranks))
        self.machines, self.prices = machines, spec.prices
        self.running = MemoizedFigures(
            machines, lambda machine: operating_costs(machine, self.prices), RUNNING
        )
        self.possible = MemoizedFigures(machines, lambda machine: machine, MUST_FIT)

    def __call__(self, points: Points) -> dict[str, Floats]:
        self.possible.of(points)
        step_us, busy = np.empty((2, len(points)))
        samples = np.full(len(points), np.nan if self.samples is None else self.samples)
        if self.changes:
            for at in range(len(points)):
                step_us[at], busy[at], samples[at] = self._changed(points.at(at))
        else:
            rows, steps = self.steps.transfers.rows, len(self.steps.transfers.graph.marks.end)
            for places, block in self.steps.transfers.blocks(points, self.steps.width):
                step_us[places] = self.steps.of_block(block)
                busy[places] = block[rows].sum(axis=0) / (steps * step_us[places])
        if self.columns == (STEP,):
            return {STEP: step_us}
        result = {name: np.empty(len(points)) for name in self.columns}
        answers, group = self.running.of(points)
        for number, costs in enumerate(answers):
            chosen = group == number
            activity = Activity(device_frac=busy[chosen].clip(0.0, 1.0))
            values = figures(self.columns, step_us[chosen], samples[chosen], costs, activity)
            for name, column in values.items():
                result[name][chosen] = column
        return result

    def _changed(self, values: Mapping[str, Any]) -> tuple[float, float, float]:
        """Step, share of it that the device is busy, and samples of one point."""
        ranks = whole_number(RANKS, values.get(RANKS, self.ranks))
        batch = whole_number(BATCH, values[BATCH]) if BATCH in values else None
        found = predict(
            self.steps.transfers.trace,
            hardware=[self.machines.at(values)],
            batch=batch,
            edit=[] if ranks == self.ranks else [f"ranks={ranks}"],
        ).results[0]
        samples = (self.samples or np.nan) * ranks / self.ranks if batch is None else batch * ranks
        return found.step_us, found.rank.gpu_active_us / found.step_us, samples

    def reads(self, point: Points) -> tuple[FigureRead, ...]:
        """Of both machines of the transfer, and what the running of the target costs."""
        machine = self.machines.at(point.at(0))
        transfers = self.steps.transfers
        graph = transfers.graph
        moved = transfer_durations(transfers.trace, graph, graph.nodes_.duration_us, machine)
        return tuple(dict.fromkeys((*moved.reads, *running_figures(self.columns, machine))))


class Breakdowns:
    """Files of a corpus, each broken down as it was measured: means over its ranks and steps."""

    def __init__(self, spec: Spec) -> None:
        from perfmodel.timeline.graph.kinds import Cause
        from perfmodel.timeline.idle import Accounting

        self.accounting = tuple(each.name for each in fields(Accounting))
        self.causes = tuple(cause.name.lower() for cause in Cause)
        idle = (f"idle_{cause}_us" for cause in self.causes)
        self.columns = ("ranks", "steps", *self.accounting, *idle)

    def __call__(self, points: Points) -> dict[str, Floats]:
        from perfmodel.prediction.breakdown.job import breakdown

        rows = []
        for path in points.column(TRACE):
            result = breakdown(read(path))
            steps = [step for rank in result.ranks for step in rank.steps]
            row = {"ranks": len(result.ranks), "steps": len(steps) / len(result.ranks)}
            for name in self.accounting:
                row[name] = float(np.mean([getattr(step.accounting, name) for step in steps]))
            for cause in self.causes:
                idle = [step.idle_by_cause.get(cause, 0.0) for step in steps]
                row[f"idle_{cause}_us"] = float(np.mean(idle))
            rows.append(row)
        return {name: np.array([row[name] for row in rows], np.float64) for name in self.columns}

    def reads(self, point: Points) -> tuple[FigureRead, ...]:
        """Nothing of it is predicted."""
        return ()


def evaluation_of(spec: Spec) -> Evaluate:
    """Reads the input of a sweep, and says what is wrong with its axes. Raises `PerfmodelError`."""
    from perfmodel.explore.workloads import WorkloadFigures

    kinds: dict[str, Callable[[Spec], Evaluate]] = {
        TRACE: TraceFigures,
        WORKLOAD: WorkloadFigures,
        TRACES: Breakdowns,
    }
    try:
        return kinds[spec.kind](spec)
    except PerfmodelError as error:
        message = str(error)
        if message.startswith(spec.where):
            raise
        raise type(error)(f"{spec.where}: {message}") from None
