"""Unions of half-open time intervals, vectorised."""

from __future__ import annotations

import numpy as np

from perfmodel.trace.columns import Floats


def union(start_us: Floats, end_us: Floats) -> tuple[Floats, Floats]:
    """Disjoint intervals in order of time that cover exactly the given ones."""
    keep = end_us > start_us
    start_us, end_us = start_us[keep], end_us[keep]
    if not len(start_us):
        return start_us, end_us
    order = np.argsort(start_us, kind="stable")
    start_us = start_us[order]
    latest = np.maximum.accumulate(end_us[order])
    opens = np.concatenate([[True], start_us[1:] > latest[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start_us[opens], latest[closes]


def clip(start_us: Floats, end_us: Floats, low_us: float, high_us: float) -> tuple[Floats, Floats]:
    """The parts of the intervals within [low_us, high_us], empty ones dropped."""
    start_us, end_us = start_us.clip(low_us, high_us), end_us.clip(low_us, high_us)
    keep = end_us > start_us
    return start_us[keep], end_us[keep]


def length(intervals: tuple[Floats, Floats]) -> float:
    """Total length of disjoint intervals."""
    return float((intervals[1] - intervals[0]).sum())


def union_length(start_us: Floats, end_us: Floats) -> float:
    """Length of the union of any intervals."""
    return length(union(start_us, end_us))


def gaps(busy: tuple[Floats, Floats], low_us: float, high_us: float) -> tuple[Floats, Floats]:
    """What disjoint intervals within [low_us, high_us] leave uncovered of it."""
    start = np.concatenate([[low_us], busy[1]])
    end = np.concatenate([busy[0], [high_us]])
    keep = end > start
    return start[keep], end[keep]
