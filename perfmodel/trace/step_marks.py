"""Which annotations mark steps: one rule for all readers, on names, threads and times alone.

Of the table, the first line counts by which one thread is marked often enough: of several threads
the one with most marks, without marks within another (an engine's within that of the loop around
it). A step lasts as long as its mark; the time between marks is of none.

An optimizer is stepped at the end of a step, so its steps last from the end of one call to the end
of the next. That is a step of the program only where it is called once in each. Two optimizers, or
two phases (GANs), show as calls of two names or as gaps of unlike length: then nothing is a step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Ints, Mask, median
from perfmodel.trace.categories import STEP_NAME

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


class MarkRule(NamedTuple):
    """Names that mark steps."""

    name: re.Pattern[str]
    least: int = 1
    """Fewer marks say nothing: an engine's mark ends with its launches, so that most device work
    lies behind a sole one; three gaps between an optimizer's show whether they are alike."""


RULES = (
    MarkRule(STEP_NAME),
    MarkRule(ENGINE_STEP, least=2),
    MarkRule(NUMBERED_STEP),
    MarkRule(OPTIMIZER_STEP, least=4),
)
"""In the order in which they are tried."""
ANY_MARK = re.compile("|".join(f"(?:{rule.name.pattern})" for rule in RULES), re.IGNORECASE)


def rules_of(steps_by: str) -> tuple[MarkRule, ...]:
    """The table, or what a user named (`steps_by`): a name as it is, or with a number behind it."""
    if not steps_by:
        return RULES
    return (MarkRule(re.compile(re.escape(steps_by) + r"(?:[#_ ]?\d+)?$")),)


class Marks(NamedTuple):
    """The steps found: row of each one's mark, and its times in the unit of the marks'."""

    row: Ints
    start: NDArray[Any]
    end: NDArray[Any]


def marked_steps(
    names: Sequence[str], thread: Ints, start: NDArray[Any], end: NDArray[Any], steps_by: str = ""
) -> Marks:
    """The steps that annotations of these names, threads and times mark, in order of time."""
    for rule in rules_of(steps_by):
        rows = np.array([at for at, name in enumerate(names) if rule.name.match(name)], np.int64)
        if not len(rows):
            continue
        threads, of_row = np.unique(thread[rows], return_inverse=True)
        rows = rows[of_row == np.argmax(np.bincount(of_row, minlength=len(threads)))]
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        latest = np.maximum.accumulate(end[rows])
        rows = rows[np.append(True, end[rows[1:]] > latest[:-1])]
        if len(rows) < rule.least:
            continue
        if not OPTIMIZER_STEP.match(names[rows[0]]):
            return Marks(rows, start[rows], end[rows])
        if steps_by or _is_one_cadence([names[row] for row in rows.tolist()], end[rows]):
            return Marks(rows[1:], end[rows[:-1]], end[rows[1:]])
    return Marks(np.zeros(0, np.int64), start[:0], end[:0])


def _is_one_cadence(names: list[str], end: NDArray[Any]) -> bool:
    """Whether calls of one optimizer follow one another at like times."""
    gaps = np.diff(end).astype(float)
    usual = median(gaps)
    alike: Mask = np.abs(gaps - usual) < ALIKE_FRAC * usual
    neighbours = median(np.abs(np.diff(gaps)))
    is_alike = alike.mean() >= ALIKE_QUANTILE and neighbours < NEIGHBOURS_FRAC * usual
    return len({*names}) == 1 and bool(is_alike)
