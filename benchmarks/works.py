"""What is timed: the steps of the library on inputs that are part of it, each over a reference."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path

from benchmarks.rounds import Work

CONFIGURATIONS = 500
KERNEL_ROWS = 10_000
FIT_ROWS = 200
TABLES = 26
BUDGETED = ("fae", "hotline", "recshard", "software_cache")
PUBLISHED = ("cachedembedding",)
SEED = 2026


def works(trace: Path, folder: Path) -> list[Work]:
    """All of them, on the Kineto trace `trace`; `folder` takes files that they read.

    Numba is loaded first: where it is, kernel models walk their trees compiled, and whether it is
    must not depend on which works a run has.
    """
    import numba  # noqa: F401

    every = (
        of_trace(trace),
        of_kernels(),
        of_fits(folder),
        of_workloads(),
        of_designs(),
        of_commands(),
    )
    return list(chain.from_iterable(every))


def of_trace(path: Path) -> Iterator[Work]:
    """Reading, linking, breaking down, predicting: one step and many at once."""
    import numpy as np

    from perfmodel import breakdown, build_graph, predict, read, schedule
    from perfmodel.explore.periods import many_periods_us
    from perfmodel.timeline.period import Periods
    from perfmodel.timeline.schedule import measured, steady_steps
    from perfmodel.trace import link

    trace = read(path)
    graph = build_graph(trace)
    duration_us = graph.nodes_.duration_us
    many_us = np.repeat(duration_us[:, None], CONFIGURATIONS, 1).astype(np.float32)
    periods = Periods.of(graph, steady_steps(measured(graph)))
    yield Work("read a trace", lambda: read(path), "decoding")
    yield Work("link it", lambda: [link(rank) for rank in trace.ranks], "decoding")
    yield Work("build its graph", lambda: build_graph(trace), "decoding")
    yield Work("break it down", lambda: breakdown(replace(trace)), "decoding")
    yield Work("replay it", lambda: predict(replace(trace)), "decoding")
    yield Work(
        "predict it on a V100", lambda: predict(replace(trace), hardware=["dgx-1"]), "python"
    )
    yield Work("schedule its graph", lambda: schedule(graph, duration_us), "python")
    yield Work("its periods", lambda: periods.step_us(duration_us), "python")
    yield Work(
        f"periods of {CONFIGURATIONS} configurations",
        lambda: many_periods_us(periods, many_us),
        "arrays",
    )


def of_kernels() -> Iterator[Work]:
    """Durations of rows of mixed ops on one device that nobody asked about before, and loading the
    models that give them."""
    from perfmodel.cost.durations import durations_of
    from perfmodel.cost.learned import store
    from perfmodel.hardware import load
    from perfmodel.ops.rows import Rows

    device = load("a100-sxm-80gb")
    mixed: list[dict[str, object]] = [
        {"op": "linear", "m": 64 + i, "n": 256, "k": 512}
        if i % 2
        else {"op": "add", "rows": 64 + i, "cols": 512}
        for i in range(KERNEL_ROWS)
    ]
    many, one, fresh = Rows.of(mixed), Rows.of(mixed[1:2]), count(1)

    def ask(rows: Rows) -> object:
        """As never before: what was asked before is known."""
        more = float(next(fresh))
        dims = {name: values + more for name, values in rows.dims.items() if name in ("m", "rows")}
        return durations_of(replace(rows, dims={**rows.dims, **dims}), device)

    def load_models() -> object:
        store._loaded.cache_clear()
        return store.load_models(store.BUNDLED)

    yield Work(f"durations of {KERNEL_ROWS} new kernels", lambda: ask(many), "arrays")
    yield Work("duration of a new kernel", lambda: ask(one), "python")
    yield Work("load the kernel models", load_models, "python")


def of_fits(folder: Path) -> Iterator[Work]:
    """Kernel models of a small table; its times are made up."""
    from perfmodel.validate.calibrate.kernels import fit_kernels

    draw = random.Random(SEED)
    lines = ["op,device,dtype,direction,timing,b,m,n,k,duration_us"]
    for name in ("Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB"):
        for _ in range(FIT_ROWS // 2):
            m, n, k = (1 << draw.randrange(6, 12) for _ in range(3))
            us = 5 + m * n * k / 5e6 * draw.uniform(0.9, 1.1)
            lines.append(f"linear,{name},fp32,fwd,event_single_call,1,{m},{n},{k},{us:.2f}")
    table = folder / "kernels.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    yield Work(f"fit kernel models to {FIT_ROWS} rows", lambda: fit_kernels([table]), "trees")


def of_workloads() -> Iterator[Work]:
    """A configuration to its op graph, its step and a plan of its tables."""
    from perfmodel.designs import deployment_of
    from perfmodel.explore.planner import plan_deployment
    from perfmodel.hardware import cluster, load
    from perfmodel.prediction import predict
    from perfmodel.workload import Table, Workload, load_workload, op_graph
    from perfmodel.workload.settings import Model

    model = Model(13, (512, 256, 128), (1024, 1024, 512, 256, 1))
    tables = Workload("many", model, (Table(100_000, 128, 1),) * TABLES)
    node = load("dgx-1")
    deployment = deployment_of(load_workload("torchrec-golden"), cluster(node, None), None)
    yield Work(
        f"op graph of {TABLES} tables", lambda: op_graph(tables, 256, target="cuda"), "python"
    )
    batches = count(2048, 8)  # what was asked before is known
    yield Work(
        "predict a configuration",
        lambda: predict("criteo-kaggle", hardware=[node], batch=next(batches)),
        "python",
    )
    yield Work("plan its tables", lambda: plan_deployment(deployment), "python")


def of_designs() -> Iterator[Work]:
    """Designs with budgets of memory side by side, and figures that a paper published."""
    from benchmarks.published.designs import evaluate_designs
    from perfmodel.designs.composed import composed
    from perfmodel.hardware import cluster
    from perfmodel.prediction.compare import compare_designs
    from perfmodel.workload import load_workload

    designs = [composed(name, {}) for name in BUDGETED]
    workload, machine = load_workload("criteo-terabyte"), cluster("dgx-a100-80gb")
    batches = count(2048, 8)  # what was asked before is known
    yield Work(
        f"compare {len(designs)} designs",
        lambda: compare_designs(workload, machine, designs, batch=next(batches)),
        "python",
    )
    yield Work("published figures of designs", lambda: evaluate_designs(only=PUBLISHED), "python")


def of_commands() -> Iterator[Work]:
    """Whole processes: what the command line takes before it does anything, and a breakdown of the
    demo with its tables, rates and gains, of which half is what it loads."""

    def command(*words: str) -> Work:
        line = [sys.executable, "-m", "perfmodel", *words]
        run = partial(subprocess.run, line, check=True, capture_output=True)
        return Work(f"perfmodel {' '.join(words)}", run, "interpreter")

    yield command("--help")
    yield command("breakdown")
