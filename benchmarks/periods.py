"""Periods of recorded steps beside what was measured of steps that follow one another.

`python benchmarks/periods.py TRACE...` (files, or folders of ranks). Of each trace with steps: how
many lag, and by how much. Of each with three steps or more, the last two are left out: the median
period of those before them is compared with what the left-out steps took, which is from mark to
mark plus how much later the device ended than before them; beside it the median recorded step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from perfmodel import read
from perfmodel.base.arrays import Floats
from perfmodel.errors import PerfmodelError
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.graph.recorded_steps import is_window, step_of_nodes
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import Periods, device_lag_us
from perfmodel.timeline.schedule import measured, ranks_of, steady_steps

LEFT_OUT = 2


def lag_us(graph: ExecutionGraph) -> Floats:
    """`[rank, step]`: how much later than its mark the device ends what a step launched."""
    step, nodes, marks = step_of_nodes(graph), graph.nodes_, graph.marks
    late = np.zeros((len(ranks_of(graph)), len(marks.name) // len(ranks_of(graph))))
    for row, rank in enumerate(ranks_of(graph)):
        ends = nodes.start_us[marks.end[marks.rank == rank]]
        for at, end in enumerate(ends.tolist()):
            own = graph.on_device & (nodes.rank == rank) & (step == at)
            late[row, at] = max(nodes.end_us[own].max(initial=end) - end, 0.0)
    return late


def main(paths: list[str]) -> None:
    errors: list[tuple[float, float]] = []
    lagging = steps_in_all = 0
    for path in paths:
        try:
            graph = build_graph(read(path))
        except PerfmodelError:
            continue
        if is_window(graph) or not graph.on_device.any():
            continue
        steady = steady_steps(measured(graph))
        recorded_us = measured(graph).step_us.reshape(len(ranks_of(graph)), -1)
        period_us = Periods.of(graph, steady).step_us(graph.nodes_.duration_us)
        lags = [
            device_lag_us(*pair)
            for pair in zip(period_us.max(axis=0), recorded_us.max(axis=0)[steady], strict=True)
        ]
        lagging, steps_in_all = lagging + sum(lag > 0 for lag in lags), steps_in_all + len(lags)
        name = "/".join(Path(path).parts[-2:])
        said = f"{name}: {sum(lag > 0 for lag in lags)} of {len(lags)} steps lag"
        if any(lags):
            said += f", by {max(lags) / 1e3:.2f} ms at most"
        if len(steady) >= LEFT_OUT + 1:
            held, known = steady[-LEFT_OUT:], slice(None, -LEFT_OUT)
            late = lag_us(graph)
            row = int(np.argmax(np.median(recorded_us[:, steady], axis=1)))
            spans = [recorded_us[row, at] + late[row, at] - late[row, at - 1] for at in held]
            true_us = float(np.mean(spans))
            one = float(np.median(period_us[row, known])) / true_us - 1
            null = float(np.median(recorded_us[row, steady[known]])) / true_us - 1
            errors.append((one, null))
            said += f"; left-out steps {true_us / 1e3:.2f} ms, period {one:+.1%}, step {null:+.1%}"
        print(said)
    print(f"{lagging} of {steps_in_all} steady steps lag")
    if errors:
        table = np.abs(np.array(errors))
        (one, null), (mean, null_mean) = np.median(table, axis=0), table.mean(axis=0)
        print(
            f"{len(errors)} traces, left-out steps: period {one:.2%} off in the median, "
            f"{mean:.2%} in the mean; recorded step {null:.2%} and {null_mean:.2%}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
