"""How long the graph of many ranks takes to build and to schedule, and how that grows.

    python benchmarks/ranks.py [--ranks 16 32 64 128 256 512 1024] [--workload neo-a] [--check]

A DLRM of 1,000 tables, trained on nodes of eight A100, one step. *Whole*: a graph of every rank;
ranks with equal work are lowered once, and each has its own nodes. *By class*: one rank of each
class of equal work stands for all of it. Each measurement is a process of its own, from the
configuration to the schedule in which collectives meet; imports are not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.tables import number, table

if TYPE_CHECKING:
    from perfmodel.prediction.scheduled import ScheduledSteps

RANKS = (16, 32, 64, 128, 256, 512, 1024)
NODE, GPUS = "dgx-a100-80gb", 8
WHOLE, BY_CLASS = "whole", "by class"
AIMS = {(WHOLE, 128): (10.0, 4.0), (BY_CLASS, 1024): (90.0, 4.0)}
"""Seconds and GB that a way and number of ranks may take."""
KB_PER_GB = 1e6 if sys.platform != "darwin" else 1e9
MAX_GROWTH = 1.5
"""Time per node at the largest number of ranks over that at the smallest that still is linear."""


def as_rank(found: ScheduledSteps, rank: int) -> ScheduledSteps:
    """What one rank does, done by another."""
    import numpy as np

    graph = found.timeline.graph
    nodes, marks = graph.nodes_, graph.marks
    graph = replace(
        graph,
        nodes_=replace(nodes, rank=np.full(len(nodes), rank)),
        marks=replace(marks, rank=np.full(len(marks.name), rank)),
        resources=tuple(f"{rank}/{name.partition('/')[2]}" for name in graph.resources),
    )
    timeline = replace(found.timeline, graph=graph)
    return replace(found, timeline=timeline)


def measure(name: str, ranks: int, way: str) -> dict[str, float]:
    """Seconds, nodes, classes and GB of one measurement, in this process."""
    from perfmodel.hardware import cluster
    from perfmodel.prediction.scheduled import costs_of, schedule_jointly, schedule_shapes
    from perfmodel.workload import load_workload, op_graph
    from perfmodel.workload.step import rank_classes

    start = time.perf_counter()
    machine, workload = cluster(NODE, ranks // GPUS), load_workload(name)
    device, costs = machine.node.device, costs_of(machine)
    classes = rank_classes(workload, ranks, machine.linked_gpus)
    scheduled = []
    for each in classes:
        graph = op_graph(
            workload,
            workload.batch,
            ranks=ranks,
            rank=each.ranks[0],
            target=device.target,
            linked=machine.linked_gpus,
        )
        one = schedule_shapes(graph, machine, costs)
        scheduled += [as_rank(one, r) for r in each.ranks] if way == WHOLE else [one]
    found = (
        schedule_jointly(scheduled, [""] * len(scheduled)) if len(scheduled) > 1 else scheduled[0]
    )
    took_s = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KB_PER_GB
    nodes = len(found.timeline.graph)
    return {"s": took_s, "nodes": nodes, "classes": len(classes), "gb": peak}


def measured_apart(name: str, ranks: int, way: str) -> dict[str, float]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--workload", name, "--one", str(ranks), way]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def main() -> int:
    """Print a table; with `--check`, exit 1 where an aim is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--workload", default="neo-a")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("RANKS", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.workload, int(options.one[0]), options.one[1])))
        return 0
    rows, failed = [], 0
    for way in (WHOLE, BY_CLASS):
        per_node_us = []
        for ranks in options.ranks:
            found = measured_apart(options.workload, ranks, way)
            per_node_us.append(found["s"] / found["nodes"] * 1e6)
            aim_s, aim_gb = AIMS.get((way, ranks), (float("inf"), float("inf")))
            failed += found["s"] > aim_s or found["gb"] > aim_gb
            rows.append(
                [
                    way,
                    str(ranks),
                    number(found["classes"], 0),
                    number(found["nodes"], 0),
                    number(found["s"]),
                    number(per_node_us[-1]),
                    number(found["gb"]),
                ]
            )
        failed += way == WHOLE and per_node_us[-1] > MAX_GROWTH * per_node_us[0]
    print(table(["way", "ranks", "classes", "nodes", "s", "us per node", "peak GB"], rows))
    return int(options.check and failed > 0)


if __name__ == "__main__":
    sys.exit(main())
