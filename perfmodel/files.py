"""Reading within limits, and writing whole files or nothing.

Imports the standard library only and runs on Python 3.10: the collector uses it inside training
images.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from perfmodel.errors import PerfmodelError

GZIP_MAGIC = b"\x1f\x8b"
DEFAULT_MAX_BYTES = 4_000_000_000
_CHUNK_BYTES = 1 << 20


def read_bytes(path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The content of `path`, gunzipped when it is gzip, whatever its name.

    Raises `PerfmodelError` when the file cannot be read, when its gzip stream is damaged, and
    when the content is larger than `max_bytes` (so a gzip bomb costs no memory).
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PerfmodelError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > max_bytes:
        raise PerfmodelError(f"{path}: {len(raw)} bytes, above the limit of {max_bytes}")
    return gunzip(raw, str(path), max_bytes=max_bytes) if raw[:2] == GZIP_MAGIC else raw


def gunzip(raw: bytes, where: str, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """`raw` (one or several gzip members) decompressed; `where` names it in errors."""
    content = bytearray()
    rest = raw
    while rest:
        member = zlib.decompressobj(wbits=31)
        try:
            while rest and not member.eof:
                content += member.decompress(rest, _CHUNK_BYTES)
                rest = member.unconsumed_tail or member.unused_data
                if len(content) > max_bytes:
                    raise PerfmodelError(
                        f"{where}: decompresses to more than the limit of {max_bytes} bytes"
                    )
        except zlib.error as error:
            raise PerfmodelError(
                f"{where}: damaged gzip after {len(content)} decompressed bytes: {error}"
            ) from None
        if not member.eof:
            raise PerfmodelError(
                f"{where}: gzip ends early after {len(content)} decompressed bytes: "
                "the file was cut; copy it again"
            )
        if not rest.startswith(GZIP_MAGIC):
            break
    return bytes(content)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at `path` whole, or not at all.

    Written beside `path`, flushed to disk, then renamed over it. On any exception the temporary
    file is removed and an older file at `path` stays as it was.
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise PerfmodelError(f"{path}: cannot be written: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PerfmodelError(f"{path}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
