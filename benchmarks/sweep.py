"""A hundred thousand hardware configurations of one rank of the DLRM trace on eight V100.

`python benchmarks/sweep.py [--json] [--configs N] [--latin] [--trace PATH] [--scaling FILE]` prints
how many configurations and nodes, seconds for the periods alone (durations given) and in all
(from the trace's file on, compiling included), the peak of the process's memory, and the largest
relative difference of a random sample from predictions one by one. The grid has ten values of each
of five figures; `--latin` draws all five anew for every configuration, so that no two share a
device. `--scaling` draws how long schedules take over configurations, and over nodes of other
traces.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path

import numpy as np

from perfmodel import read
from perfmodel.explore.axes import Points
from perfmodel.explore.evaluate import TraceFigures
from perfmodel.explore.periods import WIDTHS, many_periods_us
from perfmodel.explore.spec import Spec
from perfmodel.plot import save
from perfmodel.plot.style import FAINT, panels
from perfmodel.prediction.transferred import transfer_durations
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import measured, steady_steps

REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE") or "../shared/data")
TRACE = REFERENCE / "traces" / "dlrm_v100x8" / "kineto_rank0.json.gz"
LARGER = (
    "et_kineto_pairs/a100_simple_add_kineto.json.gz",
    "critical_path/a100_alexnet.json.gz",
    "dlrm_v100x8/kineto_rank0.json.gz",
    "torchrec_v100x4/sst_long_a2a_optimizer_3_29220/rank0.json.gz",
    "train/mi300x8_resnet_act_checkpoint.json.gz",
    "train/v100_resnet50_workers0_a.json.gz",
    "dlrm_meta/a100x8_trace_diff_control.json.gz",
)
"""Traces from small to large."""
RANGES = {
    "device.hbm_gb_per_s": (600.0, 2400.0),
    "device.boost_mhz": (1000.0, 2200.0),
    "device.sm_count": (60.0, 150.0),
    "link.gb_per_s": (50.0, 500.0),
    "host.single_thread_ratio": (0.4, 2.2),
}
WHOLE = "device.sm_count"
LEVELS = 10
BASE = "v100-sxm2-32gb"
SAMPLE = 20


def configurations(count: int, latin: bool) -> Points:
    """The grid, repeated or cut to `count` points, or a Latin hypercube."""
    rng = np.random.default_rng(0)
    if latin:
        columns = {
            axis: low + (high - low) * (rng.permutation(count) + rng.random(count)) / count
            for axis, (low, high) in RANGES.items()
        }
        columns[WHOLE] = np.round(columns[WHOLE])
        return Points.of({axis: column.tolist() for axis, column in columns.items()})
    values = {axis: np.linspace(*ends, LEVELS).tolist() for axis, ends in RANGES.items()}
    place = np.arange(count)
    code = {}
    for axis in reversed(values):
        code[axis], place = place % LEVELS, place // LEVELS
    return Points(values, code, count)


def measure(count: int, latin: bool, path: Path) -> dict[str, float]:
    """Sweep, and compare a sample with predictions one by one."""
    begun = time.perf_counter()
    trace = read(path)
    points = configurations(count, latin)
    steps = TraceFigures(Spec(trace=trace, hardware=BASE, points=points))
    machines = steps.machines
    scheduling = 0.0
    found = np.empty(count)
    for places, block in steps.transfers.blocks(points, steps.width):
        at = time.perf_counter()
        found[places] = np.median(many_periods_us(steps.periods, block), axis=1).max(axis=0)
        scheduling += time.perf_counter() - at
    total = time.perf_counter() - begun
    graph = steps.periods.graph
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worst = 0.0
    for point in np.random.default_rng(1).choice(count, min(SAMPLE, count), replace=False).tolist():
        machine = machines.at(points.at(point))
        taken = transfer_durations(trace, graph, graph.nodes_.duration_us, machine).duration_us
        alone = max(map(np.median, steps.periods.step_us(taken)))
        worst = max(worst, abs(found[point] / alone - 1))
    return {
        "configs": count,
        "nodes": len(graph),
        "seconds_given_durations": round(scheduling, 3),
        "seconds_total": round(total, 3),
        "peak_mb": round(peak_kb / 1e3, 1),
        "max_rel_diff": float(f"{worst:.3g}"),
    }


def scheduling_s(graph: ExecutionGraph, configs: int) -> float:
    """Seconds for the periods of durations that are given, block by block."""
    factor = np.random.default_rng(0).uniform(0.5, 2.0, (len(graph), min(configs, WIDTHS[1])))
    block = (graph.nodes_.duration_us[:, None] * factor).astype(np.float32)
    periods = Periods.of(graph, steady_steps(measured(graph)))
    begun = time.perf_counter()
    for begin in range(0, configs, WIDTHS[1]):
        many_periods_us(periods, block[:, : configs - begin])
    return time.perf_counter() - begun


def draw_scaling(path: Path) -> None:
    """Seconds over configurations of one graph, and over the nodes of several, with lines
    proportional to both."""
    graph = build_graph(read(TRACE))
    scheduling_s(graph, 64)
    counts = [2**power for power in range(8, 18)]
    taken = [scheduling_s(graph, count) for count in counts]
    graphs = [build_graph(read(REFERENCE / "traces" / name)) for name in LARGER]
    nodes = [len(each) for each in graphs]
    of_nodes = [scheduling_s(each, WIDTHS[1]) for each in graphs]
    with panels(8.0, 3.6, 1, 2) as (figure, (left, right)):
        for axes, at, seconds in ((left, counts, taken), (right, nodes, of_nodes)):
            line = np.array(at) * np.median(np.array(seconds) / np.array(at))
            axes.loglog(at, line, color=FAINT, linewidth=1.0, label="in proportion")
            axes.loglog(at, seconds, marker="o", linestyle="", label="measured")
            for each in (axes.xaxis, axes.yaxis):
                each.set_major_formatter(lambda value, _: f"{value:g}")
            axes.minorticks_off()
            axes.set_ylabel("seconds")
        left.set_xlabel(f"configurations of {len(graph):,} nodes")
        right.set_xlabel(f"nodes, {WIDTHS[1]:,} configurations")
        left.legend()
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--configs", type=int, default=LEVELS ** len(RANGES))
    parser.add_argument("--latin", action="store_true")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--scaling", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.scaling:
        draw_scaling(given.scaling)
        return
    found = measure(given.configs, given.latin, given.trace)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:25} {value:>12}")


if __name__ == "__main__":
    main()
