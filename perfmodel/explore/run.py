"""Running a sweep: the parts that are missing, here or on the processes of a Dask cluster; and its
results, a folder of Parquet parts, each whole or not at all.

Which points a part holds is fixed by its number. So a sweep that was killed goes on with the parts
that are missing: no row is lost, none is there twice. A part whose worker dies is done again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache
from importlib import import_module
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import perfmodel
from perfmodel.base.arrays import Ints
from perfmodel.base.files import atomic_write, read_bytes, write_text
from perfmodel.base.frames import MAX_TABLE_BYTES, frame_of
from perfmodel.base.progress import Begin, silent
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore.axes import Points
from perfmodel.explore.evaluate import Evaluate, evaluation_of
from perfmodel.explore.result import Sweep
from perfmodel.explore.spec import ERROR, POINT, Spec, load_spec

MANIFEST = "_sweep.json"
"""Readers of Parquet folders pass over names that begin so."""
SCHEMA = "perfmodel.sweep-results/3"
_MAX_BYTES = 100_000_000
_PART = re.compile(r"part-(\d{8})\.parquet")
AHEAD = 4
"""Parts per worker that are under way or waiting: what is done is written before more is asked."""
_CONNECT_S = 10
_SETTINGS = {
    "distributed.scheduler.allowed-failures": 20,
    "distributed.worker.profile.enabled": False,
}
"""Workers that may die over one part; and Dask looks at its workers' stacks a hundred times a
second, a third of what a point costs."""


def identity(spec: Spec) -> str:
    """A digest of all that the results depend on: points, input, machine, wishes, the version and
    the data of this package."""
    about = asdict(spec)
    del about["where"], about["at"]
    text = json.dumps(about, sort_keys=True, default=str)
    digest = hashlib.sha256(f"{SCHEMA}\n{perfmodel.__version__}\n{_data()}\n{text}\n".encode())
    values = [value for each in spec.space.values.values() for value in each]
    named = [each for each in (spec.input, spec.hardware, *values) if isinstance(each, str)]
    paths = [Path(each) for each in dict.fromkeys(named) if "/" in each or "." in each]
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    for file in sorted(each for each in files if each.is_file()):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def _data() -> str:
    """A digest of the catalogues and of what models were fitted to."""
    digest = hashlib.sha256()
    root = Path(perfmodel.__file__).parent
    for path in sorted((*root.rglob("*.toml"), *root.rglob("*.json"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def part_content(spec: Spec, part: int, evaluate: Evaluate) -> bytes:
    """The Parquet content of one part: number, axes (of one type in every part) and figures of
    points, and why a point has none (then NaN)."""
    import pandas as pd

    begin, end = spec.bounds(part)
    points = spec.space.points(begin, end)
    columns: dict[str, Any] = {POINT: np.arange(begin, end)}
    for axis, values in spec.space.values.items():
        column, kinds = points.column(axis), {type(value) for value in values}
        if kinds <= {int, float} or kinds == {bool}:
            columns[axis] = np.array(column, kinds.pop() if len(kinds) == 1 else float)
        else:
            columns[axis] = [each if isinstance(each, str) else json.dumps(each) for each in column]
    columns |= {name: np.full(len(points), np.nan) for name in evaluate.columns}
    columns[ERROR] = np.full(len(points), "", object)
    for places, found in _evaluated(evaluate, points, np.arange(len(points))):
        for name, each in found.items():
            columns[name][places] = each
    content = BytesIO()
    pd.DataFrame(columns).to_parquet(content, index=False)
    return content.getvalue()


def _evaluated(
    evaluate: Evaluate, points: Points, places: Ints
) -> Iterator[tuple[Ints, dict[str, Any]]]:
    """Figures of points; of those that cannot be, halved until they stand alone, why."""
    try:
        yield places, evaluate(points.take(places))
    except PerfmodelError as error:
        if len(places) == 1:
            yield places, {ERROR: str(error)}
            return
        half = len(places) // 2
        for some in (places[:half], places[half:]):
            yield from _evaluated(evaluate, points, some)


def _opened(folder: Path, spec: Spec) -> dict[int, Path]:
    """The parts that the folder holds, made where there is none. Raises `UsageError` where it holds
    anything but results of this very sweep."""
    about = {"schema": SCHEMA, "identity": identity(spec), "points": len(spec.space)}
    manifest = folder / MANIFEST
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; results of a sweep are a folder")
    if manifest.is_file():
        try:
            held = json.loads(read_bytes(manifest, max_bytes=_MAX_BYTES))
        except (ValueError, RecursionError):
            raise UsageError(f"{manifest}: not JSON, damaged: name another folder") from None
        if not isinstance(held, dict) or held.get("identity") != about["identity"]:
            raise UsageError(
                f"{folder}: holds results of another sweep (or of another version, input or "
                "machine): name another folder with -o"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: is not empty and no results of a sweep: name another folder")
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = error.strerror or str(error)
            raise PerfmodelError(f"{folder}: cannot be written: {text}") from None
        write_text(manifest, json.dumps(about, indent=1) + "\n")
    names = ((path, _PART.fullmatch(path.name)) for path in sorted(folder.iterdir()))
    return {int(stored[1]): path for path, stored in names if stored}


def _frame(spec: Spec, parts: dict[int, Path]) -> Any:
    """All rows, by their number. Raises `PerfmodelError` for damaged parts."""
    import pandas as pd

    frames = []
    for part, path in sorted(parts.items()):
        try:
            frame = frame_of(read_bytes(path, max_bytes=MAX_TABLE_BYTES))
            if frame[POINT].tolist() != list(range(*spec.bounds(part))):
                raise ValueError
        except (ValueError, KeyError, OSError, PerfmodelError):
            raise PerfmodelError(f"{path}: damaged: delete it, sweep again") from None
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def sweep(
    spec: Spec | str | Path,
    folder: str | Path | None = None,
    *,
    objective: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    begin: Begin = silent,
) -> Sweep:
    """All points of `spec`, or of the TOML file there, those that `folder` holds already not again.

    `objective` names, separated by commas, what counts in the place of the file's own. Without a
    `folder` it has the file's name, with `-results`, and is here. `workers` processes of this
    machine, or those of the Dask cluster at `scheduler`, share the parts; without either they are
    done here. Raises `PerfmodelError`; what is done stays.
    """
    if not isinstance(spec, Spec):
        spec = load_spec(spec, objective)
    evaluate = evaluation_of(spec)
    folder = Path(f"{Path(spec.where).stem}-results" if folder is None else folder)
    parts, points = _opened(folder, spec), len(spec.space)
    missing = [part for part in range(spec.parts) if part not in parts]
    done = points - sum(last - first for first, last in map(spec.bounds, missing))
    begin(f"{points:,} points", done, points)
    made: Iterable[tuple[int, bytes]]
    if missing and (workers or scheduler):
        made = run_on_workers(spec, missing, workers, scheduler)
    else:
        made = ((part, part_content(spec, part, evaluate)) for part in missing)
    for part, content in made:
        parts[part] = folder / f"part-{part:08d}.parquet"
        with atomic_write(parts[part]) as file:
            file.write(content)
        first, last = spec.bounds(part)
        done += last - first
        begin(f"{points:,} points", done, points)
    result = Sweep(spec, _frame(spec, parts), str(folder))
    best = next(iter(result.best().values()), None)
    if best is None:
        return result
    number = int(result.frame[POINT].iloc[best])
    return replace(result, reads=evaluate.reads(spec.space.points(number, number + 1)))


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
