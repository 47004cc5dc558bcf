"""Running a sweep: the parts that are missing, here or on the processes of a Dask cluster.

A part whose worker dies is done again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore.evaluate import Evaluate, evaluation_of
from perfmodel.explore.result import Sweep, part_content
from perfmodel.explore.spec import Spec
from perfmodel.explore.store import POINT, Store, identity
from perfmodel.hardware.reads import FigureRead
from perfmodel.progress import Begin, silent

AHEAD = 4
"""Parts per worker that are under way or waiting: what is done is written before more is asked."""
_PATIENCE_S = 10
_DEATHS = 20
"""Workers that may die over one part until it is given up."""

_SETTINGS = {
    "distributed.scheduler.allowed-failures": _DEATHS,
    "distributed.worker.profile.enabled": False,
}
"""Dask looks at its workers' stacks a hundred times a second, a third of what a point costs."""


def run_on_workers(
    spec: Spec, parts: list[int], workers: int, scheduler: str | None
) -> Iterator[tuple[int, bytes]]:
    """(part, its Parquet content) as they are done, by `workers` processes or at `scheduler`.

    Raises `UsageError` where Dask is not installed or no scheduler answers.
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
        waiting = iter(parts)
        number: dict[Any, int] = {}
        while True:
            for part in islice(waiting, AHEAD * count - len(number)):
                future = client.submit(remote_part_content, spec, identifier, part, pure=False)
                number[future] = part
            if not number:
                return
            first = partial(distributed.wait, list(number), _PATIENCE_S, "FIRST_COMPLETED")
            for future in _patiently(client, first).done:
                yield number[future], _patiently(client, partial(future.result, _PATIENCE_S))
                del number[future]


def _patiently(client: Any, ask: Callable[[], Any]) -> Any:
    """What `ask` brings, which may take long. Raises `PerfmodelError` where a worker fails, or the
    scheduler stops answering meanwhile: it would keep the folder of the sweep for ever."""
    comm, address = import_module("distributed.comm"), client.scheduler.address
    try:
        while True:
            with suppress(TimeoutError):
                return ask()
            client.sync(client.scheduler.identity, callback_timeout=_PATIENCE_S)
    except (TimeoutError, CancelledError, comm.CommClosedError):
        text = f"{address}: the scheduler does not answer any more; what is done stays"
        raise PerfmodelError(text) from None
    except (PerfmodelError, OSError):
        raise
    except Exception as error:
        raise PerfmodelError(f"a worker failed: {str(error).splitlines()[0]}") from None


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
        # A client waits for ever for the first word of what takes its connection and is silent.
        with ThreadPoolExecutor(1) as one:
            one.submit(asyncio.run, _hears(distributed, scheduler)).result()
        return distributed.Client(scheduler, timeout=_PATIENCE_S)
    except Exception as error:  # whatever may listen there
        text = str(error).splitlines()[0] if str(error) else f"silent for {_PATIENCE_S} s"
        raise UsageError(f"--scheduler {scheduler}: no scheduler answers: {text}") from None


async def _hears(distributed: Any, scheduler: str) -> None:
    async def ask() -> None:
        async with distributed.rpc(scheduler) as remote:
            await remote.identity()

    await asyncio.wait_for(ask(), _PATIENCE_S)


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
