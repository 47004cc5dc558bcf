"""Kineto profile and execution trace of the same steps, scrubbed, and un-profiled step times.

Works on the JSON text, string literal by string literal: numbers keep every digit they had.

The profiler slows the host, so the truth is the un-profiled time. It is measured before and
after the profiled steps of the same process, to tell the profiler's cost from drift.
"""

from __future__ import annotations

import getpass
import inspect
import re
import socket
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.collect.backend import Backend, describe_machine
from perfmodel.collect.models import Ranks, Training
from perfmodel.collect.records import write_record
from perfmodel.collect.reference import Reference, reference_record
from perfmodel.collect.timing import robust_us, summarize, time_loop, time_step, time_steps
from perfmodel.files import read_bytes, write_text

HOST, USER, ADDRESS = "host", "user", "0.0.0.0"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PATH = re.compile(r"(?<![\w.:/])(?:[A-Za-z]:)?(?:/|\\/)(?:[\w.+@~-]+(?:/|\\/))+([\w.+@~-]*)")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_SHARED_NAMES = {"root", "user", "host", "localhost", "runner", "ubuntu", "docker", "main", "test"}
_LOOPBACK = {"127.0.0.1", ADDRESS}


def scrub_text(text: str, *, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> str:
    """JSON `text` with absolute paths cut to their last part and names and addresses replaced.

    `hosts` and `users` are the names to replace; generic ones such as `root` are left alone,
    because they identify nobody and occur as ordinary words.
    """
    words = [(name, HOST) for name in hosts] + [(name, USER) for name in users]
    patterns = [
        (re.compile(rf"(?<!\w){re.escape(name)}(?!\w)"), replacement)
        for name, replacement in words
        if len(name) > 1 and name.lower() not in _SHARED_NAMES
    ]

    def clean(match: re.Match[str]) -> str:
        value = _PATH.sub(lambda path: path.group(1) or "path", match.group())
        value = _IPV4.sub(lambda ip: ip.group() if ip.group() in _LOOPBACK else ADDRESS, value)
        for pattern, replacement in patterns:
            value = pattern.sub(replacement, value)
        return value

    return _STRING.sub(clean, text)


def names_of_this_machine() -> tuple[set[str], set[str]]:
    """Host names and user names that a trace taken here could hold."""
    host = socket.gethostname()
    try:
        users = {getpass.getuser()}
    except (OSError, KeyError):
        users = set()
    return {host, host.split(".")[0]}, users


def scrub_file(source: Path, target: Path) -> int:
    """Write `source` (JSON, gzipped or not), scrubbed, to `target` (`.gz`); its size in bytes.

    The output depends on the content alone: no time stamp and no file name goes into the gzip.
    """
    hosts, users = names_of_this_machine()
    text = scrub_text(read_bytes(source).decode(), hosts=hosts, users=users)
    write_text(target, text)
    return target.stat().st_size


PROFILER_WARMUP = 2
REFERENCE_READINGS = 10
SCHEMA = "perfmodel.collect.trace/1"


@dataclass(frozen=True)
class Plan:
    """How many steps of each sort a capture takes."""

    warmup: int = 10
    unprofiled: int = 40
    active: int = 6


def capture(
    backend: Backend,
    ranks: Ranks,
    training: Training,
    plan: Plan,
    stem: Path,
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Write `STEM_kineto.json.gz`, `STEM_et.json.gz` and `STEM.json`; return what the last holds.

    With several ranks every file name carries `_rankN`. All times are in microseconds.
    """
    suffix = f"_rank{ranks.rank}" if ranks.world > 1 else ""
    time_steps(backend, training.step, plan.warmup)
    half, reference = max(1, plan.unprofiled // 2), Reference(backend)
    readings_us = [reference.read_us() for _ in range(REFERENCE_READINGS)]
    before_us = time_steps(backend, training.step, half)
    profiled_us, sizes = profile_block(
        backend, training.step, plan.active, stem.with_name(f"{stem.name}{suffix}")
    )
    after_us = time_steps(backend, training.step, half)
    readings_us += [reference.read_us() for _ in range(REFERENCE_READINGS)]
    pipelined_us = round(time_loop(backend, training.step, half), 3)
    record = {
        **trace_head(backend, ranks, training.description, provenance),
        **step_record(before_us, profiled_us, after_us),
        "reference": reference_record(readings_us),
        "files_bytes": sizes,
    }
    record["unprofiled"]["pipelined_us"] = pipelined_us
    write_record(stem.with_name(f"{stem.name}{suffix}.json"), record)
    return record


def trace_head(
    backend: Backend, ranks: Ranks, workload: dict[str, Any], provenance: dict[str, Any]
) -> dict[str, Any]:
    """What the record of a trace begins with."""
    return {
        "schema": SCHEMA,
        **provenance,
        "rank": ranks.rank,
        "world": ranks.world,
        "machine": describe_machine(backend),
        "workload": workload,
    }


def step_record(
    before_us: list[float], profiled_us: list[float], after_us: list[float]
) -> dict[str, Any]:
    """What a record says of un-profiled steps, before and after, and of the profiled between."""
    unprofiled_us = before_us + after_us
    return {
        "unprofiled": {
            **summarize(unprofiled_us),
            "before_us": _rounded(before_us),
            "after_us": _rounded(after_us),
        },
        "profiled": {**summarize(profiled_us), "step_us": _rounded(profiled_us)},
        "profiler_cost_frac": round(robust_us(profiled_us) / robust_us(unprofiled_us) - 1, 4),
    }


def profile_block(
    backend: Backend, step: Callable[[int], None], active: int, stem: Path | None
) -> tuple[list[float], dict[str, int]]:
    """Wall times in microseconds of `active` profiled steps, and the bytes of each file written.

    The files are `STEM_kineto.json.gz` and `STEM_et.json.gz`, or none without a `stem`.
    """
    times_us: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        kineto, observed = Path(folder) / "kineto.json", Path(folder) / "et.json"
        profiling = Profiling(backend, active, kineto, observed)
        try:
            for number in range(PROFILER_WARMUP + active):
                times_us.append(time_step(backend, step, number))
                profiling.step()
        finally:
            profiling.stop()
        sizes = keep_traces(kineto, observed, stem) if stem is not None else {}
    return times_us[PROFILER_WARMUP:], sizes


def keep_traces(kineto: Path, observed: Path, stem: Path) -> dict[str, int]:
    """Write both traces scrubbed and packed beside `stem`; the bytes of each file."""
    sizes = {}
    for kind, source in (("kineto", kineto), ("et", observed)):
        target = stem.with_name(f"{stem.name}_{kind}.json.gz")
        sizes[target.name] = scrub_file(source, target)
    return sizes


class Profiling:
    """Both profilers at work on `PROFILER_WARMUP` and then `active` steps.

    `step()` is called after each of them; the profile is written after the last.
    """

    def __init__(self, backend: Backend, active: int, kineto: Path, observed: Path) -> None:
        profiler = backend.torch.profiler
        self._observer = profiler.ExecutionTraceObserver()
        self._observer.register_callback(str(observed))
        activities = [profiler.ProfilerActivity.CPU]
        if backend.is_gpu:
            activities.append(profiler.ProfilerActivity.CUDA)
        # Since PyTorch 2.2 the profiler starts and stops an observer that it is handed, so that
        # both files cover the same steps; before that it has to be started by hand.
        taken = inspect.signature(profiler.profile).parameters
        self._handed = "execution_trace_observer" in taken
        options = {"execution_trace_observer": self._observer} if self._handed else {}
        if "acc_events" in taken:  # there is one cycle: without it, some versions warn of a second
            options["acc_events"] = True
        self._done, self._total = 0, PROFILER_WARMUP + active
        self._running = profiler.profile(
            activities=activities,
            record_shapes=True,
            schedule=profiler.schedule(wait=0, warmup=PROFILER_WARMUP, active=active, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(kineto)),
            **options,
        )
        self._running.start()

    def step(self) -> None:
        """One more step is over."""
        self._done += 1
        if not self._handed and self._done == self._total:
            self._observer.stop()
        self._running.step()
        if not self._handed and self._done == PROFILER_WARMUP:
            self._observer.start()

    def stop(self) -> None:
        """Let go of both."""
        self._running.stop()
        self._observer.unregister_callback()


def _rounded(values_us: list[float]) -> list[float]:
    return [round(value, 3) for value in values_us]
