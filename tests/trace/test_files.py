"""The same events in the wrappings that files have: encodings, gzip in gzip."""

from __future__ import annotations

import codecs
import gzip
import pickle
from pathlib import Path

import pytest
from tiny import Tiny

from perfmodel import breakdown
from perfmodel.errors import PerfmodelError
from perfmodel.trace.read import read


def content() -> bytes:
    t = Tiny(rank=0)
    t.step(1, 0, 100)
    t.launch(10, 15, kernel=(20, 90))
    return t.content()


@pytest.mark.parametrize(
    "written",
    [
        codecs.BOM_UTF8 + content(),
        gzip.compress(gzip.compress(content())),
        gzip.compress(codecs.BOM_UTF8 + content()),
    ],
    ids=["bom", "gzip-twice", "gzip-bom"],
)
def test_the_same_events_in_another_wrapping(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(written)
    (rank,) = read(path).ranks
    assert [rank.text(row) for row in range(len(rank))] == [
        "ProfilerStep#1",
        "cudaLaunchKernel",
        "volta_sgemm_128x64",
    ]
    assert rank.start_us.tolist() == [0, 10, 20]


@pytest.mark.parametrize(
    ("written", "word"),
    [
        (gzip.compress(gzip.compress(content())[:-9]), "gzip ends early"),
        (b'[{"ph": "X", "ts": 1}]', "JSON without traceEvents"),
    ],
)
def test_a_damaged_wrapping_is_one_line(tmp_path: Path, written: bytes, word: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(written)
    with pytest.raises(PerfmodelError, match=f"trace.json: {word}"):
        read(path)


def test_a_folder_named_as_a_file_is_read_as_its_files(tmp_path: Path) -> None:
    inner = tmp_path / "rank1.json"
    inner.mkdir()
    (tmp_path / "rank0.json").write_bytes(content())
    (inner / "trace.json").write_bytes(content().replace(b'"rank": 0', b'"rank": 1'))
    assert [rank.rank for rank in read(tmp_path).ranks] == [0, 1]
    assert [rank.where for rank in read(tmp_path, workers=2).ranks][1] == str(inner / "trace.json")


def test_a_trace_can_be_pickled_after_what_was_asked_of_it(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(content())
    trace = read(tmp_path / "trace.json")
    breakdown(trace)
    (rank,) = pickle.loads(pickle.dumps(trace)).ranks
    assert rank.is_communication.tolist() == [False, False, False]


def test_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content())
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(PerfmodelError, match=r"loop\.json: cannot be read"):
        read(tmp_path)
