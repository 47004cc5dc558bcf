"""Steps and threads of one rank: which intervals are steps, which thread does what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.trace.categories import AUTOGRAD_WRAPPER, STEP_NAME, Category
from perfmodel.trace.columns import Floats, Ints, RankTrace

MAIN = "main"
AUTOGRAD = "autograd"


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
    main = _main_thread(rank, host)
    ops = rank.of(Category.CPU_OP)
    wrapped = ops[rank.name_matches(AUTOGRAD_WRAPPER)[ops]]
    autograd = set(rank.thread[wrapped].tolist())
    roles: dict[int, str] = {main: MAIN}
    others = 0
    for thread in threads:
        if thread == main:
            continue
        if thread in autograd:
            roles[thread] = AUTOGRAD
        else:
            roles[thread] = f"other:{others}"
            others += 1
    return roles


def _main_thread(rank: RankTrace, host: Ints) -> int:
    annotations = rank.of(Category.ANNOTATION, Category.CPU_OP)
    steps = annotations[rank.name_matches(STEP_NAME)[annotations]]
    ops = rank.of(Category.CPU_OP)
    rows = steps if len(steps) else ops if len(ops) else host
    threads, inverse = np.unique(rank.thread[rows], return_inverse=True)
    return int(threads[np.argmax(np.bincount(inverse, weights=rank.duration_us[rows] + 1e-9))])
