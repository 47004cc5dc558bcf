"""Profiles: statistics, merging, fallbacks, and files good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering.host.handmade import made_samples

from perfmodel.errors import ModelError, PerfmodelError, UsageError
from perfmodel.lowering.host import Profile, Provenance, load_profile

GROUPS = {
    ("T2", "aten::add", "main"): [4.0, 6.0, 8.0],
    ("T2", "aten::mul", "main"): [20.0],
    ("T2", "aten::mul", "autograd"): [30.0, 40.0],
    ("T4", "aten::add", "main"): [5.0, 7.0],
}


def profile(**more: Any) -> Profile:
    return Profile.from_samples(made_samples(GROUPS, **more))


def test_statistics_of_a_group() -> None:
    values = [float(v) for v in (*range(1, 20), 1000)]
    found = Profile.from_samples(made_samples({("T1", "a", "main"): values[::-1]})).statistic(
        "T1", "a", "main"
    )
    assert found.count == 20
    assert found.mean_us == pytest.approx(np.mean(values))
    assert found.std_us == pytest.approx(np.std(values))
    assert found.median_us == 10.5
    assert [found.p10_us, found.p25_us, found.p75_us, found.p90_us] == pytest.approx(
        np.quantile(values, [0.1, 0.25, 0.75, 0.9])
    )
    assert found.trimmed_mean_us == pytest.approx(np.mean(values[2:-2]))
    assert not found.approximate


def test_lookup_falls_back_from_op_to_thread_to_any() -> None:
    found = profile()
    assert found.lookup("T2", "aten::add", "main") == 6
    assert found.lookup("T2", "aten::add", "autograd") == 35
    assert found.lookup("T2", None, "main") == pytest.approx(38 / 4)
    assert found.lookup("T2", "aten::add", "other:0") == pytest.approx(108 / 6)
    assert found.lookup("T2", "aten::add", "main", statistic="p90_us") == pytest.approx(7.6)
    assert found.lookup("T4", "cudaLaunchKernel", "main") == 6


def test_lookup_says_what_is_missing() -> None:
    with pytest.raises(ModelError, match=r"made\.json: no T5 samples; it holds T2, T4"):
        profile().lookup("T5")
    with pytest.raises(UsageError, match="unknown overhead type 'T6'"):
        profile().lookup("T6")
    with pytest.raises(UsageError, match="unknown statistic 'mode'"):
        profile().lookup("T2", statistic="mode")


def test_durations_are_lookups() -> None:
    found = profile()
    kinds = ["T2", "T2", "T4", "T2"]
    ops = ["aten::add", "aten::new", "aten::add", None]
    threads = ["main", "autograd", "main", None]
    expected = [found.lookup(*key) for key in zip(kinds, ops, threads, strict=True)]
    assert found.durations(kinds, ops, threads).tolist() == expected
    assert found.durations([], [], []).tolist() == []
    with pytest.raises(ModelError, match="no T5 samples"):
        found.durations(["T2", "T5"], [None] * 2, [None] * 2)


def test_samples_that_waited_are_left_out() -> None:
    samples = made_samples({("T1", "a", "main"): [1.0, 99.0]})
    samples.blocking[1] = True
    assert Profile.from_samples(samples).lookup("T1") == 1


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ModelError, match=r"made\.json: no host overheads"):
        Profile.from_samples(made_samples({}))


def test_samples_of_several_traces_are_taken_together() -> None:
    one = made_samples({("T1", "a", "main"): [1.0, 2.0, 9.0], ("T2", "b", "main"): [3.0]}, "x.json")
    two = made_samples({("T1", "a", "main"): [4.0, 5.0], ("T1", "c", "main"): [7.0]}, "y.json")
    both = Profile.from_samples(one, two)
    assert both.statistic("T1", "a", "main").median_us == 4
    assert both.statistic("T1").count == 6
    assert both.provenance.traces == ("x.json", "y.json")


def test_different_corrections_are_not_taken_together() -> None:
    one, two = made_samples(GROUPS), made_samples(GROUPS, profiler_us_per_event=2.0)
    with pytest.raises(ModelError, match=r"corrections are 0\.0 and 2\.0 us"):
        Profile.from_samples(one, two)


_US = st.lists(st.floats(0, 1e6), max_size=8)
_SAMPLES = st.dictionaries(
    st.tuples(
        st.sampled_from(["T1", "T2", "T4"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["main", "autograd"]),
    ),
    _US.filter(bool),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(_SAMPLES, st.randoms())
def test_the_order_of_samples_does_not_matter(groups: Any, random: Any) -> None:
    items = [(key, random.sample(us, len(us))) for key, us in groups.items()]
    random.shuffle(items)
    one, two = (Profile.from_samples(made_samples(g)) for g in (groups, dict(items)))
    assert one == two


def test_saving_and_loading_keep_every_number(tmp_path: Path) -> None:
    about = Provenance(torch_versions=("2.13.0",), cuda_versions=("13.0",), hosts=("dgx",))
    saved = Profile.from_samples(
        made_samples(GROUPS | {("T1", "a", "main"): [1 / 3, 0.1]}, "folder/t.json"),
        provenance=about,
    )
    saved.save(tmp_path / "fast.json")
    loaded = load_profile(tmp_path / "fast.json")
    assert loaded == saved
    assert loaded.provenance.traces == ("t.json",)
    assert loaded.provenance.devices == ("H100",)
    assert loaded.provenance.hosts == ("dgx",)
    content = json.loads((tmp_path / "fast.json").read_text())
    assert content["schema"] == "perfmodel.overheads/1"
    assert [file.name for file in tmp_path.iterdir()] == ["fast.json"]
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "fast.json").read_bytes()


def test_a_profile_loads_by_name(tmp_path: Path) -> None:
    profile().save(tmp_path / "dgx.json")
    assert load_profile("dgx", catalogue=tmp_path) == profile()
    with pytest.raises(ModelError, match=r"dgy: no such overhead profile: .*one of dgx"):
        load_profile("dgy", catalogue=tmp_path)
    with pytest.raises(ModelError, match="no such overhead profile"):
        load_profile("../dgx", catalogue=tmp_path / "sub")


def test_a_folder_that_is_missing_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match="cannot be written"):
        profile().save(tmp_path / "no" / "a.json")
    assert not list(tmp_path.iterdir())


def edited(tmp_path: Path, *path: Any, value: Any = None, drop: bool = False) -> Path:
    """A saved profile with the value at one place changed or taken out."""
    file = tmp_path / "bad.json"
    profile().save(file)
    content = json.loads(file.read_text())
    at = content
    for key in path[:-1]:
        at = at[key]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), "perfmodel.overheads/9", r"`\$\.schema`"),
        (("rows",), [], r"`\$\.rows`"),
        (("rows",), {}, r"\$\.rows"),
        (("rows", 1, "count"), 0, r"\$\.rows\[1\]\.count"),
        (("rows", 1, "mean_us"), "fast", r"\$\.rows\[1\]\.mean_us"),
        (("rows", 1, "std_us"), -1.0, r"\$\.rows\[1\]\.std_us"),
        (("rows", 1, "type"), "T9", r"\$\.rows\[1\]\.type"),
        (("rows", 1, "extra"), 1, r"unknown field `extra` - at `\$\.rows\[\.*"),
        (("provenance", "hosts"), "dgx", r"\$\.provenance\.hosts"),
        (("provenance", "profiler_us_per_event"), -2, r"\$\.provenance\.profiler_us_per_event"),
    ],
)
def test_bad_files_are_named_with_the_key(
    tmp_path: Path, path: tuple[Any, ...], value: Any, message: str
) -> None:
    file = edited(tmp_path, *path, value=value)
    with pytest.raises(ModelError, match=message) as error:
        load_profile(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)


def test_missing_keys_and_repeated_rows_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="missing required field `schema`"):
        load_profile(edited(tmp_path, "schema", drop=True))
    with pytest.raises(ModelError, match=r"`median_us` - at `\$\.rows\["):
        load_profile(edited(tmp_path, "rows", 2, "median_us", drop=True))
    file = tmp_path / "twice.json"
    profile().save(file)
    content = json.loads(file.read_text())
    content["rows"].append(content["rows"][0])
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"\$\.rows\[\d+\]: repeats an earlier row"):
        load_profile(file)


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b'{"schema": ', b"\xff\xfe", b"[]", b"[" * 100_000, b"\x1f\x8b\x08broken"],
)
def test_files_that_are_no_profile(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    with pytest.raises(ModelError) as error:
        load_profile(file)
    assert str(error.value).startswith(f"{file}: ")


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        load_profile(tmp_path)


def test_the_frame_has_a_row_per_key() -> None:
    frame = profile().frame()
    assert len(frame) == len(profile().rows)
    assert {"type", "op", "thread", "count", "mean_us", "approximate"} <= set(frame.columns)
