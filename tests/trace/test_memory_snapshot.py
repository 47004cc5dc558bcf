"""Memory snapshots of PyTorch: totals counted by hand, and pickles that are none or want more."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel
from perfmodel.errors import TraceError
from perfmodel.trace.memory_snapshot import decode_memory_snapshot, values_of_pickle

MB = 2**20


def event(action: str, time_us: int, size: int, addr: int = 4096, **more: object) -> dict[str, Any]:
    at_us = 1_700_000_000_000_000 + time_us
    return {"action": action, "addr": addr, "size": size, "time_us": at_us, "stream": 0} | more


def snapshot() -> dict[str, Any]:
    """Of GPU 1: 20 MB reserved before, 10 more later; 3 MB held before, then 4 + 6 - 4."""
    block = {"size": 6 * MB, "requested_size": 5 * MB - 1, "state": "active_allocated"}
    old = {"size": 3 * MB, "state": "active_awaiting_free"}
    free = {"size": 11 * MB, "requested_size": 0, "state": "inactive"}
    segments = [
        {"device": 1, "total_size": 20 * MB, "blocks": [old, free], "segment_pool_id": (0, 0)},
        {"device": 1, "address": 8192, "total_size": 10 * MB, "blocks": [block]},
    ]
    events = [
        event("alloc", 1_000, 4 * MB - 511, frames=[{"name": "f", "filename": "a.py", "line": 3}]),
        event("segment_alloc", 1_010, 10 * MB, addr=9999),
        event("alloc", 1_020, 5 * MB - 1, addr=8192),
        event("free_requested", 1_030, 4 * MB),
        event("free_completed", 1_050, 4 * MB),
        {"action": "oom", "size": 99, "device_free": 1},
        {"action": "snapshot", "time_us": 1_060},
    ]
    return {"segments": segments, "device_traces": [[], events], "allocator_settings": {}}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_totals_by_hand(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(), protocol=protocol))
    trace = perfmodel.read(path)
    memory = trace.ranks[0].memory
    assert memory.at_us.tolist() == [0.0, 10.0, 20.0, 50.0]
    assert (memory.size_bytes / MB).tolist() == [4, 0, 6, -4]
    assert (memory.allocated_bytes / MB).tolist() == [7, 7, 13, 9]
    assert (memory.reserved_bytes / MB).tolist() == [20, 30, 30, 30]
    assert list(memory.by_device()) == ["cuda:1"]
    assert "1 allocations failed for lack of memory" in trace.warnings[1]
    (timeline,) = perfmodel.breakdown(trace).ranks[0].memory
    assert timeline.to_dict()["peak_allocated_bytes"] == 13 * MB
    assert timeline.to_dict()["peak_at_us"] == 20.0
    assert not timeline.is_relative


def test_json_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(snapshot()))
    memory = perfmodel.read(path).ranks[0].memory
    assert (memory.allocated_bytes / MB).tolist() == [7, 7, 13, 9]


def test_without_segments_it_is_what_came_on_top() -> None:
    given_ = snapshot()
    del given_["segments"]
    rank = decode_memory_snapshot(pickle.dumps(given_), "s")
    assert set(rank.memory.allocated_bytes.tolist()) == {-1}
    assert rank.memory.by_device()["cuda:1"].size_bytes.tolist() == [4 * MB, 0, 5 * MB, -4 * MB]


WITHOUT_HISTORY = [
    snapshot() | {"device_traces": [[], []]},
    {"segments": snapshot()["segments"]},
    [each | {"active_size": 0} for each in snapshot()["segments"]],
]


@pytest.mark.parametrize("found", WITHOUT_HISTORY, ids=["empty", "none", "list of segments"])
@pytest.mark.parametrize("write", [pickle.dumps, lambda found: json.dumps(found).encode()])
def test_without_history_it_is_what_segments_hold(
    write: Callable[[object], bytes], found: Any, tmp_path: Path
) -> None:
    text = write(found)
    if isinstance(found, dict) and "device_traces" not in found:
        found["segments"][0]["active_size"] = 0
        text = write(found)
    (tmp_path / "s.pickle").write_bytes(text)
    trace = perfmodel.read(tmp_path / "s.pickle")
    memory = trace.ranks[0].memory
    assert (memory.allocated_bytes / MB).tolist() == [9]
    assert (memory.reserved_bytes / MB).tolist() == [30]
    assert "no history was recorded" in trace.warnings[1]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN, st.integers(2, 5))
def test_plain_values_are_read_as_pickle_reads_them(value: object, protocol: int) -> None:
    assert values_of_pickle(pickle.dumps(value, protocol=protocol)) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_values_or_one_error(tail: bytes) -> None:
    with suppress(ValueError):
        values_of_pickle(b"\x80\x04" + tail)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("ran"), "x")


@pytest.mark.parametrize("value", [Evil(), {"device_traces": Evil()}, b"x", {3, 4}, 1j])
def test_nothing_of_a_pickle_is_run(
    value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"device_traces": [value]})
    with pytest.raises(TraceError, match=r"s: damaged memory snapshot: ") as caught:
        decode_memory_snapshot(content, "s")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_deep_pickle_ends_no_process() -> None:
    deep = b"\x80\x04)" + b"\x85" * 200_000 + b"."
    assert values_of_pickle(deep)
    with pytest.raises(ValueError, match="no sound pickle"):
        values_of_pickle(b"\x80\x04})" + b"\x85" * 200_000 + b"Ns.")


def changed(place: Callable[[dict[str, Any]], Any], key: str, value: object) -> dict[str, Any]:
    found = snapshot()
    place(found)[key] = value
    return found


FIRST: Callable[[dict[str, Any]], Any] = lambda found: found["device_traces"][1][0]  # noqa: E731


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (changed(FIRST, "size", "4"), r"device_traces[1][0].size: Expected `int`"),
        (changed(FIRST, "size", -4), r"device_traces[1][0].size: Expected `int`"),
        (changed(FIRST, "addr", None), r"device_traces[1][0].addr: Expected `int`"),
        (changed(FIRST, "time_us", None), r"device_traces[1][0].time_us: Expected `int | float`"),
        (changed(FIRST, "time_us", 1e300), r"device_traces[1][0].time_us: Expected `float` <"),
        (changed(FIRST, "action", 3), r"device_traces[1][0]: expected an event with an action"),
        (changed(lambda found: found, "device_traces", [3]), "expected a list of events per"),
        ({"device_traces": [[]], "segments": []}, "snapshot without events"),
        (changed(lambda found: found, "segments", 3), "segments: Expected `array"),
        (
            changed(lambda found: found["segments"][1], "total_size", 1.5),
            "segments[1].total_size: Expected `int`, got `float`",
        ),
        (
            changed(lambda found: found["segments"][1]["blocks"][0], "size", "x"),
            "segments[1].blocks[0].size: Expected `int`",
        ),
        (
            changed(lambda found: found["segments"][0], "device", "1"),
            "segments[0].device: Expected `int`",
        ),
        (
            changed(lambda found: found["segments"][0], "total_size", 2**62 - 1),
            "segments[1]: sizes that sum to 4 EiB or more",
        ),
        (
            changed(FIRST, "size", 2**62 - 1),
            "device_traces[1]: sizes that sum to 4 EiB or more",
        ),
    ],
)
@pytest.mark.parametrize("write", [pickle.dumps, lambda found: json.dumps(found).encode()])
def test_what_is_no_snapshot_is_one_line(
    write: Callable[[object], bytes], found: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceError) as caught:
        decode_memory_snapshot(write(found), "file")
    assert str(caught.value).startswith("file: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def endless(levels: int = 40) -> list[Any]:
    """A list of two lists of two lists …, which a pickle writes once each."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found, found]
    return found


@pytest.mark.parametrize(
    ("key", "value"), [("time_us", endless()), ("size", 10**5000)], ids=["list", "number"]
)
def test_no_error_shows_what_has_no_end(key: str, value: object) -> None:
    with pytest.raises(TraceError, match="Expected"):
        decode_memory_snapshot(pickle.dumps(changed(FIRST, key, value)), "file")


def test_blocks_that_a_pickle_repeats_are_no_work() -> None:
    """Half a gigabyte of blocks in 60 kB."""
    blocks = [{"state": "inactive", "size": 1}] * 20_000
    segments = [{"device": 1, "total_size": 1, "blocks": blocks}] * 20_000
    with pytest.raises(TraceError, match="more blocks than bytes"):
        decode_memory_snapshot(pickle.dumps(snapshot() | {"segments": segments}), "file")


def test_many_devices_and_segments_are_linear() -> None:
    found = snapshot()
    found["device_traces"] += [[] for _ in range(20_000)]
    found["segments"] = [{"device": 1, "total_size": 1, "blocks": []} for _ in range(20_000)]
    reserved = decode_memory_snapshot(json.dumps(found).encode(), "file").memory.reserved_bytes
    assert reserved[-1] == 20_000


def test_a_cut_file_is_one_line() -> None:
    content = pickle.dumps(snapshot())
    for end in range(40, len(content) - 1, 37):
        with pytest.raises(TraceError, match="damaged memory snapshot"):
            decode_memory_snapshot(content[:end], "file")
