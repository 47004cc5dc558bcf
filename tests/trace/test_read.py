"""`read`: files, archives and folders, and what is said of those that do not fit."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from tiny import EtNode, Tiny, execution_trace_content

import perfmodel
from perfmodel.errors import Note, PerfmodelError, TraceError
from perfmodel.trace import Trace, read


def tiny(rank: int | None = None, world_size: int | None = None) -> Tiny:
    t = Tiny(rank, world_size)
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(40, 90))
    return t


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def folder(tmp_path: Path, **files: Tiny) -> Path:
    for name, t in files.items():
        write(tmp_path / f"{name}.json", t.content())
    return tmp_path


def archive(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def ranks_of(trace: Trace) -> list[int]:
    return [rank.rank for rank in trace.ranks]


CONTENT = tiny().content()


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a", "a.txt"])
@pytest.mark.parametrize("content", [CONTENT, gzip.compress(CONTENT)])
def test_content_decides_what_a_file_is(tmp_path: Path, name: str, content: bytes) -> None:
    trace = perfmodel.read(write(tmp_path / name, content))
    assert (ranks_of(trace), len(trace.ranks[0]), trace.warnings) == ([0], 4, [])
    assert trace.device == "Tesla V100-SXM2-16GB"
    assert "4 events" in repr(trace)


def test_columns_of_an_event(tmp_path: Path) -> None:
    events = read(write(tmp_path / "a.json", CONTENT)).events
    kernel = events[events.category == "kernel"].iloc[0]
    assert (kernel["name"], kernel.start_us, kernel.duration_us) == ("volta_sgemm_128x64", 40, 50)
    assert (kernel.stream, kernel.correlation, kernel["rank"]) == (7, 101, 0)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(gzip.compress(CONTENT))

    monkeypatch.setattr(sys, "stdin", Input)
    assert ranks_of(read("-")) == [0]


def test_a_trace_without_device_work_is_of_a_cpu(tmp_path: Path) -> None:
    t = Tiny()
    t.op("aten::mm", 0, 10)
    assert read(write(tmp_path / "a.json", t.content())).device == "cpu"


def test_a_folder_is_a_job_in_order_of_rank(tmp_path: Path) -> None:
    trace = read(folder(tmp_path, a=tiny(1, 2), b=tiny(0, 2)))
    assert (ranks_of(trace), trace.warnings) == ([0, 1], [])


def test_ranks_that_the_files_do_not_say_are_in_their_names(tmp_path: Path) -> None:
    trace = read(folder(tmp_path, host_rank10=tiny(), host_rank2=tiny()))
    assert ranks_of(trace) == [2, 10]


def test_ranks_that_nothing_says_are_counted(tmp_path: Path) -> None:
    assert ranks_of(read(folder(tmp_path, a=tiny(), b=tiny()))) == [0, 1]


def test_files_that_say_no_rank_and_ran_on_different_devices_are_no_job(tmp_path: Path) -> None:
    other = Tiny(device="NVIDIA H100 80GB HBM3")
    other.events = tiny().events
    with pytest.raises(TraceError, match=r"ran on .*, and neither states its rank"):
        read(folder(tmp_path, a=tiny(), b=other))


def test_an_archive_is_a_folder(tmp_path: Path) -> None:
    members = [
        ("job/rank1.json", tiny(1, 2).content()),
        ("job/rank0.json.gz", gzip.compress(tiny(0, 2).content())),
        ("job/readme.md", b"hello"),
    ]
    trace = read(write(tmp_path / "job.tar.gz", archive(*members)))
    assert (ranks_of(trace), trace.warnings) == ([0, 1], [])


def test_two_files_of_one_rank_are_an_error_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"b\.json: is rank 3, and so is .*a\.json"):
        read(folder(tmp_path, a=tiny(3, 4), b=tiny(3, 4)))


def test_files_of_jobs_of_different_size_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"job of 8 ranks.*of 2"):
        read(folder(tmp_path, a=tiny(0, 2), b=tiny(1, 8)))


def test_missing_ranks_are_a_warning_and_strictly_an_error(tmp_path: Path) -> None:
    path = folder(tmp_path, a=tiny(0, 4), b=tiny(2, 4))
    (found,) = read(path).warnings
    assert "ranks 1, 3 of 4 are not here" in found
    assert isinstance(found, Note)  # breakdown and predict say it where it is of weight
    with pytest.raises(TraceError, match="ranks 1, 3 of 4"):
        read(path, strict=True)


def test_missing_ranks_of_an_archive_are_a_warning_too(tmp_path: Path) -> None:
    content = archive(("a.json", tiny(0, 4).content()), ("b.json", tiny(2, 4).content()))
    trace = read(write(tmp_path / "job.tar.gz", content))
    assert "ranks 1, 3 of 4 are not here" in trace.warnings[0]


def test_one_file_of_a_larger_job_is_no_folder_that_misses_ranks(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.json", tiny(0, 4).content()), strict=True).warnings == []


def test_other_json_in_a_folder_is_ignored_with_a_warning(tmp_path: Path) -> None:
    folder(tmp_path, a=tiny())
    write(tmp_path / "meta.json", b'{"job": 7}')
    trace = read(tmp_path)
    assert ranks_of(trace) == [0]
    assert "meta.json: no trace, ignored" in trace.warnings[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b'{"job": 7}', "not a trace"),
        (b"[1, 2]", "not a trace"),
        (b"hello, world", "neither"),
        (CONTENT[: len(CONTENT) // 2], "damaged|cut|truncated|ends"),
        (gzip.compress(CONTENT)[:-9], "gzip"),
        (
            CONTENT.replace(b'"dur": 20', b'"dur": -20'),
            r"traceEvents\[1\]\.dur: -20 us is negative",
        ),
        (CONTENT.replace(b'"ts": 10', b'"ts": "now"'), r"traceEvents\[1\]\.ts"),
        (archive(("readme.md", b"x")), "no trace in this archive"),
        (archive(("a.json", CONTENT))[:-20], "damaged|gzip"),
    ],
)
def test_bad_input_is_one_line_that_names_the_file(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = write(tmp_path / "bad.json", content)
    with pytest.raises(PerfmodelError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_absent_file_an_empty_folder_and_a_file_too_large(tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match=r"absent\.json: cannot be read"):
        read(tmp_path / "absent.json")
    with pytest.raises(TraceError, match="no trace in this folder"):
        read(tmp_path)
    path = write(tmp_path / "a.json.gz", gzip.compress(CONTENT))
    with pytest.raises(PerfmodelError, match="limit of 100 bytes"):
        read(path, max_bytes=100)


ET = execution_trace_content(EtNode("aten::mm", 1))
OTHER = execution_trace_content(EtNode("aten::conv2d", 1))


def test_an_execution_trace_alone_has_no_ranks(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "et.json", ET))
    assert (trace.ranks, list(trace.execution_traces)) == ((), [0])


def test_an_execution_trace_beside_a_profile_is_paired(tmp_path: Path) -> None:
    write(tmp_path / "kineto_rank3.json", CONTENT)
    write(tmp_path / "et_rank3.json", ET)
    trace = read(tmp_path)
    assert (ranks_of(trace), trace.pairings[3].matched_frac) == ([3], 1.0)


def test_an_execution_trace_given_later(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "rank3.json", CONTENT))
    assert trace.pairings == {}
    joined = trace.with_execution_trace(write(tmp_path / "et.json", ET))
    assert joined.pairings[3].matched_frac == 1.0
    with pytest.raises(TraceError, match=r"other\.json: only 0 % of the host events"):
        trace.with_execution_trace(write(tmp_path / "other.json", OTHER))
    with pytest.raises(TraceError, match="holds no execution trace"):
        trace.with_execution_trace(tmp_path / "rank3.json")


def test_two_execution_traces_of_one_rank_are_an_error(tmp_path: Path) -> None:
    for name in "a_rank0.json", "b_rank0.json":
        write(tmp_path / name, ET)
    with pytest.raises(TraceError, match="second execution trace of rank 0"):
        read(tmp_path)


def test_events_of_all_ranks_are_one_frame(tmp_path: Path) -> None:
    events = read(folder(tmp_path, a=tiny(1, 2), b=tiny(0, 2))).events
    assert events["rank"].tolist() == [0] * 4 + [1] * 4


def test_warnings_of_the_readers_name_their_file(tmp_path: Path) -> None:
    document = json.loads(ET)
    document["nodes"][-1] |= {"id": 10, "parent": 5}  # an operator still open at the end
    trace = read(write(tmp_path / "et.json", json.dumps(document).encode()))
    assert len(trace.warnings) == 1
    assert str(tmp_path) in trace.warnings[0]
