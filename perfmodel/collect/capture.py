"""Kineto profile and execution trace of the same steps, scrubbed, and un-profiled step times.

The profiler slows the host, so the truth is the un-profiled time. It is measured before and
after the profiled steps of the same process, to tell the profiler's cost from drift.
"""

from __future__ import annotations

import getpass
import inspect
import re
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from perfmodel.base.files import read_bytes, write_text
from perfmodel.base.units import NS_PER_US
from perfmodel.collect.backend import Backend
from perfmodel.collect.timing import robust_us, summarize

HOST, USER, ADDRESS = "host", "user", "0.0.0.0"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PATH = re.compile(r"(?<![\w.:/])(?:[A-Za-z]:)?(?:/|\\/)(?:[\w.+@~-]+(?:/|\\/))+([\w.+@~-]*)")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_SHARED_NAMES = {"root", "user", "host", "localhost", "runner", "ubuntu", "docker", "main", "test"}
_LOOPBACK = {"127.0.0.1", ADDRESS}


def scrub_text(text: str, *, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> str:
    """JSON `text` with absolute paths cut to their last part and names and addresses replaced.

    Works string literal by string literal: numbers keep every digit. `hosts` and `users` are the
    names to replace; generic ones such as `root` are left alone, because they identify nobody and
    occur as ordinary words.
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
    users = set()
    with suppress(OSError, KeyError):
        users.add(getpass.getuser())
    return {host, host.split(".")[0]}, users


def scrub_file(source: Path, target: Path) -> int:
    """Write `source` (JSON, gzipped or not), scrubbed, to `target` (`.gz`); its size in bytes.

    The output depends on the content alone: no time stamp and no file name goes into the gzip.
    """
    hosts, users = names_of_this_machine()
    write_text(target, scrub_text(read_bytes(source).decode(), hosts=hosts, users=users))
    return target.stat().st_size


PROFILER_WARMUP = 2
BEFORE, PROFILER_STARTS, PROFILED, AFTER = "before", "profiler_starts", "profiled", "after"


class EnoughSteps(BaseException):
    """Ends what trains when all is captured; no `except Exception` of a user's script holds it."""


class Recorder:
    """Told where each step begins, it times some and profiles those in between.

    `steps` are un-profiled, half of them before and half after the `active` ones. The profilers
    write to `folder`, from where `keep` takes what is wanted.
    """

    def __init__(
        self, backend: Backend, folder: Path, *, warmup: int, steps: int, active: int
    ) -> None:
        half = max(1, steps // 2)
        phases = {
            "warm_up": warmup,
            BEFORE: half,
            PROFILER_STARTS: PROFILER_WARMUP,
            PROFILED: active,
            AFTER: half,
        }
        self._backend, self._active = backend, active
        self._phases = [*(name for name, steps in phases.items() for _ in range(steps)), ""]
        self._kineto, self._observed = folder / "kineto.json", folder / "et.json"
        self._profiling: Any = None
        self._observer: Any = None
        self._began_ns: int | None = None
        self.taken_us: dict[str, list[float]] = {name: [] for name in phases}
        self.steps, self.needed = 0, len(self._phases) - 1

    def boundary(self) -> None:
        """A step is over, and the next begins; raises `EnoughSteps` when no more are needed."""
        self._backend.synchronize()
        if self._began_ns is not None:
            taken_us = (time.perf_counter_ns() - self._began_ns) / NS_PER_US
            self.taken_us[self._phases[self.steps]].append(round(taken_us, 3))
            self.steps += 1
            if self._profiling is not None:
                self._profiling.step()
        following = self._phases[self.steps]
        is_profiled = following in (PROFILER_STARTS, PROFILED)
        if is_profiled and self._profiling is None:
            self._start()
        elif not is_profiled:
            self.stop()
        if not following:
            raise EnoughSteps
        self._began_ns = time.perf_counter_ns()

    def _start(self) -> None:
        """Both profilers on `PROFILER_WARMUP` and then the active steps."""
        profiler = self._backend.torch.profiler
        self._observer = profiler.ExecutionTraceObserver()
        self._observer.register_callback(str(self._observed))
        activities = [profiler.ProfilerActivity.CPU]
        if self._backend.is_gpu:
            activities.append(profiler.ProfilerActivity.CUDA)
        options = {}
        if "acc_events" in inspect.signature(profiler.profile).parameters:
            options["acc_events"] = True  # one cycle: without it, some versions warn of a second
        steps = {"wait": 0, "warmup": PROFILER_WARMUP, "active": self._active, "repeat": 1}
        self._profiling = profiler.profile(
            activities=activities,
            record_shapes=True,
            schedule=profiler.schedule(**steps),
            on_trace_ready=lambda done: done.export_chrome_trace(str(self._kineto)),
            # Handed to the profiler, the observer starts and stops with it: both files cover the
            # same steps.
            execution_trace_observer=self._observer,
            **options,
        )
        self._profiling.start()

    def stop(self) -> None:
        if self._profiling is not None:
            self._profiling.stop()
            self._observer.unregister_callback()
            self._profiling = None

    def keep(self, stem: Path) -> dict[str, Any]:
        """Write both traces, scrubbed and packed, beside `stem`; what a record says of the steps.

        All times are in microseconds.
        """
        sizes = {}
        for kind, source in (("kineto", self._kineto), ("et", self._observed)):
            target = stem.with_name(f"{stem.name}_{kind}.json.gz")
            sizes[target.name] = scrub_file(source, target)
        before_us, profiled_us, after_us = (self.taken_us[n] for n in (BEFORE, PROFILED, AFTER))
        unprofiled_us = before_us + after_us
        cost_frac = robust_us(profiled_us) / robust_us(unprofiled_us) - 1
        return {
            "unprofiled": {
                **summarize(unprofiled_us),
                "before_us": before_us,
                "after_us": after_us,
            },
            "profiled": {**summarize(profiled_us), "step_us": profiled_us},
            "profiler_cost_frac": round(cost_frac, 4),
            "files_bytes": sizes,
        }


def record_steps(recorder: Recorder, step: Callable[[int], Any]) -> None:
    """Run `step` (of its number) until the recorder has enough."""
    try:
        for number in count():
            recorder.boundary()
            step(number)
    except EnoughSteps:
        pass
    finally:
        recorder.stop()
