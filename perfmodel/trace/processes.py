"""Several processes in one Kineto file (merged traces): each is a rank of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.arrays import Floats, Ints, distinct
from perfmodel.trace.categories import LAUNCH_CALL, STEP_NAME, Category
from perfmodel.trace.columns import NONE, Allocations, RankTrace
from perfmodel.trace.link import equal_runs
from perfmodel.trace.window import take_rows

_HOST = (Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)


def ranks_by_process(rank: RankTrace) -> tuple[RankTrace, ...]:
    """A rank for each process of the file that ran operators and launched work, or marks steps.

    What ran on devices goes to the process that launched it.
    """
    ops, calls = rank.of(Category.CPU_OP), rank.of(Category.RUNTIME)
    if not len(ops) or rank.pid[ops].min() == rank.pid[ops].max():
        return (rank,)
    calls = calls[rank.name_matches(LAUNCH_CALL)[calls] & (rank.correlation[calls] > 0)]
    steps = np.flatnonzero(rank.name_matches(STEP_NAME) & rank.is_of(_HOST))
    busy = distinct(rank.pid[calls] if rank.is_device.any() else rank.pid[steps])
    pids = np.intersect1d(busy, rank.pid[ops])
    if len(pids) < 2:
        return (rank,)
    owner = np.where(rank.is_of(_HOST), rank.pid, NONE)
    work = np.flatnonzero(rank.is_device)
    owner[work] = _launchers(rank, work, calls, pids)
    for row in np.flatnonzero(~rank.is_of(_HOST) & ~rank.is_device).tolist():
        beside = work[(rank.pid[work] == rank.pid[row]) & (rank.thread[work] == rank.thread[row])]
        owner[row] = owner[beside[0]] if len(beside) else rank.pid[row]
    shown = ", ".join(map(str, pids.tolist()))
    said = f"the file holds processes {shown}: each is read as a rank of its own"
    lost = ["whose process made an allocation is not in the file: memory is left out"]
    return tuple(
        replace(
            take_rows(rank, np.flatnonzero(owner == pid)),
            where=f"{rank.where}:process {pid}",
            rank=number,
            world_size=None,
            memory=Allocations(),
            warnings=[*rank.warnings, said, *lost * bool(len(rank.memory))],
        )
        for number, pid in enumerate(pids.tolist())
    )


def _launchers(rank: RankTrace, work: Ints, calls: Ints, pids: Ints) -> Ints:
    """The process of each operation: of all on a device the one whose calls fit them best where
    every process has a device of its own, else the one whose call came last before it."""
    delay_us = np.stack([_delays_us(rank, work, calls[rank.pid[calls] == pid]) for pid in pids])
    device = (rank.pid[work].astype(np.int64) << 32) + rank.device[work]
    result: Ints = pids[np.argmin(delay_us, axis=0)]
    order = np.argsort(device, kind="stable")
    runs = [order[low:high] for low, high in equal_runs(device[order])]
    best = [_best(delay_us[:, rows]) for rows in runs]
    if {*best} == {*range(len(pids))}:
        for rows, at in zip(runs, best, strict=True):
            result[rows] = pids[at]
    return result


def _best(delay_us: Floats) -> int:
    """The process that launched most of some operations, of equals the one right before them."""
    launched = np.isfinite(delay_us)
    sums_us = np.where(launched, delay_us, 0.0).sum(axis=1)
    return int(np.lexsort((sums_us, -launched.sum(axis=1)))[0])


def _delays_us(rank: RankTrace, work: Ints, calls: Ints) -> Floats:
    """From the call of the same correlation to each operation; infinite without one before it."""
    calls = calls[np.argsort(rank.correlation[calls], kind="stable")]
    at = np.searchsorted(rank.correlation[calls], rank.correlation[work])
    call = calls[np.minimum(at, len(calls) - 1)]
    delay_us: Floats = rank.start_us[work] - rank.start_us[call]
    is_its = (rank.correlation[call] == rank.correlation[work]) & (delay_us >= 0)
    delay_us[~is_its] = np.inf
    return delay_us
