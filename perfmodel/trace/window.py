"""The steps of one rank, and the part of a long trace that some steps need.

Annotations are found in the text, without decoding the events around them; then the file is
decoded once more and only what lies in the window is kept. What the text says is checked against
the steps that were then decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.errors import TraceError, UsageError
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import RankTrace, nanoseconds
from perfmodel.trace.step_marks import ANY_MARK, Marks, marked_steps

MAIN_THREAD = "main"
AUTOGRAD_THREAD = "autograd"


@dataclass(frozen=True)
class Steps:
    """The steps of one rank in order of time: names, and start and end in microseconds."""

    names: tuple[str, ...]
    start_us: Floats
    end_us: Floats
    is_window: bool = False
    """True when nothing marks steps: the one step is the window of the events."""

    def __len__(self) -> int:
        return len(self.names)

    def of_time(self, time_us: Floats) -> Ints:
        """Index of the step that a time belongs to: the last one started; -1 before the first."""
        return np.searchsorted(self.start_us, time_us, side="right") - 1


def find_steps(rank: RankTrace) -> Steps:
    """The marked steps (`perfmodel.trace.step_marks`), else the window from first to last event."""
    marks = step_marks(rank)
    if len(marks.row):
        names = [rank.text(row) for row in marks.row]
        if len({*names}) < len(names):
            names = [f"{name} #{number}" for number, name in enumerate(names)]
        return Steps(tuple(names), marks.start, marks.end)
    events = rank.of(*(c for c in Category if c is not Category.OTHER))
    if not len(events):
        return Steps((), np.zeros(0), np.zeros(0))
    start, end = rank.start_us[events].min(), rank.end_us[events].max()
    return Steps(("window",), np.array([start]), np.array([end]), is_window=True)


def step_marks(rank: RankTrace) -> Marks:
    """The steps that its host intervals mark; none where none do."""
    among = rank.of(Category.ANNOTATION, Category.CPU_OP, Category.OTHER)
    if not rank.steps_by:
        among = among[rank.name_matches(ANY_MARK)[among]]
    names = [rank.text(row) for row in among]
    times = rank.start_us[among], rank.end_us[among]
    marks = marked_steps(names, rank.thread[among], *times, rank.steps_by)
    return marks._replace(row=among[marks.row])


_TEXT = rb'"((?:[^"\\]|\\.){1,400})"'
_NOTE = re.compile(
    rb'"cat"\s*:\s*"(?:user_annotation"\s*,\s*"name"\s*:\s*'
    + _TEXT
    + rb'|cpu_op"\s*,\s*"name"\s*:\s*"(ProfilerStep#\d+)")'
    rb'[^{}"]{0,4}"pid"[^{}]{0,100}?"tid"\s*:\s*([^,{}]{1,100}),[^{}]{0,100}?'
    rb'"ts"\s*:\s*"?([\d.]+)"?\s*,\s*"dur"\s*:\s*"?([\d.]+)'
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
    steps_by: str = ""

    def keeps(self, start_ns: Ints, is_device: Mask) -> Mask:
        """Which events lie in the window."""
        end_ns = np.where(is_device, self.tail_ns, self.until_ns)
        return (start_ns >= self.from_ns) & (start_ns < end_ns)

    @property
    def chosen(self) -> slice:
        """The steps asked for, among those that a trace of this window holds."""
        return slice(self.before, self.before + self.asked)


def find_window(
    chunks: Iterable[bytes], steps: slice, context: int, steps_by: str = ""
) -> Window | None:
    """The window of `steps` with `context` steps on each side; None where no steps are found.

    Raises `UsageError` where the file has no such steps.
    """
    start_ns, end_ns = _step_times(chunks, steps_by)
    if not len(start_ns):
        return None
    first, last, _ = steps.indices(len(start_ns))
    if last <= first:
        raise UsageError(f"--steps matches none of the {len(start_ns)} steps")
    before, after = min(context, first), min(context, len(start_ns) - last)
    until_ns = int(end_ns[last + after - 1])
    longest_ns = int((end_ns - start_ns).max())
    from_ns = int(start_ns[first - before])
    tail_ns = until_ns + longest_ns
    return Window(from_ns, until_ns, tail_ns, before, last - first, after, steps_by)


def _step_times(chunks: Iterable[bytes], steps_by: str) -> tuple[Ints, Ints]:
    """Starts and ends of the steps that annotations in the text of a trace mark, by time."""
    found: dict[int, tuple[bytes, ...]] = {}
    text, offset = b"", 0
    for chunk in chunks:
        text += chunk
        for match in _NOTE.finditer(text):
            found[offset + match.start()] = (match[1] or match[2], *match.groups()[2:])
        offset += max(len(text) - _OVERLAP_BYTES, 0)
        text = text[-_OVERLAP_BYTES:]
    names = [_plain(name) for name, *_ in found.values()]
    thread = np.unique([thread for _, thread, *_ in found.values()], return_inverse=True)[1]
    start_ns, _ = nanoseconds([start for *_, start, _ in found.values()])
    duration_ns, _ = nanoseconds([duration for *_, duration in found.values()])
    _, start_ns, end_ns = marked_steps(names, thread, start_ns, start_ns + duration_ns, steps_by)
    return start_ns, end_ns


def _plain(name: bytes) -> str:
    """A text of JSON as it is read."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(b'"%b"' % name, type=str)
    return name.decode(errors="replace")


def trim_to_window(rank: RankTrace, window: Window) -> RankTrace:
    """`rank` without the device work that runs after the window and was not launched in it.

    Raises `TraceError` where the steps in it are not those of the window.
    """
    rank = replace(rank, steps_by=window.steps_by)
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
