"""The steps of one rank, and the part of a trace that some steps need.

One rule says for all readers which annotations mark steps, on names, threads and times alone. Of
the table `RULES`, the first line counts by which one thread is marked often enough: of several
threads the one with most marks, without marks within another (an engine's within that of the loop
around it). A step lasts as long as its mark; the time between marks is of none.

An optimizer is stepped at the end of a step, so its steps last from the end of one call to the end
of the next. That is a step of the program only where it is called once in each. Two optimizers, or
two phases (GANs), show as calls of two names or as gaps of unlike length: then nothing is a step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, median
from perfmodel.errors import UsageError
from perfmodel.trace.categories import STEP_NAME, Category
from perfmodel.trace.columns import RankTrace

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
    """The marked steps (`RULES`), else the window from first to last event."""
    rows, start_us, end_us = step_marks(rank)
    if len(rows):
        names = [rank.text(row) for row in rows]
        if len({*names}) < len(names):
            names = [f"{name} #{number}" for number, name in enumerate(names)]
        return Steps(tuple(names), start_us, end_us)
    events = rank.of(*(c for c in Category if c is not Category.OTHER))
    if not len(events):
        return Steps((), np.zeros(0), np.zeros(0))
    start, end = rank.start_us[events].min(), rank.end_us[events].max()
    return Steps(("window",), np.array([start]), np.array([end]), is_window=True)


def part_of(rank: RankTrace, steps: slice, context: int) -> tuple[RankTrace, slice] | None:
    """`rank` with what its `steps`, and `context` steps on each side, need; and where the steps
    asked for stand among those. None where nothing marks steps.

    Device work is kept for a step more, where it was launched in the part: it may run late. Raises
    `UsageError` where there are no such steps.
    """
    found = find_steps(rank)
    if found.is_window or not len(found):
        return None
    first, last, _ = steps.indices(len(found))
    if last <= first:
        raise UsageError(f"--steps matches none of the {len(found)} steps")
    before, after = min(context, first), min(context, len(found) - last)
    from_us, until_us = found.start_us[first - before], found.end_us[last + after - 1]
    is_in = (rank.start_us >= from_us) & (rank.start_us < until_us)
    calls = rank.correlation[is_in & rank.is_of([Category.RUNTIME])]
    longest_us = (found.end_us - found.start_us).max()
    is_late = rank.is_device & (rank.start_us >= until_us) & (rank.start_us < until_us + longest_us)
    kept = np.flatnonzero(is_in | (is_late & np.isin(rank.correlation, calls[calls > 0])))
    memory = rank.memory
    memory = memory.of((memory.at_us >= from_us) & (memory.at_us < until_us))
    part, first_us = take_rows(rank, kept), float(rank.start_us[kept[0]])
    part = replace(
        part,
        origin_ns=rank.origin_ns + round(first_us * 1e3),
        start_us=part.start_us - first_us,
        memory=replace(memory, at_us=memory.at_us - first_us),
        whole_recorded_frac=recorded_frac(rank),  # ids of operators of other steps lie between
    )
    return part, slice(before, before + last - first)


def recorded_frac(rank: RankTrace) -> float:
    """`Links.recorded_frac`; of a part, that of its file."""
    if rank.whole_recorded_frac is not None:
        return rank.whole_recorded_frac
    ids = rank.external_id[rank.of(Category.CPU_OP)]
    ids = ids[ids >= 0]
    return len(ids) / (int(ids.max()) - int(ids.min()) + 1) if len(ids) else 1.0


def take_rows(rank: RankTrace, rows: Ints) -> RankTrace:
    columns = {f.name: getattr(rank, f.name) for f in fields(rank)}
    chosen: dict[str, Any] = {k: v[rows] for k, v in columns.items() if isinstance(v, np.ndarray)}
    return replace(rank, **chosen)


ENGINE_STEP = re.compile(
    r"execute_(\d+_)?context_\d+\("  # vLLM: execute_context_0(0)_generation_64(64)
    r"|step\[\w+ bs=\d"  # SGLang: step[DECODE bs=64], step[EXTEND bs=1 toks=107]
    r"|\[Executor\] _forward_step\b"  # TensorRT-LLM: [Executor] _forward_step 7: 0 ctx reqs, ...
    r"|\[pl\]\[profile\]run_training_batch$"  # Lightning
)
NUMBERED_STEP = re.compile(r"(?:\w+[ _])?(?:step|iter|iteration|batch)\W{0,2}_?\d+$", re.IGNORECASE)
NUMBERED_MARK = re.compile(f"{STEP_NAME.pattern}|{NUMBERED_STEP.pattern}", re.IGNORECASE)
"""Marks of which each has a name of its own: no ranges to add up."""
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")

ALIKE_FRAC, ALIKE_QUANTILE, NEIGHBOURS_FRAC = 1 / 4, 7 / 8, 1 / 5
"""assumed: of like cadence are gaps of which seven in eight are off their median by less than a
quarter of it, and half differ from the one before by less than a fifth: two optimizers alternate.
In real loops of one optimizer under the profiler: nine in ten, and 0.002 to 0.16."""

RULES = {STEP_NAME: 1, ENGINE_STEP: 2, NUMBERED_STEP: 1, OPTIMIZER_STEP: 4}
"""Names that mark steps, in the order in which they are tried, and fewer of which say nothing: an
engine's mark ends with its launches, so that most device work lies behind a sole one; three gaps
between an optimizer's show whether they are alike."""


def step_marks(rank: RankTrace) -> tuple[Ints, Floats, Floats]:
    """The steps that its host intervals mark, in order of time: row of each one's mark, start and
    end in microseconds; none where none do."""
    rules = RULES  # or a name that a user gave, as it is, or with a number behind it
    if rank.steps_by:
        rules = {re.compile(re.escape(rank.steps_by) + r"(?:[#_ ]?\d+)?$"): 1}
    among = rank.of(Category.ANNOTATION, Category.CPU_OP, Category.OTHER)
    start, end = rank.start_us, rank.end_us
    for name, least in rules.items():
        rows = among[rank.name_matches(name)[among]]
        if not len(rows):
            continue
        threads, of_row = np.unique(rank.thread[rows], return_inverse=True)
        rows = rows[of_row == np.argmax(np.bincount(of_row, minlength=len(threads)))]
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        latest = np.maximum.accumulate(end[rows])
        rows = rows[np.append(True, end[rows[1:]] > latest[:-1])]
        if len(rows) < least:
            continue
        if not OPTIMIZER_STEP.match(rank.text(rows[0])):
            return rows, start[rows], end[rows]
        if rank.steps_by or _is_one_cadence([rank.text(row) for row in rows], end[rows]):
            return rows[1:], end[rows[:-1]], end[rows[1:]]
    return among[:0], start[:0], end[:0]


def _is_one_cadence(names: list[str], end: Floats) -> bool:
    """Whether calls of one optimizer follow one another at like times."""
    gaps = np.diff(end)
    usual = median(gaps)
    alike: Mask = np.abs(gaps - usual) < ALIKE_FRAC * usual
    neighbours = median(np.abs(np.diff(gaps)))
    is_alike = alike.mean() >= ALIKE_QUANTILE and neighbours < NEIGHBOURS_FRAC * usual
    return len({*names}) == 1 and bool(is_alike)
