"""Several files decoded at once, by processes of their own.

A worker is a fresh interpreter, started neither by forking (threads of the caller may hold locks)
nor through the caller's own script (which need not expect to be imported again). Its answers come
back as pickled structure and, beside it, the bytes of the columns, each copied once. Of a pickle
nothing is called but what a trace is made of.
"""

from __future__ import annotations

import io
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
from perfmodel.trace.columns import Allocations, DeviceProperties, RankTrace, Strings
from perfmodel.trace.files import FoundDocument, Options, decode
from perfmodel.trace.window import Window

MIN_BYTES = 40_000_000
"""Of JSON: smaller folders are read about as soon as workers start."""
GZIP_FACTOR = 10
"""Bytes of JSON per byte of a compressed trace, about."""
_COMMAND = "from perfmodel.trace.workers import serve; serve()"
_INT_BYTES = 8
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
    started = [_Worker() for _ in range(workers)]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in started:
        idle.put(worker)

    def ask(file: Path) -> list[FoundDocument]:
        worker = idle.get()
        try:
            return worker.ask(file, options)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(workers) as pool:
            asked = [pool.submit(ask, file) for file in files]
            try:
                return [found for each in asked for found in each.result()]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in started:
                    worker.kill()
                raise
    finally:
        for worker in started:
            worker.end()


class _Worker:
    """A process that decodes one file after another."""

    def __init__(self) -> None:
        folders = os.pathsep.join(folder for folder in sys.path if folder)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": folders},
        )

    def ask(self, file: Path, options: Options) -> list[FoundDocument]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, (file, options))
            found = _receive(self._process.stdout)
        except (EOFError, OSError):
            raise PerfmodelError(
                f"{file}: the process that read it ended early: is memory short?"
            ) from None
        if isinstance(found, Exception):
            raise found
        documents: list[FoundDocument] = found
        return documents

    def kill(self) -> None:
        """Stop it, whatever it is at."""
        self._process.kill()

    def end(self) -> None:
        """Leave nothing of it behind."""
        self.kill()
        with suppress(OSError), self._process:
            pass


def serve() -> None:
    """What a worker does: decode the files that standard input names, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends it
    while True:
        try:
            file, options = _receive(sys.stdin.buffer)
        except EOFError:
            return
        found: list[FoundDocument] | Exception
        try:
            found = decode(file, options)
        except (PerfmodelError, MemoryError) as error:
            found = error
        _send(sys.stdout.buffer, found)


def _send(file: Any, content: object) -> None:
    """Structure first, then the bytes of its arrays, each behind its length."""
    buffers: list[pickle.PickleBuffer] = []
    structure = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    parts = [structure, *(buffer.raw() for buffer in buffers)]
    file.write(len(parts).to_bytes(_INT_BYTES, "little"))
    for part in parts:
        file.write(len(part).to_bytes(_INT_BYTES, "little"))
        file.write(part)
    file.flush()


def _receive(file: Any) -> Any:
    """What `_send` sent. Raises `EOFError` where it ends early."""
    structure, *buffers = [_read_part(file) for _ in range(_read_size(file))]
    return _Unpickler(io.BytesIO(structure), buffers=buffers).load()


@cache
def _own_classes() -> frozenset[tuple[str, str]]:
    """(module, name) of our classes that a trace, a question or an error is made of."""
    from perfmodel.trace import execution_trace_columns as et

    own = (
        *(PerfmodelError, TraceError, UsageError, FoundDocument, Options, Window),
        *(Allocations, DeviceProperties, RankTrace, Strings),
        *(et.Arguments, et.Collectives, et.ExecutionTrace, et.ProcessGroup, et.Tensors),
    )
    return frozenset((each.__module__, each.__name__) for each in own)


class _Unpickler(pickle.Unpickler):
    """Finds what `_ALLOWED_CLASSES` names, our own values, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED_CLASSES.get(module, ()) and (module, name) not in _own_classes():
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a trace")
        return super().find_class(module, name)


def _read_size(file: Any) -> int:
    content = file.read(_INT_BYTES)
    if len(content) < _INT_BYTES:
        raise EOFError
    return int.from_bytes(content, "little")


def _read_part(file: Any) -> bytearray:
    part = bytearray(_read_size(file))
    if file.readinto(part) < len(part):
        raise EOFError
    return part
