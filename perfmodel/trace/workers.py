"""Several files decoded at once, by processes of their own.

A worker is a fresh interpreter, started neither by forking (threads of the caller may hold locks)
nor through the caller's own script (which need not expect to be imported again). Its answers come
back as pickles, of which nothing is called but what a trace is made of.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from perfmodel.errors import PerfmodelError, TraceError, UsageError
from perfmodel.files import check_input
from perfmodel.trace.columns import Allocations, DeviceProperties, RankTrace, Strings
from perfmodel.trace.files import FoundDocument, Options, decode
from perfmodel.trace.window import Window

MIN_BYTES = 40_000_000
"""Of JSON: smaller folders are read about as soon as workers start."""
GZIP_FACTOR = 10
"""Bytes of JSON per byte of a compressed trace, about."""
_COMMAND = "from perfmodel.trace.workers import serve; serve()"
_ALLOWED_CLASSES = {
    "builtins": ("MemoryError", "slice"),
    "numpy": ("dtype", "ndarray"),
    "numpy.core.numeric": ("_frombuffer",),
    "numpy._core.numeric": ("_frombuffer",),
    "pathlib": ("PosixPath", "WindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath"),
}
"""By module, what questions and answers hold, beside our own values (`_own_classes`)."""


def usual_workers(files: Sequence[Path]) -> int:
    """How many workers these files are worth: one for each processor, or 1 for small ones."""
    sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
    factors = [GZIP_FACTOR if file.suffix in (".gz", ".tgz") else 1 for file in files]
    if sum(size * factor for size, factor in zip(sizes, factors, strict=True)) < MIN_BYTES:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decode_all(files: Sequence[Path], options: Options, workers: int) -> list[FoundDocument]:
    """The documents of all files, in order; `workers` of the files at a time.

    Raises what `decode` raises for the first of the files that it does for, and `PerfmodelError`
    where a worker ends without an answer (such as for lack of memory).
    """
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    for file in files:
        with suppress(OSError):  # a worker says why
            check_input(file)
    started = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": folders},
        )
        for _ in range(workers)
    ]
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    for process in started:
        idle.put(process)

    def ask(file: Path) -> list[FoundDocument]:
        process = idle.get()
        try:
            return _ask(process, file, options)
        finally:
            idle.put(process)

    try:
        with ThreadPoolExecutor(workers) as pool:
            asked = [pool.submit(ask, file) for file in files]
            try:
                return [document for each in asked for document in each.result()]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in started:
                    process.kill()
                raise
    finally:
        for process in started:
            process.kill()
            with suppress(OSError), process:
                pass


def _ask(process: subprocess.Popen[bytes], file: Path, options: Options) -> list[FoundDocument]:
    """Have a worker decode a file."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _send(process.stdin, (file, options))
        answer = _receive(process.stdout)
    except (EOFError, OSError, pickle.UnpicklingError):
        raise PerfmodelError(
            f"{file}: the process that read it ended early: is memory short?"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    documents: list[FoundDocument] = answer
    return documents


def serve() -> None:
    """What a worker does: decode the files that standard input names, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends it
    while True:
        try:
            file, options = _receive(sys.stdin.buffer)
        except EOFError:
            return
        answer: list[FoundDocument] | Exception
        try:
            answer = decode(file, options)
        except (PerfmodelError, MemoryError) as error:
            answer = error
        _send(sys.stdout.buffer, answer)


def _send(file: Any, content: object) -> None:
    pickle.dump(content, file, protocol=5)
    file.flush()


def _receive(file: Any) -> Any:
    """What `_send` sent. Raises `EOFError` where it ends early."""
    return _Unpickler(file).load()


@cache
def _own_classes() -> frozenset[tuple[str, str]]:
    """(module, name) of our classes that a trace, a question or an error is made of."""
    from perfmodel.trace import execution_trace_columns as et

    classes = (
        *(PerfmodelError, TraceError, UsageError, FoundDocument, Options, Window),
        *(Allocations, DeviceProperties, RankTrace, Strings),
        *(et.Arguments, et.Collectives, et.ExecutionTrace, et.ProcessGroup, et.Tensors),
    )
    return frozenset((each.__module__, each.__name__) for each in classes)


class _Unpickler(pickle.Unpickler):
    """Finds what `_ALLOWED_CLASSES` names, our own values, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED_CLASSES.get(module, ()) and (module, name) not in _own_classes():
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a trace")
        return super().find_class(module, name)
