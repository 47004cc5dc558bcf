"""Reading within limits, and writing whole files or nothing.

Imports the standard library only and runs on Python 3.10: the collector uses it inside training
images.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from perfmodel.errors import ON_COMMAND_LINE, PerfmodelError, UsageError

GZIP_MAGIC = b"\x1f\x8b"
DEFAULT_MAX_BYTES = 4_000_000_000
_CHUNK_BYTES = 1 << 18
_MAX_NESTED_GZIP = 3


DEMO = "demo:"
_DEMOS = {
    DEMO: "dlrm_cpu_kineto.json.gz",
    f"{DEMO}2rank": "2rank",
    f"{DEMO}gpu": "gpu/dlrm_default_b512_kineto.json.gz",
}
"""Traces that come with the package, by what stands for their path."""


def located(path: str | Path) -> Path:
    """The path, or that of the bundled trace it names. Raises `UsageError` where there is none."""
    name = str(path)
    if name.startswith(DEMO) and name not in _DEMOS:
        raise UsageError(f"{name}: no such demo; there are {', '.join(_DEMOS)}")
    return Path(__file__).parents[1] / "demo" / _DEMOS[name] if name in _DEMOS else Path(path)


def read_bytes(path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The content of `path`, gunzipped when it is gzip, whatever its name.

    Raises `PerfmodelError` when the file cannot be read, when its gzip stream is damaged, and
    when the content is larger than `max_bytes` (so a gzip bomb costs no memory).
    """
    return b"".join(read_chunks(path, max_bytes=max_bytes))


def read_chunks(path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[bytes]:
    """The content that `read_bytes` gives, in pieces of at most 256 KiB, read as they are taken."""
    try:
        if is_stdin(path):
            yield from content_chunks(sys.stdin.buffer, "standard input", max_bytes=max_bytes)
            return
        check_input(path)
        with open(path, "rb") as file:
            yield from content_chunks(file, str(path), max_bytes=max_bytes)
    except OSError as error:
        raise PerfmodelError(f"{path}: cannot be read: {error.strerror or error}") from None


_SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(perfmodel\.[\w.-]+/\d+)"')
_HEAD_BYTES = 4096


def schema_of(path: Path) -> str | None:
    """The schema that an answer in JSON begins with, packed or on standard input too; None of any
    other file, and of none."""
    head = b""
    with suppress(OSError, PerfmodelError):  # whoever reads it as what it is says why it cannot be
        if is_stdin(path):
            stdin: Any = sys.stdin.buffer
            head = next(content_chunks(BytesIO(stdin.peek(_HEAD_BYTES)), "-"), b"")
        elif suffix_of(path) == ".json" and path.is_file():
            with open(path, "rb") as file:
                head = next(content_chunks(file, str(path)), b"")
    found = _SCHEMA.match(head[:_HEAD_BYTES])
    return found[1].decode() if found else None


def is_stdin(path: Path) -> bool:
    """Whether `path` is the `-` of a command line, with something to read."""
    return str(path) == "-" and ON_COMMAND_LINE.get() and hasattr(sys.stdin.buffer, "peek")


INPUTS: ContextVar[set[tuple[int, int]] | None] = ContextVar("INPUTS", default=None)
"""Device and inode of all that one command has read, also where only a folder of it was named."""


def check_input(path: Path) -> None:
    """Note that a file is read, which `atomic_write` then does not replace.

    Raises `PerfmodelError` for a pipe or a device, which may never end; `OSError` for nothing.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise PerfmodelError(f"{path}: no regular file; `-` reads a trace from standard input")
    if (inputs := INPUTS.get()) is not None:
        inputs.add((found.st_dev, found.st_ino))


def content_chunks(
    file: BinaryIO, where: str, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Iterator[bytes]:
    """The rest of an open file in pieces; `where` names it in errors.

    Gzip is decompressed, also where what was compressed is gzip again (downloads often are).
    """
    first = file.read(_CHUNK_BYTES)
    rest = iter(lambda: file.read(_CHUNK_BYTES), b"")
    pieces = _limited(chain((first,) if first else (), rest), where, max_bytes)
    for _ in range(_MAX_NESTED_GZIP):
        if not first.startswith(GZIP_MAGIC):
            break
        pieces = _limited(_gunzipped(pieces, where), where, max_bytes)
        first = next(pieces, b"")
        pieces = chain((first,) if first else (), pieces)
    return pieces


def gunzip(raw: bytes, where: str, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """`raw` (one or several gzip members) decompressed; `where` names it in errors."""
    return b"".join(_limited(_gunzipped([raw], where), where, max_bytes))


def _limited(pieces: Iterable[bytes], where: str, max_bytes: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise PerfmodelError(f"{where}: its content is above the limit of {max_bytes} bytes")
        yield piece


def _gunzipped(pieces: Iterable[bytes], where: str) -> Iterator[bytes]:
    """The content of gzip members, one after the other; zeros may stand after each, as in gzip."""
    size, inflate = 0, _inflate()
    member = inflate.decompressobj(wbits=31)
    is_drained = True
    for piece in pieces:
        while piece or not is_drained:
            if member.eof:
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                member = inflate.decompressobj(wbits=31)
            try:
                content = member.decompress(piece, _CHUNK_BYTES)
            except inflate.error as error:
                raise PerfmodelError(
                    f"{where}: damaged gzip after {size} decompressed bytes: {error}"
                ) from None
            size += len(content)
            yield content
            piece = member.unconsumed_tail or member.unused_data
            is_drained = len(content) < _CHUNK_BYTES
    if not member.eof:
        raise PerfmodelError(
            f"{where}: gzip ends early after {size} decompressed bytes: "
            "the file was cut; copy it again"
        )


def _inflate() -> Any:
    """ISA-L, three times as fast, where `perfmodel[fast]` installed it; else zlib."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


@contextmanager
def atomic_write(path: Path, *, updates: bool = False) -> Iterator[BinaryIO]:
    """A binary file that appears at `path` whole, or not at all.

    Written in its folder, flushed to disk, then renamed over it, and packed where its name ends in
    `.gz`. A link to a file stays one, and a file keeps its mode; what is standard output gets it
    there. On any exception the temporary file is removed and an older file at `path` stays as it
    was. Raises `UsageError` where the same command has read that one, unless it `updates` it.
    """
    import tempfile  # with random numbers and hashes: only who writes needs it

    path = Path(path)
    if is_stdout(path):
        content = BytesIO()
        yield content
        sys.stdout.flush()
        sys.stdout.buffer.write(content.getvalue())
        sys.stdout.flush()
        return
    place, older = Path(os.path.realpath(path)), None
    try:
        with suppress(FileNotFoundError):  # also of a link to what is not there yet
            older = os.stat(path)
        if older and not stat.S_ISREG(older.st_mode):
            raise PerfmodelError(f"{path}: cannot be written: it is not a file")
        if older and not updates and (older.st_dev, older.st_ino) in (INPUTS.get() or ()):
            raise UsageError(f"{path}: is an input; write elsewhere")
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent)
    except OSError as error:
        raise PerfmodelError(f"{path}: cannot be written: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            if path.suffix.lower() == ".gz":
                import gzip

                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, stat.S_IMODE(older.st_mode) if older else 0o666 & ~mask)
        if older and older.st_nlink > 1:  # its other names are to stay names of it
            place.write_bytes(temporary.read_bytes())
            temporary.unlink()
        else:
            os.replace(temporary, place)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PerfmodelError(f"{path}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_stdout(path: Path) -> bool:
    """Whether what is written to `path` is to go to standard output: a link to it, the file that
    it goes to, or `-` on a command line."""
    if str(path) == "-":
        return ON_COMMAND_LINE.get()
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # none, closed, or one of a test's own
        return False


def suffix_of(path: Path) -> str:
    """What the name of a file says that it holds, in lower case, packed (`.gz`) or not."""
    named = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return named.suffix.lower()


def write_text(path: Path, text: str, *, updates: bool = False) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all; see `atomic_write`."""
    with atomic_write(path, updates=updates) as file:
        file.write(text.encode())


def check_writable(path: Path, source: str | Path | None) -> None:
    """Raise `PerfmodelError` where a file at `path` cannot be written, or is the input itself."""
    if is_stdout(path):
        return
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise PerfmodelError(f"{path}: cannot be written: it is {kind}")
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise PerfmodelError(f"{path}: cannot be written: there is no folder {folder}")
    if source and path.exists() and Path(source).exists() and path.samefile(source):
        raise UsageError(f"{path}: is the input; write elsewhere")
