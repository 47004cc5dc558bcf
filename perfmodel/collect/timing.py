"""Clocks, the robust estimator of calibration and truth, the reference work.

What is written: JSON records for people, and CSV tables that survive an interruption.
"""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from perfmodel.base.files import write_text
from perfmodel.base.units import NS_PER_US, US_PER_MS
from perfmodel.collect.backend import Backend, describe_cpu
from perfmodel.errors import PerfmodelError, UsageError

_FLAT_LIST = re.compile(r"\[\s+([^\[\]{}\"]*?)\s+\]")


def dump_record(record: dict[str, Any]) -> str:
    """`record` as indented JSON, every list of plain numbers on one line."""
    text = json.dumps(record, indent=1)
    return _FLAT_LIST.sub(lambda content: f"[{' '.join(content.group(1).split())}]", text) + "\n"


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write `record` to `path`, whole or not at all."""
    write_text(path, dump_record(record))


PARTS = ("compute", "cache", "memory", "python")
"""Of the reference work (`reference.py`), which is timed beside whatever is measured."""
REFERENCE_COLUMNS = tuple(f"reference_{part}_us" for part in PARTS)

IDENTITY = (
    *("op", "device", "dtype", "direction", "timing", "cache", "variant", "b", "m", "n", "k"),
    *("layout", "bias", "rows", "cols", "elements", "tensors", "batch", "in_channels"),
    *("out_channels", "kernel_size", "input_size", "stride", "padding", "hash_size", "dim"),
    *("pooling", "zipf_alpha", "ranks", "library", "tokens", "pairs", "heads"),
    *("head_dim", "value_dim", "max_length", "lengths", "reads", "writes", "flop_per_element"),
)
"""What tells one measurement from another; empty where a dim does not apply."""

MEASURED = (
    *("duration_us", "median_us", "p90_us", "spread_frac", "repeats", "host_us", "unique_rows"),
    *REFERENCE_COLUMNS,
)
"""`duration_us` is the robust estimate (10th percentile of interleaved repeats)."""

COLUMNS = IDENTITY + MEASURED


def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The identity of `row`, the same for values and for their text in a file."""
    return tuple(_text(row.get(name)) for name in IDENTITY)


class Table:
    """Rows at `path`; those already there are kept, and `in` says whether one is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: set[tuple[str, ...]] = set()
        if path.exists():
            self._resume()
        else:
            self._append(",".join(COLUMNS) + "\n")

    def __contains__(self, row: Mapping[str, Any]) -> bool:
        return key_of(row) in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append `rows` and hand them to the operating system; `PerfmodelError` when it refuses."""
        rows = list(rows)
        if unknown := {name for row in rows for name in row} - set(COLUMNS):
            raise PerfmodelError(f"no column {sorted(unknown)} in the measurement table")
        text = _csv([row.get(name) for name in COLUMNS] for row in rows)
        self._append(text)
        self._keys.update(key_of(row) for row in rows)

    def _resume(self) -> None:
        """Read the keys of the rows that are there; drop a last line that was cut short."""
        try:
            text = self.path.read_text()
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror}") from None
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole))
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise UsageError(
                f"{self.path}: its columns are not those of this version; move it away, or name "
                "another output folder"
            )
        self._keys = {key_of(row) for row in reader}
        if whole != text:
            self.path.write_text(whole)

    def _append(self, text: str) -> None:
        try:
            with self.path.open("a") as file:
                file.write(text)
        except OSError as error:
            raise PerfmodelError(
                f"{self.path}: cannot be written: {error.strerror}; {len(self)} rows are kept, "
                "and the same command goes on from there"
            ) from None


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` to the CSV file `path`, whole or not at all; packed if it ends in `.gz`."""
    write_text(path, _csv([columns, *([row.get(name) for name in columns] for row in rows)]))


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([_text(value) for value in row] for row in rows)
    return buffer.getvalue()


DIGITS = 10


def _text(value: Any) -> str:
    """`value` as it stands in a file; whole floats as integers, so that they compare equal."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


LOW_QUANTILE = 0.10


def robust_us(samples_us: Sequence[float]) -> float:
    """The 10th percentile of repeated durations, in microseconds.

    On a shared machine interruptions only ever add time, so low quantiles of interleaved repeats
    agree to a few percent where medians move by tens.
    """
    return float(np.quantile(np.asarray(samples_us, dtype=np.float64), LOW_QUANTILE))


def summarize(samples_us: Sequence[float]) -> dict[str, float]:
    """Robust value, median, 90th percentile and relative spread of repeated durations."""
    samples = np.asarray(samples_us, dtype=np.float64)
    low, middle, high = np.quantile(samples, [LOW_QUANTILE, 0.5, 0.9])
    return {
        "p10_us": round(float(low), 4),
        "median_us": round(float(middle), 4),
        "p90_us": round(float(high), 4),
        "spread_frac": round(float((high - low) / middle), 4) if middle else 0.0,
    }


def halves_frac(rounds_us: Sequence[Sequence[float]]) -> float | None:
    """By how much the robust times of the even and of the odd rounds differ, relatively."""
    if len(rounds_us) < 2:
        return None
    even, odd = (
        robust_us([value for taken in rounds_us[first::2] for value in taken]) for first in (0, 1)
    )
    return round(abs(even - odd) / min(even, odd), 4)


def call_us(run: Callable[[], Any]) -> float:
    """Microseconds that the host is in one call of `run`."""
    before_ns = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - before_ns) / NS_PER_US


def time_step(backend: Backend, step: Callable[[int], None], number: int) -> float:
    """Wall time of `step(number)` in microseconds, until the device is done."""
    before_ns = time.perf_counter_ns()
    step(number)
    backend.synchronize()
    return (time.perf_counter_ns() - before_ns) / NS_PER_US


def loop_us(backend: Backend, call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Microseconds per call of a loop with one wait at its end: of the host, until all is done.

    On a GPU the host may run ahead: this, not the synchronised call, is the throughput.
    """
    backend.synchronize()
    start_ns = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    called_ns = time.perf_counter_ns()
    backend.synchronize()
    done_ns = time.perf_counter_ns()
    per_call = NS_PER_US * repeats
    return (called_ns - start_ns) / per_call, (done_ns - start_ns) / per_call


GPU_FLUSH_BYTES = 512_000_000
"""Beyond any last-level cache, and long enough that the host runs ahead of the GPU."""
CPU_FLUSH_MULTIPLE = 2
DEFAULT_CPU_CACHE_BYTES = 64_000_000
CACHES = ("cold", "warm")


Sample: TypeAlias = tuple[float, float]
"""Of one timed call its duration, and for how long the host was in the call, microseconds."""


class Stopwatch:
    """Times calls on one backend; `timing` is the measurement table's word for how."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.timing = "event_single_call" if backend.is_gpu else "host_wall_sync"
        size = GPU_FLUSH_BYTES
        if not backend.is_gpu:
            caches = describe_cpu()["cache_bytes"]
            size = CPU_FLUSH_MULTIPLE * max(caches.values(), default=DEFAULT_CPU_CACHE_BYTES)
        torch = backend.torch
        self._flushed = torch.zeros(size, dtype=torch.uint8, device=backend.device)

    def samples(self, run: Callable[[], Any], cache: str, count: int) -> list[Sample]:
        """`count` calls of `run`, each after the caches were emptied.

        With `cache` `warm`, an untimed call comes between, which leaves its operands in them.
        """
        is_warm = cache == "warm"
        if self._backend.is_gpu:
            return self._gpu(run, is_warm, count)
        taken = []
        for _ in range(count):
            if is_warm:
                run()
            else:
                self._flushed.add_(1)
            duration_us = call_us(run)
            taken.append((duration_us, duration_us))
        return taken

    def _gpu(self, run: Callable[[], Any], warm: bool, count: int) -> list[Sample]:
        """Events around each call, queued behind the flush, so that no launch delays it."""
        event = self._backend.torch.cuda.Event
        timed = []
        for _ in range(count):
            self._flushed.add_(1)
            if warm:
                run()
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
            host_us = call_us(run)
            end.record()
            timed.append((start, end, host_us))
        self._backend.synchronize()
        return [(a.elapsed_time(b) * US_PER_MS, host_us) for a, b, host_us in timed]


SIDE = 256
"""Of the square fp32 matrices that are multiplied: three of them fit into one core's L2."""
CACHE_VALUES, CACHE_PASSES = 1 << 20, 2
"""fp32 values updated in place: 4 MiB, more than L2 and less than L3."""
MEMORY_VALUES, MEMORY_WINDOWS = 1 << 25, 16
"""fp32 values, 128 MiB, of which each reading sums the next window: in no cache any more."""
PYTHON_CALLS = 3_000
REPEATS = 5
"""Of each part per reading, of which the shortest says how fast the machine is, and all together
how often it is interrupted."""


class Reference:
    """A few milliseconds of fixed work beside what is measured: does the machine keep its speed?

    Hosts are shared: what took 10 ms may take 13 ms some minutes later, with nothing else running
    here. The same work between measurements tells that apart from what is measured. Its parts are
    what a step is made of; all of it runs on the CPU, with the threads that PyTorch has.
    """

    def __init__(self, backend: Backend) -> None:
        torch = backend.torch
        self._memory = torch.full((MEMORY_VALUES,), 0.5)
        self._next = cycle(self._memory.chunk(MEMORY_WINDOWS))
        cached, factor = torch.full((CACHE_VALUES,), 0.5), torch.full((SIDE, SIDE), 0.5)
        product = torch.empty(SIDE, SIDE)
        self._work: dict[str, Callable[[], Any]] = {
            "compute": lambda: torch.mm(factor, factor, out=product),
            "cache": lambda: [cached.mul_(1.0) for _ in range(CACHE_PASSES)],
            "memory": lambda: next(self._next).sum(),
            "python": _interpret,
        }

    def read_us(self) -> list[float]:
        """Microseconds now: of each of `PARTS` the shortest of `REPEATS`, then all of them."""
        taken = [[call_us(self._work[part]) for _ in range(REPEATS)] for part in PARTS]
        return [round(value, 2) for value in (*map(min, taken), sum(map(sum, taken)))]

    def evict(self) -> None:
        """Read all of the memory, as a step in between would empty the caches."""
        self._memory.sum()


def _interpret() -> int:
    """Calls, look-ups and sums, as between the operators of a step."""
    total, seen = 0, {}
    for number in range(PYTHON_CALLS):
        seen[number & 63] = total
        total += len(seen)
    return total


def reference_columns(readings_us: Sequence[Sequence[float]]) -> dict[str, float]:
    """The columns of a table: what each part takes in the long run; none without readings.

    That is its robust time, as often interrupted as the work as a whole: a step lasts long enough
    to be interrupted each time, a part of the reference does not.
    """
    if not readings_us:
        return {}
    parts_us, longer = _split(readings_us)
    return {
        name: round(longer * robust_us(part), 2)
        for name, part in zip(REFERENCE_COLUMNS, parts_us, strict=True)
    }


def reference_record(readings_us: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The reference in a record: how many readings, and what each part took."""
    if not readings_us:
        return {"readings": 0}
    parts_us, longer = _split(readings_us)
    figures = {part: summarize(own) for part, own in zip(PARTS, parts_us, strict=True)}
    return {"readings": len(readings_us), "interrupted_ratio": round(longer, 4), **figures}


def _split(readings_us: Sequence[Sequence[float]]) -> tuple[Any, float]:
    """The parts of all readings, and how much longer all took than the shortest, robustly too."""
    *parts_us, whole_us = np.asarray(readings_us, np.float64).T
    shortest_us = REPEATS * np.sum(parts_us, axis=0)
    return parts_us, robust_us(whole_us / shortest_us)
