"""Reading within limits, and writing whole files or nothing."""

from __future__ import annotations

import gzip
import io
import os
import random
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base import files
from perfmodel.base.files import (
    atomic_write,
    content_chunks,
    gunzip,
    read_bytes,
    read_chunks,
    write_text,
)
from perfmodel.errors import PerfmodelError


@pytest.fixture(autouse=True, params=["zlib", "isal.isal_zlib"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both that may decompress."""
    library = pytest.importorskip(request.param)
    monkeypatch.setattr(files, "_inflate", lambda: library)


# Does not compress, and takes several pieces to read.
NOISE = random.Random(0).randbytes(700_000)


def test_content_decides_what_is_gzip_and_not_the_name(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.gz", tmp_path / "b.json"
    plain.write_bytes(b"text")
    packed.write_bytes(gzip.compress(b"text"))
    assert read_bytes(plain) == read_bytes(packed) == b"text"


@pytest.mark.parametrize("content", [b"", b"x", NOISE, bytes(5_000_000)])
def test_pieces_are_small_and_make_up_the_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    for raw in (content, gzip.compress(content, 1)):
        path.write_bytes(raw)
        pieces = list(read_chunks(path))
        assert b"".join(pieces) == content
        assert max(map(len, pieces), default=0) <= 1 << 18


def test_an_open_file_is_read_from_where_it_stands() -> None:
    file = io.BytesIO(b"skipped" + gzip.compress(b"content"))
    file.read(7)
    assert b"".join(content_chunks(file, "here")) == b"content"


def test_gzip_members_follow_each_other_with_padding() -> None:
    raw = gzip.compress(b"one ") + gzip.compress(b"") + bytes(20) + gzip.compress(b"two") + bytes(3)
    assert gunzip(raw, "here") == gzip.decompress(raw) == b"one two"


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4), st.integers(0, 9))
def test_members_give_what_gzip_gives(contents: list[bytes], level: int) -> None:
    raw = b"".join(gzip.compress(content, level) for content in contents)
    assert gunzip(raw, "here") == b"".join(contents)


def test_content_that_ends_where_a_piece_ends(tmp_path: Path) -> None:
    for size in (1 << 18, 2 << 18, (1 << 18) + 1):
        assert gunzip(gzip.compress(bytes(size)), "here") == bytes(size)


def test_cut_gzip_is_an_error_wherever_it_is_cut() -> None:
    raw = gzip.compress(b"some content" * 50)
    for end in range(len(raw)):
        with pytest.raises(PerfmodelError, match=r"^here: gzip ends early after \d+ decompressed"):
            gunzip(raw[:end], "here")


def test_damaged_gzip_says_where() -> None:
    raw = bytearray(gzip.compress(NOISE, 1))
    raw[-8] ^= 1  # its checksum
    with pytest.raises(PerfmodelError, match=r"^here: damaged gzip after \d+ decompressed bytes: "):
        gunzip(bytes(raw), "here")
    with pytest.raises(PerfmodelError, match="after 3 decompressed bytes"):
        gunzip(gzip.compress(b"abc") + b"rest", "here")


def test_a_bomb_stops_at_the_limit_and_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json"
    path.write_bytes(gzip.compress(bytes(200_000_000), 6))
    tracemalloc.start()
    try:
        with pytest.raises(PerfmodelError, match="above the limit of 2000000 bytes"):
            read_bytes(path, max_bytes=2_000_000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_limit_counts_plain_content_too(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(NOISE)
    assert read_bytes(path, max_bytes=len(NOISE)) == NOISE
    with pytest.raises(PerfmodelError, match="file: its content is above the limit"):
        read_bytes(path, max_bytes=len(NOISE) - 1)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match=r"none: cannot be read: No such file"):
        read_bytes(tmp_path / "none")
    with pytest.raises(PerfmodelError, match=r"cannot be read: Is a directory"):
        read_bytes(tmp_path)


def test_atomic_write_replaces_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_text(path, "old")
    write_text(path, "new é")
    assert path.read_text("utf-8") == "new é"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_atomic_write_has_the_usual_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "ours", "")
    (tmp_path / "usual").write_text("")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "usual")}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failure_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "out.txt"
    write_text(path, "old")

    def write_and_fail() -> None:
        with atomic_write(path) as file:
            file.write(b"half of the n")
            raise error

    with pytest.raises(error):
        write_and_fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match=r"out: cannot be written: No such file"):
        write_text(tmp_path / "no folder" / "out", "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PerfmodelError, match=r"folder: cannot be written"):
        write_text(tmp_path / "folder", "")
    assert os.listdir(tmp_path) == ["folder"]
