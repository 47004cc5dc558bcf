"""The jobs behind paths: a file, or whatever traces lie anywhere below a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from perfmodel.errors import PerfmodelError, TraceError, UsageError
from perfmodel.files import DEFAULT_MAX_BYTES, read_chunks
from perfmodel.trace.documents import SUFFIXES
from perfmodel.trace.read import rank_in_name

DEMO = "bundled demo"
_DEMO_FILE = "dlrm_cpu_kineto.json.gz"
_ARCHIVES = (".tar.gz", ".tgz")
_KEY = b'"traceEvents"'
_STATED = re.compile(
    rb'"distributedInfo"\s*:\s*\{(?=[^{}]*"world_size"\s*:\s*(?!1\D)(\d+))[^{}]*"rank"\s*:\s*(\d+)'
)


class _Stated(NamedTuple):
    """What a Kineto file says of its place in a job; -1: nothing, and a file's name may say it."""

    rank: int
    world_size: int = -1


@dataclass(frozen=True)
class Job:
    """One training or inference job: a file, or a folder with a file per rank."""

    name: str
    """The same wherever the folder lies: its own name and the way below it."""
    path: Path
    asked: bool = True
    """Named by the user, and not come upon in a folder."""


def demo_job() -> Job:
    """The trace that comes with the package."""
    return Job(DEMO, Path(str(resources.files("perfmodel") / "demo" / _DEMO_FILE)))


def find_jobs(paths: Iterable[str | Path], *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Job]:
    """The jobs of files and folders, in order of name.

    A folder whose traces say different ranks of one job is that job; otherwise each Kineto file
    and each archive is one. Other files are passed over. Raises `TraceError` where a folder
    holds no trace, and `UsageError` where two jobs would have one name.
    """
    found: dict[str, Job] = {}
    for path in map(Path, paths):
        for job in _jobs(path, max_bytes):
            other = found.setdefault(job.name, job)
            if other != job:
                raise UsageError(f"{job.path} and {other.path} would both be {job.name!r}")
    return [found[name] for name in sorted(found)]


def _jobs(path: Path, max_bytes: int) -> list[Job]:
    root = Path(os.path.abspath(path))
    if not root.is_dir():
        return [Job(root.name, path)]
    jobs: list[Job] = []
    for folder, folders, files in os.walk(root, onerror=_refuse):
        folders.sort()
        below = (Path(root.name) / Path(folder).relative_to(root)).as_posix()
        names = sorted(file for file in files if file.lower().endswith(SUFFIXES))
        at = path / Path(folder).relative_to(root)
        jobs += _of_folder(at, below, names, max_bytes)
    if not jobs:
        raise TraceError(f"{path}: no Kineto trace in this folder or below it")
    return jobs


def _of_folder(folder: Path, name: str, files: list[str], max_bytes: int) -> Iterator[Job]:
    archives = [file for file in files if file.lower().endswith(_ARCHIVES)]
    ranks = {
        file: rank
        for file in files
        if file not in archives and (rank := _rank(folder / file, max_bytes)) is not None
    }
    numbers = {stated.rank for stated in ranks.values()}
    sizes = {stated.world_size for stated in ranks.values()}
    of_one_job = -1 not in numbers and len(numbers) == len(ranks) and len(sizes) == 1
    if len(ranks) > 1 and of_one_job and not archives:
        yield Job(name, folder, asked=False)
        return
    for file in sorted([*archives, *ranks]):
        yield Job(f"{name}/{file}", folder / file, asked=False)


def _rank(path: Path, max_bytes: int) -> _Stated | None:
    """The rank that a Kineto file says or is named after; None: no Kineto file.

    A file that cannot be read counts: reading it will say why.
    """
    head = bytearray()
    try:
        for chunk in read_chunks(path, max_bytes=max_bytes):
            unsearched = max(0, len(head) - len(_KEY))
            head += chunk
            at = head.find(_KEY, unsearched)
            if at >= 0:
                stated = _STATED.search(head, 0, at)
                if stated:
                    return _Stated(int(stated.group(2)), int(stated.group(1)))
                rank = rank_in_name(path.name)
                return _Stated(-1 if rank is None else rank)
    except PerfmodelError:
        return _Stated(-1)
    return None


def _refuse(error: OSError) -> None:
    raise TraceError(f"{error.filename}: cannot be read: {error.strerror or error}")
