"""A hundred thousand hardware configurations of one rank of the DLRM trace on eight V100.

`python benchmarks/sweep.py [--json] [--configs N] [--latin] [--trace PATH]` prints how many
configurations and nodes, seconds for the schedules alone (durations given) and in all (from the
trace's file on, compiling included), the peak of the process's memory, and the largest relative
difference of a random sample from predictions one by one. The grid has ten values of each of five
figures; `--latin` draws all five anew for every configuration, so that no two share a device.
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
from perfmodel.explore.machines import Machines
from perfmodel.explore.points import Points
from perfmodel.explore.steps import WIDTH, TraceSteps
from perfmodel.prediction.transferred import transferred
from perfmodel.timeline.schedule import schedule

REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE") or "../shared/data")
TRACE = REFERENCE / "traces" / "dlrm_v100x8" / "kineto_rank0.json.gz"
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
    machines = Machines(points.values, base=BASE)
    steps = TraceSteps(trace, machines)
    scheduling = 0.0
    found = np.empty(count)
    for places, block in steps.transfers.blocks(points, WIDTH):
        at = time.perf_counter()
        found[places] = steps.of_marks(steps.walk.step_us(block))
        scheduling += time.perf_counter() - at
    total = time.perf_counter() - begun
    graph = steps.walk.graph
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worst = 0.0
    for point in np.random.default_rng(1).choice(count, min(SAMPLE, count), replace=False).tolist():
        machine = machines.at(points.at(point))
        taken = transferred(trace, graph, graph.nodes_.duration_us, machine).duration_us
        alone = steps.of_marks(schedule(graph, taken).step_us[:, None])[0]
        worst = max(worst, abs(found[point] / alone - 1))
    return {
        "configs": count,
        "nodes": len(graph),
        "seconds_given_durations": round(scheduling, 3),
        "seconds_total": round(total, 3),
        "peak_mb": round(peak_kb / 1e3, 1),
        "max_rel_diff": float(f"{worst:.3g}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--configs", type=int, default=LEVELS ** len(RANGES))
    parser.add_argument("--latin", action="store_true")
    parser.add_argument("--trace", type=Path, default=TRACE)
    given = parser.parse_args()
    found = measure(given.configs, given.latin, given.trace)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:25} {value:>12}")


if __name__ == "__main__":
    main()
