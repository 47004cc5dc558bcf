"""Running a sweep: the parts that are missing, here or on workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from perfmodel.explore.evaluate import Evaluate, evaluation_of
from perfmodel.explore.result import Sweep, part_content
from perfmodel.explore.spec import Spec
from perfmodel.explore.store import POINT, Store
from perfmodel.hardware.reads import FigureRead
from perfmodel.progress import Begin, silent


def sweep(
    spec: Spec,
    folder: str | Path,
    *,
    workers: int = 0,
    scheduler: str | None = None,
    begin: Begin = silent,
) -> Sweep:
    """All points of `spec`, those that `folder` holds already not again.

    `workers` processes of this machine, or those of the Dask cluster at `scheduler`, share the
    parts; without either they are done here. Raises `PerfmodelError`; what is done stays.
    """
    evaluate = evaluation_of(spec)
    store = Store.open(folder, spec)
    with store.alone():
        _fill(store, spec, evaluate, workers, scheduler, begin)
    result = Sweep(spec, store.frame(), str(folder))
    return replace(result, reads=_reads(result, evaluate))


def _fill(
    store: Store, spec: Spec, evaluate: Evaluate, workers: int, scheduler: str | None, begin: Begin
) -> None:
    parts = store.missing()
    begun = [part for part in range(spec.parts) if part not in set(parts)]
    done, points = sum(last - first for first, last in map(spec.bounds, begun)), len(spec.space)
    begin(f"{points:,} points", done, points)
    made: Iterable[tuple[int, bytes]]
    if parts and (workers or scheduler):
        from perfmodel.explore.workers import run_on_workers

        made = run_on_workers(spec, parts, workers, scheduler)
    else:
        made = ((part, part_content(spec, part, evaluate)) for part in parts)
    for part, content in made:
        store.write(part, content)
        first, last = spec.bounds(part)
        done += last - first
        begin(f"{points:,} points", done, points)


def _reads(reads: Sweep, evaluate: Evaluate) -> tuple[FigureRead, ...]:
    """Of the point that is best in the first objective; none where no point has figures."""
    best = next(iter(reads.best().values()), None)
    if best is None:
        return ()
    number = int(reads.frame[POINT].iloc[best])
    return evaluate.reads(reads.spec.space.points(number, number + 1))
