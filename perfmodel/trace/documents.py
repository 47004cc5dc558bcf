"""The documents behind a path: a file, the members of an archive, the files of a folder."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from perfmodel.errors import TraceError
from perfmodel.files import content_chunks, read_chunks

SUFFIXES = (".json", ".json.gz", ".et", ".tar.gz", ".tgz")
_MEMBER_SUFFIXES = SUFFIXES[:3]
_TAR_MAGIC_AT = 257
_TAR_HEADER_BYTES = 512


def documents(path: str | Path, max_bytes: int) -> Iterator[tuple[str, Iterator[bytes]]]:
    """(name for errors, decompressed content in chunks) of every document behind `path`.

    `-` is standard input. Each is to be read before the next is asked for. `max_bytes` bounds the
    content of each. Raises `TraceError` for a folder or archive without traces, and
    `PerfmodelError` for what cannot be read.
    """
    if str(path) == "-":
        where = "standard input"
        chunks = content_chunks(sys.stdin.buffer, where, max_bytes=max_bytes)
        yield from _unpacked(chunks, where, max_bytes)
        return
    for file in files_of(path):
        yield from _unpacked(read_chunks(file, max_bytes=max_bytes), str(file), max_bytes)


def files_of(path: str | Path) -> list[Path]:
    """The files of a folder in order of name, or the one file (or `-`) that it is.

    Raises `TraceError` for a folder without traces.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    files = sorted(f for f in path.iterdir() if f.name.lower().endswith(SUFFIXES))
    if not files:
        raise TraceError(f"{path}: no trace in this folder (looked for {', '.join(SUFFIXES)})")
    return files


def _unpacked(
    chunks: Iterator[bytes], where: str, max_bytes: int
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The document itself, or the members of the tar archive that it is."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _TAR_HEADER_BYTES:
            break
    content = chain((head,), chunks)
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar":
        yield from _members(content, where, max_bytes)
    else:
        yield where, content


def _members(
    content: Iterable[bytes], where: str, max_bytes: int
) -> Iterator[tuple[str, Iterator[bytes]]]:
    import tarfile

    found = False
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(content))) as archive:
            for member in sorted(archive.getmembers(), key=lambda m: m.name):
                file = archive.extractfile(member) if member.isfile() else None
                if file is None or not member.name.lower().endswith(_MEMBER_SUFFIXES):
                    continue
                found = True
                name = f"{where}:{member.name}"
                inner = content_chunks(io.BytesIO(file.read()), name, max_bytes=max_bytes)
                yield name, inner
    except (tarfile.TarError, EOFError, OSError) as error:
        raise TraceError(f"{where}: damaged archive: {error}") from None
    if not found:
        raise TraceError(f"{where}: no trace in this archive")
