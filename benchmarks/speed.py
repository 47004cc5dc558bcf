"""How fast the library's own steps are, each beside what it is meant to take.

    python benchmarks/speed.py [--repeats 7] [--check]

Times are the best of several repeats in this process, after import. The aims are for a machine at
rest. Entries whose reference data (`PERFMODEL_REFERENCE`) is not found are left out, and named.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.tables import number, table

ROOT = Path(__file__).resolve().parent.parent
ET = "traces/dlrm_v100x8/et_rank0.json.gz"


class Entry(NamedTuple):
    """Work to time, how many things it handles, and what it is meant to take."""

    title: str
    work: Callable[[], object]
    things: int
    aim_ms: float


def decoding(reference: Path) -> Entry:
    """An execution trace to columns."""
    from perfmodel.trace.execution_trace import decode_execution_trace

    content = gzip.decompress((reference / ET).read_bytes())
    nodes = len(decode_execution_trace(content, ET))
    return Entry(
        "decode an execution trace", lambda: decode_execution_trace(content, ET), nodes, 100
    )


def op_graph_of_trace(reference: Path) -> Entry:
    """An execution trace to an op graph."""
    from perfmodel.graph import op_graph
    from perfmodel.trace import read

    trace = read(reference / ET)
    return Entry("its op graph", lambda: op_graph(trace), len(op_graph(trace)[0]), 150)


def prediction(reference: Path) -> Entry:
    """An execution trace on a GPU, from shapes alone."""
    from perfmodel import predict, read

    trace = read(reference / ET)
    nodes = len(trace.execution_traces[0])
    return Entry("predict it", lambda: predict(trace, hardware=["a100-sxm-80gb"]), nodes, 150)


def op_graph_of_workload(tables: int, aim_ms: float) -> Entry:
    """A configuration of many tables to an op graph."""
    from perfmodel.workload import Table, Workload, op_graph
    from perfmodel.workload.model import Model

    model = Model(13, (512, 256, 128), (1024, 1024, 512, 256, 1))
    workload = Workload("many", model, (Table(100_000, 128, 1),) * tables)

    def work() -> object:
        return op_graph(workload, 256, target="cpu")

    return Entry(f"op graph of {tables} tables", work, tables, aim_ms)


def timeline() -> Entry:
    """A figure of many pieces."""
    import numpy as np

    from perfmodel.plot import timeline_figure

    count = 50_000
    start = np.arange(count, dtype=float) * 2
    frame = {
        "resource": np.array(["0/main", "0/gpu0/stream7"], dtype=object)[np.arange(count) % 2],
        "label": [f"void n::kernel_{i % 500}<float>(int)" for i in range(count)],
        "kind": np.where(np.arange(count) % 2, "kernel", "host"),
        "start_us": start,
        "end_us": start + 1,
    }

    def work() -> object:
        return timeline_figure(frame, start_us=0, end_us=2.0 * count)

    return Entry("figure of 50,000 pieces", work, count, 2000)


def kernels(count: int, aim_ms: float) -> Entry:
    """Durations of rows of mixed ops on one device."""
    from perfmodel.duration import durations_of
    from perfmodel.hardware import load
    from perfmodel.ops.rows import Rows

    mixed: list[dict[str, object]] = [
        {"op": "linear", "m": 64 + i, "n": 256, "k": 512}
        if i % 2
        else {"op": "add", "rows": 64 + i, "cols": 512}
        for i in range(count)
    ]
    rows, device = Rows.of(mixed), load("a100-sxm-80gb")
    return Entry(f"durations of {count} rows", lambda: durations_of(rows, device), count, aim_ms)


def best_ms(work: Callable[[], object], repeats: int) -> float:
    """The best of several repeats, after one that warms up."""
    work()
    times_ms = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times_ms.append((time.perf_counter() - start) * 1e3)
    return min(times_ms)


def entries(reference: Path) -> list[Entry]:
    """Everything that can be timed here."""
    found = [
        op_graph_of_workload(26, 20),
        op_graph_of_workload(1000, 500),
        timeline(),
        kernels(1, 1),
        kernels(10_000, 200),
    ]
    if (reference / ET).is_file():
        return [decoding(reference), op_graph_of_trace(reference), prediction(reference), *found]
    print(f"left out: what needs {reference / ET}", file=sys.stderr)
    return found


def main() -> int:
    """Print a table; with `--check`, exit 1 where an aim is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    reference = Path(os.environ.get("PERFMODEL_REFERENCE") or ROOT.parent / "shared" / "data")
    rows, late = [], 0
    for entry in entries(reference):
        took_ms = best_ms(entry.work, options.repeats)
        late += took_ms > entry.aim_ms
        rate = entry.things / took_ms * 1e3
        rows.append([entry.title, number(took_ms), number(entry.aim_ms, 0), number(rate, 0)])
    print(table(["work", "best ms", "aim ms", "per second"], rows))
    return int(options.check and late > 0)


if __name__ == "__main__":
    sys.exit(main())
