"""Steps and threads of one rank, and the part of a long trace that some steps need.

Step annotations are found in the text, without decoding the events around them; then the file is
decoded once more and only what lies in the window is kept. What the text says is checked against
the steps that were then decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.errors import TraceError, UsageError
from perfmodel.trace.categories import AUTOGRAD_WRAPPER, STEP_NAME, Category
from perfmodel.trace.columns import RankTrace, nanoseconds

MAIN_THREAD = "main"
AUTOGRAD_THREAD = "autograd"


@dataclass(frozen=True)
class Steps:
    """The steps of one rank in order of time: names, and start and end in microseconds."""

    names: tuple[str, ...]
    start_us: Floats
    end_us: Floats
    is_window: bool = False
    """True when the trace has no ProfilerStep: the one step is the window of its events."""

    def __len__(self) -> int:
        return len(self.names)

    def of_time(self, time_us: Floats) -> Ints:
        """Index of the step that a time belongs to: the last one started; -1 before the first."""
        return np.searchsorted(self.start_us, time_us, side="right") - 1


def find_steps(rank: RankTrace) -> Steps:
    """The host intervals named `ProfilerStep#N`, else the window from first to last event."""
    host = rank.of(Category.ANNOTATION, Category.CPU_OP)
    rows = host[rank.name_matches(STEP_NAME)[host]]
    if len(rows):
        names = tuple(rank.text(row) for row in rows)
        return Steps(names, rank.start_us[rows], rank.end_us[rows])
    events = rank.of(*(c for c in Category if c is not Category.OTHER))
    if not len(events):
        return Steps((), np.zeros(0), np.zeros(0))
    start, end = rank.start_us[events].min(), rank.end_us[events].max()
    return Steps(("window",), np.array([start]), np.array([end]), is_window=True)


def thread_roles(rank: RankTrace) -> dict[int, str]:
    """Thread id to `main`, `autograd` or `other:N` (N counts from 0 in order of appearance).

    The main thread carries the steps, else the most operator time; autograd threads run
    `evaluate_function` wrappers while another thread is the main one.
    """
    host = rank.of(Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME)
    if not len(host):
        return {}
    threads = list(dict.fromkeys(rank.thread[host].tolist()))
    annotations, ops = rank.of(Category.ANNOTATION, Category.CPU_OP), rank.of(Category.CPU_OP)
    steps = annotations[rank.name_matches(STEP_NAME)[annotations]]
    rows = steps if len(steps) else ops if len(ops) else host
    busiest, of_row = np.unique(rank.thread[rows], return_inverse=True)
    main = int(busiest[np.argmax(np.bincount(of_row, rank.duration_us[rows] + 1e-9))])
    wrapped = ops[rank.name_matches(AUTOGRAD_WRAPPER)[ops]]
    autograd = set(rank.thread[wrapped].tolist())
    roles: dict[int, str] = {main: MAIN_THREAD}
    others = 0
    for thread in threads:
        if thread == main:
            continue
        if thread in autograd:
            roles[thread] = AUTOGRAD_THREAD
        else:
            roles[thread] = f"other:{others}"
            others += 1
    return roles


_STEP = re.compile(
    rb'"cat"\s*:\s*"(?:user_annotation|cpu_op)"\s*,\s*"name"\s*:\s*"(ProfilerStep#\d+)"'
    rb'[^{}"]{0,4}"pid"[^{}]{0,200}?"ts"\s*:\s*([\d.]+)\s*,\s*"dur"\s*:\s*([\d.]+)'
)
_OVERLAP_BYTES = 1024


@dataclass(frozen=True)
class Window:
    """The time of the steps asked for, and of `before` and `after` steps around them."""

    from_ns: int
    until_ns: int
    tail_ns: int
    """Until when device work is kept: one more step, as it may run late."""
    before: int
    asked: int
    after: int

    def keeps(self, start_ns: Ints, is_device: Mask) -> Mask:
        """Which events lie in the window."""
        end_ns = np.where(is_device, self.tail_ns, self.until_ns)
        return (start_ns >= self.from_ns) & (start_ns < end_ns)

    @property
    def chosen(self) -> slice:
        """The steps asked for, among those that a trace of this window holds."""
        return slice(self.before, self.before + self.asked)


def find_window(chunks: Iterable[bytes], steps: slice, context: int) -> Window | None:
    """The window of `steps` with `context` steps on each side; None where no steps are found.

    Raises `UsageError` where the file has no such steps.
    """
    start_ns, end_ns = _step_times(chunks)
    if not len(start_ns):
        return None
    first, last, _ = steps.indices(len(start_ns))
    if last <= first:
        raise UsageError(f"--steps matches none of the {len(start_ns)} steps")
    before, after = min(context, first), min(context, len(start_ns) - last)
    until_ns = int(end_ns[last + after - 1])
    longest_ns = int((end_ns - start_ns).max())
    from_ns = int(start_ns[first - before])
    return Window(from_ns, until_ns, until_ns + longest_ns, before, last - first, after)


def _step_times(chunks: Iterable[bytes]) -> tuple[Ints, Ints]:
    """Starts and ends of the step annotations in the text of a trace, by time."""
    result: dict[int, tuple[bytes, bytes]] = {}
    text, offset = b"", 0
    for chunk in chunks:
        text += chunk
        for match in _STEP.finditer(text):
            result[offset + match.start()] = (match[2], match[3])
        offset += max(len(text) - _OVERLAP_BYTES, 0)
        text = text[-_OVERLAP_BYTES:]
    start_ns, _ = nanoseconds([start for start, _ in result.values()])
    duration_ns, _ = nanoseconds([duration for _, duration in result.values()])
    order = np.argsort(start_ns, kind="stable")
    return start_ns[order], (start_ns + duration_ns)[order]


def trim_to_window(rank: RankTrace, window: Window) -> RankTrace:
    """`rank` without the device work that runs after the window and was not launched in it.

    Raises `TraceError` where the steps in it are not those of the window.
    """
    steps = find_steps(rank)
    expected = window.before + window.asked + window.after
    if steps.is_window or len(steps) != expected:
        raise TraceError(
            f"{rank.where}: --steps: its step annotations cannot be distinguished ("
            f"{len(steps)} where {expected} are expected): read it without --steps"
        )
    calls = rank.correlation[rank.of(Category.RUNTIME)]
    is_late = rank.is_device & (rank.start_us >= steps.end_us.max())
    keep = ~is_late | np.isin(rank.correlation, calls[calls > 0])
    return take_rows(rank, np.flatnonzero(keep))


def take_rows(rank: RankTrace, rows: Ints) -> RankTrace:
    columns = {f.name: getattr(rank, f.name) for f in fields(rank)}
    chosen: dict[str, Any] = {k: v[rows] for k, v in columns.items() if isinstance(v, np.ndarray)}
    return replace(rank, **chosen)
