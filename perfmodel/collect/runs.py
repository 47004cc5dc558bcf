"""What the verbs share: options of their command lines, what they say, and a run of one with its
time, its table and its record; clocks, and the robust estimator of calibration and truth."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from perfmodel.base.files import write_text
from perfmodel.base.registry import offered
from perfmodel.base.units import NS_PER_US, US_PER_MS
from perfmodel.collect.backend import Backend, describe_cpu, describe_machine
from perfmodel.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Command lines whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        say(f"{message}; see {self.prog} --help")
        raise SystemExit(2)


def say(text: str) -> None:
    """One line on standard error: what was written, or why there are no results."""
    print(f"perfmodel: {' '.join(text.split())}", file=sys.stderr)


def add_common(parser: argparse.ArgumentParser, name: str, usual_minutes: float) -> None:
    add_device(parser)
    parser.add_argument(
        "--minutes",
        type=positive(float),
        default=usual_minutes,
        help=f"time to spend ({usual_minutes:g})",
    )
    parser.add_argument("--name", default=name, help=f"stem of the files (default: {name})")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="what to measure; `cuda` is ROCm too; `auto` takes a GPU where there is one",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("collected"), help="folder of the results"
    )


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Reads a finite number above 0 of that kind, for argparse."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind.__name__} above 0")
        return value

    return read


count = positive(int)


def listed(option: str, text: str, known: Collection[str]) -> list[str]:
    """The comma-separated words of `text`, all those `known` where there is none; `UsageError` for
    another word."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {offered(name, list(known))}")
    return names or list(known)


def restore_command(verb: str, arguments: argparse.Namespace) -> str:
    """The command that gives these results again, without the output folder; of files the names."""
    words = ["python", "-m", "perfmodel.collect", verb]
    for name, value in sorted(vars(arguments).items()):
        if name in {"output", "verb", "run", "debug"} or value in (None, "", []) or value is False:
            continue
        several = value if isinstance(value, list) else [value]
        texts = [each.name if isinstance(each, Path) else str(each) for each in several]
        if name != "programs":
            words.append(f"--{name.replace('_', '-')}")
            texts = [] if value is True else [",".join(texts)]
        words += texts
    return shlex.join(words)


def stem_of(folder: Path, name: str) -> Path:
    """What the names of a run's files begin with; `UsageError` where `folder` cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be created: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {folder}: cannot be written; name another folder")
    return folder / name


COLUMNS = (
    *("op", "device", "dtype", "direction", "timing", "cache", "variant", "b", "m", "n", "k"),
    *("layout", "bias", "rows", "cols", "elements", "tensors", "batch", "in_channels"),
    *("out_channels", "kernel_size", "input_size", "stride", "padding", "hash_size", "dim"),
    *("pooling", "zipf_alpha", "tokens", "pairs", "heads"),
    *("head_dim", "value_dim", "max_length", "lengths", "reads", "writes", "flop_per_element"),
    *("duration_us", "median_us", "p90_us", "spread_frac", "repeats", "host_us", "unique_rows"),
)
"""Of kernels; empty where a dim does not apply. `duration_us` is the robust
estimate (10th percentile of interleaved repeats)."""


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` to the CSV file `path`, whole or not at all; packed if it ends in `.gz`."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([columns, *([_text(row.get(name)) for name in columns] for row in rows)])
    write_text(path, buffer.getvalue())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.10g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


LOW_QUANTILE = 0.10


def robust_us(samples_us: Sequence[float]) -> float:
    """The 10th percentile of repeated durations, in microseconds. On a shared machine interruptions
    only ever add time, so low quantiles of interleaved repeats agree to a few percent where medians
    move by tens."""
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


def call_us(run: Callable[[], Any]) -> float:
    """Microseconds that the host is in one call of `run`."""
    before_ns = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - before_ns) / NS_PER_US


GPU_FLUSH_BYTES = 512_000_000
"""Beyond any last-level cache, and long enough that the host runs ahead of the GPU."""
CPU_FLUSH_MULTIPLE = 2
DEFAULT_CPU_CACHE_BYTES = 64_000_000
CACHES = ("cold", "warm")


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

    def flush(self) -> None:
        """Empty the caches, which keeps a GPU busy while its host runs ahead."""
        self._flushed.add_(1)

    def before(self, run: Callable[[], Any], cache: str) -> Callable[[], Any]:
        """What comes before each call of `run`: on `warm` caches, a call that leaves its operands
        in them."""

        def warmed_behind_work() -> None:
            self.flush()
            run()

        if cache != "warm":
            return self.flush
        return warmed_behind_work if self._backend.is_gpu else run

    def samples(
        self, run: Callable[[], Any], count: int, before: Callable[[], Any]
    ) -> list[tuple[float, float]]:
        """Of `count` calls of `run`, each after `before`, the duration and how long the host was in
        it, microseconds: on a GPU by events, so that no launch delays what queues behind work."""
        event, taken, timed = self._backend.torch.cuda.Event, [], []
        for _ in range(count):
            before()
            if not self._backend.is_gpu:
                duration_us = call_us(run)
                taken.append((duration_us, duration_us))
                continue
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
            host_us = call_us(run)
            end.record()
            timed.append((start, end, host_us))
        self._backend.synchronize()
        return taken + [(a.elapsed_time(b) * US_PER_MS, host_us) for a, b, host_us in timed]


class Run:
    """What every verb has: its time, what it skipped, its files."""

    def __init__(self, verb: str, arguments: argparse.Namespace, backend: Backend) -> None:
        self.backend, self._began_s = backend, time.monotonic()
        self.end_s: float = self._began_s + 60 * arguments.minutes
        self.skipped: dict[str, Any] = {}
        self.stem = stem_of(arguments.output, arguments.name)
        self._head = {
            "schema": f"perfmodel.collect.{verb}/1",
            "command": restore_command(verb, arguments),
            "machine": describe_machine(backend),
        }

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end_s

    def path(self, ending: str) -> Path:
        return self.stem.with_name(self.stem.name + ending)

    def write(
        self,
        columns: Sequence[str],
        rows: Sequence[dict[str, Any]],
        said: str,
        ending: str = ".csv",
        **about: Any,
    ) -> None:
        """Write the table and the record beside it, and say so."""
        write_table(self.path(ending), columns, rows)
        meanwhile = {
            "rows": len(rows),
            "skipped": self.skipped,
            "elapsed_s": round(time.monotonic() - self._began_s, 1),
        }
        record = {**self._head, **about, **meanwhile}
        write_text(self.path("_meta.json"), json.dumps(record, indent=1) + "\n")
        skipped = [f"{name}: {why}" for name, why in self.skipped.items()]
        more = f"; {len(skipped)} could not be measured ({skipped[0]})" if skipped else ""
        say(f"wrote {self.path(ending)}: {len(rows):,} {said}{more}")
