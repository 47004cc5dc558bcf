"""The documents behind a path, and what each holds: distinguished by their content. Large folders
are decoded by several processes.

Formats of trace files beside Kineto's: which documents each recognises, and how it reads them.

A plug-in adds one by the entry point `perfmodel.trace_formats`. Files of other tools that are not
read are named by what they begin with, with what to give instead.
"""

from __future__ import annotations

import codecs
import io
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from perfmodel.base.files import check_input, content_chunks, located, read_chunks
from perfmodel.base.registry import Registry
from perfmodel.errors import PerfmodelError, TraceError
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.kineto import decode_kineto
from perfmodel.trace.repairs import check_one_process

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace

TracePart: TypeAlias = "RankTrace | ExecutionTrace"


@dataclass(frozen=True)
class TraceFormat:
    """`recognises` tells by a document's content (decompressed, never empty) whether it is one, and
    never raises; `decode` gets the content and a name for errors, and raises `TraceError` that
    names the place. In folders and archives, files that end in one of `suffixes` are looked at."""

    recognises: Callable[[bytes], bool]
    decode: Callable[[bytes, str], TracePart | tuple[RankTrace, ...]]
    suffixes: tuple[str, ...] = ()


FORMATS: Registry[TraceFormat] = Registry("trace format", "perfmodel.trace_formats")
"""In the order of their names; the first that recognises a document reads it."""

ARCHIVES = (".tar.gz", ".tgz")


def member_suffixes() -> tuple[str, ...]:
    """How names of documents end."""
    more = (suffix for name in FORMATS for suffix in FORMATS[name].suffixes)
    return tuple(dict.fromkeys((".json", ".json.gz", *more)))


def file_suffixes() -> tuple[str, ...]:
    """How names of files end that hold documents."""
    return (*member_suffixes(), *ARCHIVES)


def _format(module: str, suffixes: tuple[str, ...] = (), name: str = "") -> TraceFormat:
    """The format `name` (else the module's) in one of our modules, which loads when needed."""

    def later(verb: str) -> Callable[..., Any]:
        return lambda *given: getattr(
            import_module(f"perfmodel.trace.{module}"), f"{verb}_{name or module}"
        )(*given)

    return TraceFormat(later("looks_like"), later("decode"), suffixes)


FORMATS.register("execution_trace")(_format("execution_trace"))
FORMATS.register("protobuf_execution_trace")(_format("chakra", (".et",)))
FORMATS.register("nsight")(_format("sqlite", (".sqlite",), "nsight"))
FORMATS.register("memory_snapshot")(_format("memory_snapshot", (".pickle",)))
FORMATS.register("sqlite")(_format("sqlite", (".db",)))

_HEAD_BYTES = 1 << 16
_KINETO = "record it with torch.profiler (`export_chrome_trace`)"
_OTHERS = (
    (
        "a timeline of rocprof or roctracer",
        rb'"traceEvents"\s*:\s*\[\s*\{\s*\}|"name"\s*:\s*"(CPU HIP API|HSA API|CPU HSA API)"',
        "record it with `rocprofv3 --output-format rocpd`, or with torch.profiler",
    ),
    (
        "a trace view of Ascend's profiler (torch_npu, msprof)",
        rb'"name"\s*:\s*"(Ascend Hardware|AscendCL|CANN|Overlap Analysis)"',
        "its device rows are not known; " + _KINETO + " on a GPU, or give its execution trace",
    ),
    ("a profile of JAX or TensorFlow", rb'"name"\s*:\s*"/(device:(GPU|TPU):\d|host:CPU)', _KINETO),
    (
        "a memory timeline of torch.profiler (`export_memory_timeline`)",
        rb"\A\s*\[\s*\[(\s*-?\d+\s*,\s*[0-3]\s*,\s*-?\d+\s*,\s*-?\d+\s*\]"
        rb"|[-\d\s,.e+]+\]\s*,\s*\[\s*\[|[-\d\s,.e+]{60000})",
        "give `torch.cuda.memory._dump_snapshot`, or a profile with profile_memory=True",
    ),
)
"""Files of other tools: which, what is in their first bytes, and what to give."""


class Foreign(str):
    """What a document of another tool is, and what to give instead."""

    __slots__ = ()


def foreign(content: bytes | bytearray) -> Foreign | None:
    """Whose file it is by its beginning; None where it is of nobody known."""
    head = bytes(content[:_HEAD_BYTES])
    for tool, mark, instead in _OTHERS:
        if re.search(mark, head, re.DOTALL):
            return Foreign(f"this is {tool}, which is not read: {instead}")
    return None


_SNIFF_BYTES = 512
KINETO_KEY = b'"traceEvents"'
_READ = re.compile(rb'"cat"\s*:\s*"(?i:kernel|gpu_memcpy)"')
"""What only a file has whose device is read."""
_RECORD_KEY = b'"perfmodel.collect.'
COLLECTOR_RECORD = "record"
"""What the collector writes beside its traces: no trace, and nothing to warn of."""


class FoundDocument(NamedTuple):
    """One document: where it stands, and what it holds."""

    where: str
    part: TracePart | str | None
    """`COLLECTOR_RECORD` beside our own traces; `Foreign` or None for others that are no trace."""


def decode(path: Path, max_bytes: int) -> list[FoundDocument]:
    """The documents of one file, or of `-`: standard input; `max_bytes` bounds the content of each.

    Raises `TraceError` (or `PerfmodelError` from reading) naming file and place.
    """
    if str(path) == "-":
        name = "standard input"
        content = content_chunks(sys.stdin.buffer, name, max_bytes=max_bytes)
    else:
        name, content = str(path), read_chunks(path, max_bytes=max_bytes)
    result = []
    for where, chunks in _unpacked(content, name, max_bytes):
        decoded = _decode(chunks, where)
        parts = decoded if isinstance(decoded, tuple) else (decoded,)
        result += [FoundDocument(where, part) for part in parts]
    return result


def _decode(chunks: Iterator[bytes], where: str) -> TracePart | tuple[RankTrace, ...] | str | None:
    head = bytearray()
    for chunk in chunks:
        searched = max(0, len(head) - len(KINETO_KEY))
        head += chunk
        if b"\0" in head[:_SNIFF_BYTES]:
            break  # JSON holds no zero byte
        if head.find(KINETO_KEY, searched) >= 0:
            if not _READ.search(head) and (named := foreign(head)):
                return named
            rank = decode_kineto(chain((bytes(head),), chunks), where)
            check_one_process(rank)
            return rank
    content = b"".join((head, *chunks))
    first = content[:_SNIFF_BYTES].lstrip()[:1]
    if not first:
        raise TraceError(f"{where}: the file is empty")
    for name in FORMATS:
        if FORMATS[name].recognises(content):
            return FORMATS[name].decode(content, where)
    if (named := foreign(content)) is not None:
        return named
    if first == b"<":
        raise TraceError(f"{where}: this is a web page or XML, not a trace; download the raw file")
    if _RECORD_KEY in content:
        return COLLECTOR_RECORD
    if first in (b"{", b"["):
        return None
    if where.endswith(".py"):
        raise TraceError(f"{where}: a module of it is {where}:CLASS")
    raise TraceError(
        f"{where}: neither a Kineto trace nor an execution trace nor a profile in SQLite"
    )


_TAR_MAGIC_AT = 257
_TAR_HEADER_BYTES = 512

_MAX_FOLDERS = 5
"""Folders that are named where traces lie in them, not here."""


def files_of(path: str | Path) -> list[Path]:
    """The files of a folder in order of name, or the one file (or `-`) that it is.

    Raises `TraceError` for a folder without traces, `UsageError` for a demo that there is not.
    """
    path = located(path)
    if not path.is_dir():
        return [path]
    suffixes = file_suffixes()
    try:
        every = sorted(path.iterdir())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    files = [each for each in every if _is_document(each.name, suffixes)]
    if not files:
        inner = []
        for each in every:
            with suppress(OSError):  # of what cannot be looked into
                if any(_is_document(file.name, suffixes) for file in each.iterdir()):
                    inner.append(each.name)
        some = ", ".join(inner[:_MAX_FOLDERS]) + (", ..." if inner[_MAX_FOLDERS:] else "")
        hint = f"; there are some in {some}" if inner else ""
        raise TraceError(
            f"{path}: no trace in this folder (looked for {', '.join(suffixes)}){hint}"
        )
    return files


def _is_document(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file is to be looked at; what macOS keeps of one beside it (`._NAME`) is not."""
    return name.lower().endswith(suffixes) and not name.rpartition("/")[2].startswith("._")


def _unpacked(
    chunks: Iterator[bytes], where: str, max_bytes: int
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """(name for errors, content in chunks) of the document itself, or of the members of the tar
    archive that it is, each to be read before the next is asked for."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _TAR_HEADER_BYTES:
            break
    content = chain((head,), chunks)
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar":
        yield from _members(content, where, max_bytes)
    else:
        yield where, _without_mark(content)


def _without_mark(content: Iterator[bytes]) -> Iterator[bytes]:
    """Text without the byte order mark that Windows writes before it."""
    return chain((next(content, b"").removeprefix(codecs.BOM_UTF8),), content)


def _members(
    content: Iterable[bytes], where: str, max_bytes: int
) -> Iterator[tuple[str, Iterator[bytes]]]:
    import tarfile

    members, suffixes = False, member_suffixes()
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(content))) as archive:
            for member in sorted(archive.getmembers(), key=lambda m: m.name):
                file = archive.extractfile(member) if member.isfile() else None
                if file is None or not _is_document(member.name, suffixes):
                    continue
                members = True
                name = f"{where}:{member.name}"
                inner = content_chunks(io.BytesIO(file.read()), name, max_bytes=max_bytes)
                yield name, _without_mark(inner)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise TraceError(f"{where}: damaged archive: {error}") from None
    if not members:
        raise TraceError(f"{where}: no trace in this archive")


MIN_BYTES = 40_000_000
"""Of JSON: smaller folders are read about as soon as workers start."""
GZIP_FACTOR = 10
"""Bytes of JSON per byte of a compressed trace, about."""
_COMMAND = "from perfmodel.trace.files import serve; serve()"


def usual_workers(files: Sequence[Path]) -> int:
    """How many workers these files are worth: one for each processor, or 1 for small ones."""
    sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
    factors = [GZIP_FACTOR if file.suffix in (".gz", ".tgz") else 1 for file in files]
    if sum(size * factor for size, factor in zip(sizes, factors, strict=True)) < MIN_BYTES:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decode_files(path: str | Path, max_bytes: int, workers: int | None) -> list[FoundDocument]:
    """The documents of all files behind `path`, in order.

    So many `workers` (none: as many as the files are worth) decode a share of the files each.
    Raises what `decode` raises for the first of the files that it does for, and `PerfmodelError`
    where a worker ends without an answer (such as for lack of memory).
    """
    # In place of a folder in the folder that is named as a file would be (`rank0.json/`), its own.
    files = [file for each in files_of(path) for file in files_of(each)]
    count = 1 if len(files) == 1 else min(workers or usual_workers(files), len(files))
    if count <= 1:
        return [each for file in files for each in decode(file, max_bytes)]
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    folders = os.pathsep.join(folder for folder in sys.path if folder)
    for file in files:
        with suppress(OSError):  # a worker says why
            check_input(file)

    def answers(number: int) -> list[list[FoundDocument] | Exception]:
        # A fresh interpreter, started neither by forking (threads of the caller may hold locks) nor
        # through the caller's own script (which need not expect to be imported again).
        share = files[number::count]
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

    with ThreadPoolExecutor(count) as pool:
        shares = list(pool.map(answers, range(count)))
    result = []
    for at in range(len(files)):
        answer = shares[at % count][at // count]
        if isinstance(answer, Exception):
            raise answer
        result += answer
    return result


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
