"""Several files decoded at once, by processes of their own.

A worker is a fresh interpreter, started neither by forking (threads of the caller may hold locks)
nor through the caller's own script (which need not expect to be imported again). It gets its files
over standard input and answers with a pickle.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from perfmodel.base.files import check_input
from perfmodel.errors import PerfmodelError
from perfmodel.trace.files import FoundDocument, decode

MIN_BYTES = 40_000_000
"""Of JSON: smaller folders are read about as soon as workers start."""
GZIP_FACTOR = 10
"""Bytes of JSON per byte of a compressed trace, about."""
_COMMAND = "from perfmodel.trace.workers import serve; serve()"


def usual_workers(files: Sequence[Path]) -> int:
    """How many workers these files are worth: one for each processor, or 1 for small ones."""
    sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
    factors = [GZIP_FACTOR if file.suffix in (".gz", ".tgz") else 1 for file in files]
    if sum(size * factor for size, factor in zip(sizes, factors, strict=True)) < MIN_BYTES:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decode_all(files: Sequence[Path], max_bytes: int, workers: int) -> list[FoundDocument]:
    """The documents of all files, in order; each worker decodes every `workers`-th file.

    Raises what `decode` raises for the first of the files that it does for, and `PerfmodelError`
    where a worker ends without an answer (such as for lack of memory).
    """
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    for file in files:
        with suppress(OSError):  # a worker says why
            check_input(file)

    def answers(number: int) -> list[list[FoundDocument] | Exception]:
        share = files[number::workers]
        done = subprocess.run(
            [sys.executable, "-P", "-c", _COMMAND],
            input=pickle.dumps((share, max_bytes)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": folders},
            check=False,
        )
        if done.returncode:
            message = "the process that read it ended early: is memory short?"
            return [PerfmodelError(f"{share[0]}: {message}")]
        found: list[list[FoundDocument] | Exception] = pickle.loads(done.stdout)
        return found

    with ThreadPoolExecutor(workers) as pool:
        shares = list(pool.map(answers, range(workers)))
    documents = []
    for at in range(len(files)):
        answer = shares[at % workers][at // workers]
        if isinstance(answer, Exception):
            raise answer
        documents += answer
    return documents


def serve() -> None:
    """What a worker does: decode the files that standard input names, up to the first error."""
    files, max_bytes = pickle.load(sys.stdin.buffer)
    answers: list[list[FoundDocument] | Exception] = []
    for file in files:
        try:
            answers.append(decode(file, max_bytes))
        except (PerfmodelError, MemoryError) as error:
            answers.append(error)
            break
    pickle.dump(answers, sys.stdout.buffer, protocol=5)
