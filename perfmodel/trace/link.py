"""Kernels to launch calls to host operators, by correlation, thread and time.

A kernel's `External id` is not used: in files of 2023 it equals the correlation and matches no
operator. See `docs/architecture.md` for what real files are like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Keys, Mask, distinct
from perfmodel.errors import TraceError
from perfmodel.trace.categories import AUTOGRAD_WRAPPER, BACKWARD_OP, LAUNCH_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.window import (
    AUTOGRAD_THREAD,
    MAIN_THREAD,
    Steps,
    find_steps,
    recorded_frac,
    step_marks,
)


@dataclass(frozen=True)
class Links:
    """How the events of one rank tie together. Rows index the rank's columns."""

    steps: Steps
    roles: dict[int, str]
    top_ops: Ints
    """Rows of the outermost operators of every thread, by thread, then time."""
    launches: Ints
    """Rows of the calls that put work on a stream, by thread, then time."""
    launch_op: Ints
    """Per launch: index into `top_ops` of the operator it begins and ends in, or -1."""
    device_rows: Ints
    """Rows of kernels, copies and memsets, in order of start."""
    device_launch: Ints
    """Per device row: row of its launch call, or -1 (before the window, or not recorded)."""
    recorded_frac: float
    """Share of the operators that ran which the file holds, by the density of their ids; 1 where
    it gives none. Files that were sampled or filtered hold a few percent."""


def link(rank: RankTrace) -> Links:
    """Tie one rank's kernels to launches and launches to outermost operators.

    Raises `TraceError` when two launch calls carry one correlation.
    """
    launches = by_thread(rank, rank.of(Category.RUNTIME, named=LAUNCH_CALL))
    top_ops = outermost(rank, rank.of(Category.CPU_OP))
    device_rows = np.flatnonzero(rank.is_device)
    calls = by_correlation(rank, rank.of(Category.RUNTIME))
    device_launch, keys = calls_of(rank, device_rows, calls), rank.correlation[calls]
    twice = keys[1:][keys[1:] == keys[:-1]]
    repeated = np.intersect1d(twice, rank.correlation[device_launch[device_launch >= 0]])
    if len(repeated):
        rows = calls[keys == repeated[0]]
        places = " and ".join(f"traceEvents[{i}]" for i in rank.file_index[rows[:2]])
        raise TraceError(
            f"{rank.where}: {places} are two calls with correlation {repeated[0]}: "
            "kernels cannot be tied to their launch"
        )
    return Links(
        steps=find_steps(rank),
        roles=thread_roles(rank),
        top_ops=top_ops,
        launches=launches,
        launch_op=containing_index(rank, launches, top_ops),
        device_rows=device_rows,
        device_launch=device_launch,
        recorded_frac=recorded_frac(rank),
    )


def thread_roles(rank: RankTrace) -> dict[int, str]:
    """Thread id to `main`, `autograd` or `other:N` (N counts from 0 in order of appearance).

    The main thread carries the marks of steps, else the most time of operators that are not of the
    backward pass (old PyTorch recorded it without wrappers); autograd threads run
    `evaluate_function` wrappers while another thread is the main one.
    """
    host = rank.of(Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME)
    if not len(host):
        return {}
    threads = list(dict.fromkeys(rank.thread[host].tolist()))
    ops, marks = rank.of(Category.CPU_OP), step_marks(rank)[0]
    top = outermost(rank, ops)
    forward = top[~rank.name_matches(BACKWARD_OP)[top]]
    rows = next(each for each in (marks, forward, ops, host) if len(each))
    busiest, of_row = np.unique(rank.thread[rows], return_inverse=True)
    main = int(busiest[np.argmax(np.bincount(of_row, rank.duration_us[rows] + 1e-9))])
    autograd = set(rank.thread[rank.of(Category.CPU_OP, named=AUTOGRAD_WRAPPER)].tolist())
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


def launching_op(rank: RankTrace, links: Links) -> Ints:
    """Per device row: row of the innermost operator around its launch call, or -1."""
    return Nesting(rank, rank.of(Category.CPU_OP)).innermost(links.device_launch)


def by_thread(rank: RankTrace, rows: Ints) -> Ints:
    """`rows` reordered by thread, keeping the order of time within each."""
    return rows[np.argsort(rank.thread[rows], kind="stable")]


def rows_of_threads(rank: RankTrace, rows: Ints) -> dict[int, Ints]:
    groups = (rows[at] for at in alike(rank.thread[rows]))
    return {int(rank.thread[own[0]]): own for own in groups}


def thread_keys(thread: Ints, time_us: Floats) -> Keys:
    """Numbers that sort by thread, then time: complex ones, which NumPy compares so."""
    keys = np.empty(len(thread), np.complex128)
    keys.real, keys.imag = thread, time_us
    return keys


def outermost(rank: RankTrace, rows: Ints) -> Ints:
    """Those of `rows` that no earlier row of the same thread encloses, by thread, then time.

    An event is enclosed when it starts before the latest end so far and does not end after it;
    neighbours that overlap by rounding stay outermost both.
    """
    rows = by_thread(rank, rows)
    keep = np.ones(len(rows), bool)
    start, end, thread = rank.start_us[rows], rank.end_us[rows], rank.thread[rows]
    latest = np.maximum.accumulate(thread_keys(thread, end)).imag[:-1]
    keep[1:] = (end[1:] > latest) | (start[1:] >= latest) | (thread[1:] != thread[:-1])
    return rows[keep]


def stream_keys(rank: RankTrace, device_rows: Ints) -> Ints:
    """One integer per device row for its device (upper half) and stream (lower half)."""
    device = rank.device[device_rows].astype(np.int64)
    return (device << 32) + (rank.stream[device_rows].astype(np.int64) & 0xFFFFFFFF)


def equal_runs(keys: Ints) -> list[tuple[int, int]]:
    """(first, past last) of each run of equal neighbours."""
    if not len(keys):
        return []
    cuts = np.flatnonzero(np.diff(keys)) + 1
    edges = [0, *cuts.tolist(), len(keys)]
    return list(pairwise(edges))


def alike(keys: Ints) -> Iterator[Ints]:
    """The places of each key, in order of the keys."""
    order = np.argsort(keys, kind="stable")
    return (order[low:high] for low, high in equal_runs(keys[order]))


def containing_index(rank: RankTrace, rows: Ints, containers: Ints) -> Ints:
    """Per row: index into `containers` of the one on its thread that it starts and ends in, or -1.

    Both are ordered by thread, then time; containers of one thread do not enclose one another.
    """
    if not len(containers):
        return np.full(len(rows), NONE, np.int64)
    thread = rank.thread[containers]
    keys = thread_keys(thread, rank.start_us[containers])
    wanted = thread_keys(rank.thread[rows], rank.start_us[rows])
    at = np.searchsorted(keys, wanted, side="right") - 1
    held = np.maximum(at, 0)
    inside = (at >= 0) & (thread[held] == rank.thread[rows])
    inside &= rank.end_us[rows] <= rank.end_us[containers[held]]
    return np.where(inside, at, NONE)


class Nesting:
    """Host events of one rank, and which of them lie in which on their threads."""

    def __init__(self, rank: RankTrace, rows: Ints) -> None:
        self.rank, self.rows = rank, by_thread(rank, rows)
        self.parent = np.full(len(rank) + 1, NONE, np.int64)
        """Per row of the rank, and for -1: the event right around it, or -1."""
        self.parent[self.rows] = np.append(self.rows, NONE)[enclosing(rank, self.rows)]
        self._keys = thread_keys(rank.thread[self.rows], rank.start_us[self.rows])

    def around(self, thread: Ints, time_us: Floats) -> Ints:
        """Per thread and time: row of the innermost event (by start) around it, or -1."""
        if not len(self.rows):
            return np.full(len(thread), NONE, np.int64)
        rank = self.rank
        at = np.searchsorted(self._keys, thread_keys(thread, time_us), side="right") - 1
        at = np.append(self.rows, NONE)[at]
        at = np.where(rank.thread[at] == thread, at, NONE)
        while (over := (at >= 0) & (rank.end_us[at] < time_us)).any():
            at = np.where(over, self.parent[at], at)
        return at

    def innermost(self, rows: Ints) -> Ints:
        """For each of `rows` (or -1) the innermost event that it begins in, or -1."""
        found = self.around(self.rank.thread[rows], self.rank.start_us[rows])
        return np.where(rows >= 0, found, NONE)

    def chain(self, events: Ints) -> Iterator[Ints]:
        """These events (-1 is none), then those around them, until none is left."""
        while (events >= 0).any():
            yield events
            events = self.parent[events]

    def is_outer(self, key: Ints) -> Mask:
        """Per row of the rank: whether it is one of the events, none of its key around it."""
        result = np.zeros(len(self.rank), np.bool_)
        result[self.rows] = True
        for above in self.chain(self.parent[self.rows]):
            result[self.rows] &= (above < 0) | (key[above] != key[self.rows])
        return result


def enclosing(rank: RankTrace, rows: Ints) -> Ints:
    """Per row, in order of time: position among `rows` of the nearest earlier one of its thread
    that is still open at its start, or -1."""
    threads = rank.thread[rows]
    order = np.argsort(threads, kind="stable")
    start, end = rank.start_us[rows].tolist(), rank.end_us[rows].tolist()
    around, thread, stack = [NONE] * len(rows), None, list[int]()
    for at, its_thread in zip(order.tolist(), threads[order].tolist(), strict=True):
        if its_thread != thread:
            thread, stack = its_thread, []
        while stack and end[stack[-1]] <= start[at]:
            stack.pop()
        if stack:
            around[at] = stack[-1]
        stack.append(at)
    return np.array(around, np.int64)


def rows_around(rank: RankTrace, row: int) -> Ints:
    """Rows of the operators and annotations around the event in `row`, from the outside."""
    at = rank.start_us[row]
    encloses = (
        np.isin(rank.category, (Category.CPU_OP, Category.ANNOTATION))
        & (rank.thread == rank.thread[row])
        & (rank.start_us <= at)
        & (rank.end_us >= at)
        & (rank.stream < 0)
    )
    rows = np.flatnonzero(encloses)
    return rows[np.lexsort((-rank.duration_us[rows], rank.start_us[rows]))]


def calls_of(rank: RankTrace, work: Ints, calls: Ints) -> Ints:
    """Per operation of the device: which of the calls, by correlation, has its own; -1 for none."""
    if not len(calls):
        return np.full(len(work), NONE, np.int64)
    at = np.searchsorted(rank.correlation[calls], rank.correlation[work])
    call = calls[np.minimum(at, len(calls) - 1)]
    return np.where(rank.correlation[call] == rank.correlation[work], call, NONE)


def by_correlation(rank: RankTrace, calls: Ints) -> Ints:
    """Those of the calls that have a correlation, in its order."""
    calls = calls[rank.correlation[calls] > 0]
    return calls[np.argsort(rank.correlation[calls], kind="stable")]


def differentiated_ops(rank: RankTrace) -> Ints:
    """Per row of the rank: the forward operator that it differentiates, or -1.

    Numbers count per thread, and operators without a derivative have that of the next one: it is
    the last forward operator of that thread and number which began before. Files name the thread by
    a count of PyTorch's own: the one with most of the same numbers, where several have as many one
    that no other count has, in order of time.
    """
    ops = rank.of(Category.CPU_OP)
    ops = ops[rank.sequence[ops] >= 0]
    is_backward = (rank.forward_thread[ops] > 0) | rank.name_matches(BACKWARD_OP)[ops]
    forward, backward = ops[~is_backward], ops[is_backward]
    result = np.full(len(rank), NONE, np.int64)
    if not len(forward) or not len(backward):
        return result
    limit = int(rank.sequence[ops].max()) + 1
    in_time = list(dict.fromkeys(rank.thread[forward].tolist()))
    numbers = [distinct(rank.sequence[forward[rank.thread[forward] == each]]) for each in in_time]
    forward_thread, taken = np.zeros(len(backward), np.int64), [False] * len(in_time)
    counts = rank.forward_thread[backward]
    for count in distinct(counts).tolist():
        of_count = counts == count
        same = distinct(rank.sequence[backward[of_count]])
        shared = [int(np.isin(same, each).sum()) for each in numbers]
        fits = [(most, not other) for most, other in zip(shared, taken, strict=True)]
        best = fits.index(max(fits))
        taken[best] = True
        forward_thread[of_count] = in_time[best]
    threads = distinct(rank.thread[forward])
    thread = np.searchsorted(threads, forward_thread)
    known = np.searchsorted(threads, rank.thread[forward]) * limit + rank.sequence[forward]
    codes, code = np.unique(known, return_inverse=True)
    wanted = thread * limit + rank.sequence[backward]
    at = np.searchsorted(codes, wanted).clip(max=len(codes) - 1)
    order = np.lexsort((rank.start_us[forward], code))
    keys = thread_keys(code[order], rank.start_us[forward[order]])
    last = np.searchsorted(keys, thread_keys(at, rank.start_us[backward]), side="right") - 1
    found: Mask = (codes[at] == wanted) & (last >= 0) & (code[order[last]] == at)
    result[backward[found]] = forward[order[last[found]]]
    return result
