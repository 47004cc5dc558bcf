"""T1 to T5 and operators without launches, measured on one rank's events, waiting left out; the
statistics kept of many samples.

Recording an event costs the host time that a run without the profiler does not spend.
Source: Lin et al., "Building a Performance Model for Deep Learning Recommendation Model Training
on GPUs", 2022, section IV-C, and the published code's `CPU_EVENT_OVERHEAD` (2 us); operators that
launch nothing are a class of their own here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask, median
from perfmodel.errors import UsageError
from perfmodel.trace.categories import BACKWARD_OP, COPY_CALL, SYNC_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, alike, rows_of_threads
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

T1, T2, T3, T4, T5 = "T1", "T2", "T3", "T4", "T5"
OP_WITHOUT_LAUNCH = "op_without_launch"

TYPES = (T1, T2, T3, T4, T5, OP_WITHOUT_LAUNCH)
"""Overhead types, in the order of the codes in `Samples.type`."""

CODE = {name: code for code, name in enumerate(TYPES)}

DESCRIPTIONS = {
    T1: "gap before an operator: from the end of the one before it on its thread",
    T2: "start of an operator to its first launch call",
    T3: "end of an operator's last launch call to the operator's end",
    T4: "a launch call itself",
    T5: "gap between consecutive launch calls of one operator",
    OP_WITHOUT_LAUNCH: "an operator that launches nothing",
}


ENGINE = {AUTOGRAD_THREAD: "autograd::engine: begins", MAIN_THREAD: "autograd::engine: ends"}
"""The T1 of a backward pass, by the thread that goes on: its dependencies are counted and the
engine's thread wakes up; the thread that waited does."""

QUANTILES = {"p10_us": 0.10, "p25_us": 0.25, "median_us": 0.50, "p75_us": 0.75, "p90_us": 0.90}
TRIM_FRAC = 0.10
"""The trimmed mean leaves out this fraction of the samples at each end, rounded down; of three
samples or more at least one, so that a single stall among few does not stand for an operator."""


Us = Annotated[float, Meta(ge=0)]


class Statistic(Struct, frozen=True):
    """One group of samples in microseconds; `std_us` is the population's.

    `approximate`: the quantiles and the trimmed mean are averages, weighted by count, of several
    groups'. Count, mean and std are exact always.
    """

    count: Annotated[int, Meta(ge=1)]
    mean_us: Us
    std_us: Us
    p10_us: Us
    p25_us: Us
    median_us: Us
    p75_us: Us
    p90_us: Us
    trimmed_mean_us: Us
    approximate: bool = False


NUMBERS = tuple(name for name in Statistic.__struct_fields__ if name.endswith("_us"))


def of_sorted(value_us: Floats) -> Statistic:
    """The statistic of samples in ascending order, at least one."""
    cut = max(int(TRIM_FRAC * len(value_us)), len(value_us) >= 3)
    quantiles = np.quantile(value_us, list(QUANTILES.values()))
    return Statistic(
        count=len(value_us),
        mean_us=float(value_us.mean()),
        std_us=float(value_us.std()),
        trimmed_mean_us=float(value_us[cut : len(value_us) - cut].mean()),
        **dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
    )


def grouped(group: Ints, value_us: Floats) -> Iterator[tuple[int, Floats]]:
    return ((int(group[own[0]]), value_us[own]) for own in alike(group))


Cell = dict[str, float]
"""`count`, `mean_us`, `median_us`, `total_us` of one type."""
Table = dict[str, dict[str, dict[str, Cell]]]
"""Thread, then `raw` or `no_blocking`, then type."""


@dataclass(frozen=True)
class Samples:
    """One row per sample, type after type; times are microseconds after the rank's origin."""

    where: str
    rank: int
    devices: tuple[str, ...]
    """Names of the GPUs that the trace speaks of."""
    profiler_us_per_event: float
    """What was taken off per recorded event; 0 when the values are as measured."""
    names: tuple[str, ...]
    """Texts of the indices in `op` and `call`."""
    threads: tuple[str, ...]
    """Thread roles (`main`, `autograd`, `other:N`) of the indices in `thread`."""
    steps: tuple[str, ...]
    """Names of the indices in `step`."""
    type: NDArray[np.int8]
    """Index into `perfmodel.lowering.host.TYPES`."""
    thread: Ints
    op: Ints
    """Name of the operator that the sample belongs to; for T1 the one after the gap."""
    call: Ints
    """Name of the launch call of a T4 sample, else -1."""
    step: Ints
    start_us: Floats
    end_us: Floats
    """Not before `start_us`, except where neighbours overlap by rounding: `value_us` is 0 then."""
    value_us: Floats
    blocking: Mask
    """The sample waited: it overlaps a synchronising call or a copy call above 50 us on its
    thread, or is a gap of the main thread while the autograd thread worked."""
    handed_over: Mask
    """A gap of the main thread while another thread, whatever its role, ran the backward pass."""

    def __len__(self) -> int:
        return len(self.type)

    def __repr__(self) -> str:
        return f"Samples({self.where!r}, rank {self.rank}, {len(self)} in {len(self.steps)} steps)"

    def of_step(self, index: int) -> Samples:
        """The samples of one step, by its index in `steps`."""
        order, bounds = self._by_step
        return self._where(order[bounds[index] : bounds[index + 1]])

    @cached_property
    def _by_step(self) -> tuple[Ints, Ints]:
        """Samples in order of their steps, and where each step begins and ends there."""
        order = np.argsort(self.step, kind="stable")
        return order, np.searchsorted(self.step[order], np.arange(len(self.steps) + 1))

    def without_waiting(self) -> Samples:
        """The samples that waited for nothing, neither the device nor another thread."""
        return self._where(~(self.blocking | self.handed_over))

    def table(self) -> Table:
        """Count, mean, median and sum per thread, `raw` and `no_blocking`, and type.

        Types without samples are left out, and so are threads without any.
        """
        cell = self.thread * len(TYPES) + self.type
        columns: Table = {}
        for variant, kept in (("raw", np.ones(len(self), bool)), ("no_blocking", ~self.blocking)):
            for code, us in grouped(cell[kept], self.value_us[kept]):
                place, kind = divmod(code, len(TYPES))
                own = columns.setdefault(self.threads[place], {"raw": {}, "no_blocking": {}})
                total_us = float(us.sum())
                own[variant][TYPES[kind]] = {
                    "count": len(us),
                    "mean_us": total_us / len(us),
                    "median_us": median(us),
                    "total_us": total_us,
                }
        return columns

    def _where(self, keep: Mask | Ints) -> Samples:
        columns: dict[str, Any] = {}
        for each in fields(self):
            values = getattr(self, each.name)
            if isinstance(values, np.ndarray):
                columns[each.name] = values[keep]
        return replace(self, **columns)


LONG_COPY_US = 50.0
"""A copy call longer than this waited; no call that only enqueues takes as long."""


def overlaps(
    start_us: Floats, end_us: Floats, other_start_us: Floats, other_end_us: Floats
) -> Mask:
    """Which intervals share time with any of the others (touching ends share none).

    The others are in order of start; they may overlap one another.
    """
    if not len(other_start_us):
        return np.zeros(len(start_us), bool)
    latest_end = np.maximum.accumulate(other_end_us)
    at = np.searchsorted(other_start_us, end_us, side="left") - 1
    overlapping: Mask = (at >= 0) & (latest_end[at] > start_us)
    return overlapping


def waits_in_thread(rank: RankTrace, thread: Ints, start_us: Floats, end_us: Floats) -> Mask:
    """Which intervals of host time overlap a blocking call of their own thread (by its id): one
    that synchronises, or a copy call above 50 us."""
    calls = rank.of(Category.RUNTIME)
    long_copy = rank.name_matches(COPY_CALL)[calls] & (rank.duration_us[calls] > LONG_COPY_US)
    calls = calls[rank.name_matches(SYNC_CALL)[calls] | long_copy]
    waits = np.zeros(len(start_us), bool)
    for own, rows in rows_of_threads(rank, calls).items():
        mine = np.flatnonzero(thread == own)
        waits[mine] = overlaps(start_us[mine], end_us[mine], rank.start_us[rows], rank.end_us[rows])
    return waits


def measure(rank: RankTrace, links: Links, *, profiler_us_per_event: float = 0.0) -> Samples:
    """Every host overhead of one rank as one sample, in microseconds.

    A *top-level op* is the outermost operator on its thread; those that start within the steps
    count, one between two steps for the earlier. T1 is the gap before an op (named after it; never
    across a step start), T2 its start to its first launch call, T3 the end of its last launch call
    to its end, T4 each launch call, T5 the gap between its consecutive launch calls; an op that
    launches nothing is a sample of `op_without_launch`. A launch belongs to an op only if it also
    ends within it. Where neighbours overlap (rounding, an op that outlives its caller) the earlier
    ends where the later begins. `profiler_us_per_event` is what the profiler spends on one host
    event: taken off a sample per event recorded inside it, and once more off T1 (for the op that
    follows) and T4 (for the call); no sample falls below 0. Raises `UsageError` where it is
    negative or not a number.
    """
    if not (math.isfinite(profiler_us_per_event) and profiler_us_per_event >= 0):
        raise UsageError(
            f"profiler_us_per_event: {profiler_us_per_event} is not a duration: expected 0 or more"
        )
    ops = links.top_ops
    step = links.steps.of_time(rank.start_us[ops])
    inside = step >= 0
    if not links.steps.is_window and len(links.steps):
        inside &= rank.start_us[ops] < links.steps.end_us.max()
    parts, launches = _intervals(rank, links, step, inside)
    sizes = [len(parts[name][0]) for name in TYPES]
    kind = np.repeat(np.arange(len(TYPES), dtype=np.int8), sizes)
    op, start, end = (np.concatenate([parts[name][i] for name in TYPES]) for i in range(3))
    call = np.full(len(op), NONE, np.int32)
    call[kind == CODE[T4]] = rank.name[launches]
    value = end - start
    if profiler_us_per_event:
        value -= profiler_us_per_event * _recorded(rank, kind, rank.thread[ops[op]], start, end)

    roles = tuple(dict.fromkeys(links.roles.values()))
    threads, inverse = np.unique(rank.thread[ops], return_inverse=True)
    codes = [roles.index(links.roles[thread]) for thread in threads.tolist()]
    role_of_op = np.array(codes, np.int32)[inverse]
    thread = role_of_op[op]
    blocking = waits_in_thread(rank, rank.thread[ops[op]], start, end)
    handed_over = np.zeros(len(op), bool)
    if MAIN_THREAD in roles:
        gap = np.flatnonzero((kind == CODE[T1]) & (thread == roles.index(MAIN_THREAD)))
        apart = inside & (role_of_op != roles.index(MAIN_THREAD))
        backward = apart & rank.name_matches(BACKWARD_OP)[ops]
        named = apart & (np.array(roles)[role_of_op] == AUTOGRAD_THREAD)
        handed_over[gap] = _beside(rank, start[gap], end[gap], ops[backward | named])
        blocking[gap] |= _beside(rank, start[gap], end[gap], ops[named])
    return Samples(
        where=rank.where,
        rank=rank.rank,
        devices=tuple(device.name for device in rank.devices),
        profiler_us_per_event=profiler_us_per_event,
        names=tuple(rank.strings.texts),
        threads=roles,
        steps=links.steps.names,
        type=kind,
        thread=thread,
        op=rank.name[ops[op]],
        call=call,
        step=step[op].astype(np.int32),
        start_us=start,
        end_us=end,
        value_us=np.maximum(value, 0.0),
        blocking=blocking,
        handed_over=handed_over,
    )


def _beside(rank: RankTrace, start: Floats, end: Floats, ops: Ints) -> Mask:
    work = np.sort(ops)
    return overlaps(start, end, rank.start_us[work], rank.end_us[work])


Part = tuple[Ints, Floats, Floats]
"""Operator (an index into `links.top_ops`), start and end of each sample of one type."""


def _intervals(
    rank: RankTrace, links: Links, step: Ints, inside: Mask
) -> tuple[dict[str, Part], Ints]:
    """The samples of each type; rows of the launch calls of operators, by thread, then time."""
    thread = rank.thread[links.top_ops]
    follows = inside[:-1] & inside[1:] & (step[:-1] == step[1:]) & (thread[:-1] == thread[1:])
    after = np.flatnonzero(follows) + 1
    kept = np.flatnonzero(links.launch_op >= 0)
    kept = kept[inside[links.launch_op[kept]]]
    owner, launches = links.launch_op[kept], links.launches[kept]
    left = np.flatnonzero(owner[1:] == owner[:-1])
    first = np.sort(np.unique(owner, return_index=True)[1])
    launching = owner[first]
    is_silent = inside.copy()
    is_silent[owner] = False
    silent = np.flatnonzero(is_silent)
    # an operator that outlives its caller leaves both outermost: it ends where the next begins
    begun, ended = rank.start_us[links.top_ops], rank.end_us[links.top_ops].copy()
    same = np.flatnonzero(thread[1:] == thread[:-1])
    ended[same] = np.minimum(ended[same], begun[same + 1])
    called, returned = rank.start_us[launches], rank.end_us[launches]
    last = np.maximum.reduceat(returned, first) if len(first) else returned
    return {
        T1: (after, ended[after - 1], begun[after]),
        T2: (launching, begun[launching], called[first]),
        T3: (launching, last, ended[launching]),
        T4: (owner, called, np.minimum(returned, ended[owner])),
        T5: (owner[left], returned[left], called[left + 1]),
        OP_WITHOUT_LAUNCH: (silent, begun[silent], ended[silent]),
    }, launches


_RECORDED = (Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)


def _recorded(
    rank: RankTrace, kind: NDArray[np.int8], thread: Ints, start: Floats, end: Floats
) -> Ints:
    """Events whose recording each sample paid for: those that begin on its thread within it, but
    for the operator that it begins with; of a gap also the operator behind, of a call the call."""
    count = np.zeros(len(start), np.int64)
    for own, rows in rows_of_threads(rank, rank.of(*_RECORDED)).items():
        begun, mine = rank.start_us[rows], np.flatnonzero(thread == own)
        count[mine] = np.searchsorted(begun, end[mine]) - np.searchsorted(begun, start[mine])
    count[np.isin(kind, (CODE[T2], CODE[OP_WITHOUT_LAUNCH]))] -= 1
    count[kind == CODE[T1]] += 1
    count[kind == CODE[T4]] = 1
    return np.maximum(count, 0)
