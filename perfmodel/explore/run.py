"""Running a sweep: the parts that are missing, here or on the processes of a Dask cluster.

A part whose worker dies is done again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from perfmodel.base.progress import Begin, silent
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore.evaluate import Evaluate, evaluation_of
from perfmodel.explore.result import Sweep, part_content
from perfmodel.explore.spec import Spec
from perfmodel.explore.store import POINT, Store, identity

AHEAD = 4
"""Parts per worker that are under way or waiting: what is done is written before more is asked."""
_CONNECT_S = 10
_SETTINGS = {
    "distributed.scheduler.allowed-failures": 20,
    "distributed.worker.profile.enabled": False,
}
"""Workers that may die over one part; and Dask looks at its workers' stacks a hundred times a
second, a third of what a point costs."""


def run_on_workers(
    spec: Spec, parts: list[int], workers: int, scheduler: str | None
) -> Iterator[tuple[int, bytes]]:
    """(part, its Parquet content) as they are done, by `workers` processes or at `scheduler`.

    Raises `UsageError` where Dask is not installed or no scheduler answers, `PerfmodelError` where
    a worker fails or the scheduler ends.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise UsageError(
            "--workers and --scheduler need Dask: pip install 'perfmodel[dask]'"
        ) from None
    identifier = identity(spec)
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        client = stack.enter_context(_client(distributed, stack, workers, scheduler))
        count = max(1, len(client.scheduler_info(-1)["workers"]))
        number: dict[Any, int] = {}
        waiting, done = iter(parts), distributed.as_completed()
        while True:
            for part in islice(waiting, AHEAD * count - len(number)):
                future = client.submit(remote_part_content, spec, identifier, part, pure=False)
                number[future] = part
                done.add(future)
            if not number:
                return
            future = next(done)
            try:
                content = future.result()
            except CancelledError:
                text = f"{client.scheduler.address}: the scheduler does not answer any more"
                raise PerfmodelError(f"{text}; what is done stays") from None
            except (PerfmodelError, OSError):
                raise
            except Exception as error:
                raise PerfmodelError(f"a worker failed: {str(error).splitlines()[0]}") from None
            yield number.pop(future), content


def _client(distributed: Any, stack: ExitStack, workers: int, scheduler: str | None) -> Any:
    import dask

    stack.enter_context(dask.config.set(_SETTINGS))
    if scheduler is None:
        threads = max(1, (os.cpu_count() or 1) // workers)
        cluster = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
            env={"NUMBA_NUM_THREADS": str(threads)},
        )
        return distributed.Client(stack.enter_context(cluster))
    try:
        return distributed.Client(scheduler, timeout=_CONNECT_S)
    except Exception as error:  # whatever may listen there
        text = str(error).partition("\n")[0] or "silent"
        raise UsageError(f"--scheduler {scheduler}: no scheduler answers: {text}") from None


_evaluations: dict[str, Evaluate] = {}
"""Of the sweep that this process works on, by its identity."""


def remote_part_content(spec: Spec, identifier: str, part: int) -> bytes:
    """`part_content` in another process, perhaps on another host with the same files."""
    if identifier not in _evaluations:
        if identity(spec) != identifier:
            raise UsageError(
                f"{spec.where}: the input, or the version of perfmodel, is not the same on every "
                "worker"
            )
        _evaluations.clear()
        _evaluations[identifier] = evaluation_of(spec)
    return part_content(spec, part, _evaluations[identifier])


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
        parts, points = store.missing(), len(spec.space)
        done = points - sum(last - first for first, last in map(spec.bounds, parts))
        begin(f"{points:,} points", done, points)
        made: Iterable[tuple[int, bytes]]
        if parts and (workers or scheduler):
            made = run_on_workers(spec, parts, workers, scheduler)
        else:
            made = ((part, part_content(spec, part, evaluate)) for part in parts)
        for part, content in made:
            store.write(part, content)
            first, last = spec.bounds(part)
            done += last - first
            begin(f"{points:,} points", done, points)
    result = Sweep(spec, store.frame(), str(folder))
    best = next(iter(result.best().values()), None)
    if best is None:
        return result
    number = int(result.frame[POINT].iloc[best])
    return replace(result, reads=evaluate.reads(spec.space.points(number, number + 1)))
