"""Workload files of a user: what they may hold, and what is said of one that does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import WorkloadError
from perfmodel.workload import Workload, load_workload

GOOD = """
batch = 64

[model]
dense_features = 4
bottom_mlp = [8, 16]
top_mlp = [8, 1]

[[tables]]
count = 3
rows = 1_000
dim = 16
pooling = 2.5
alpha = 1.05

[[tables]]
rows = [10, 20]
dim = 16
"""


def load(folder: Path, text: str) -> Workload:
    path = folder / "mine.toml"
    path.write_text(text)
    return load_workload(path)


def test_a_file_of_the_user(tmp_path: Path) -> None:
    workload = load(tmp_path, GOOD)
    assert workload.name == "mine"
    assert [table.rows for table in workload.tables] == [1000, 1000, 1000, 10, 20]
    assert [table.pooling for table in workload.tables] == [2.5, 2.5, 2.5, 1, 1]
    assert [table.alpha for table in workload.tables] == [1.05, 1.05, 1.05, 0, 0]
    assert workload.top_widths == (16 + 15, 8, 1)
    assert workload.table_parameters == 16 * 3030
    assert load_workload(str(tmp_path / "mine.toml")) == workload


BAD = [
    ("batch = 64", "bacth = 64", "unknown key bacth; expected: batch"),
    ("dense_features = 4", "dense_feature = 4", "model: unknown key dense_feature"),
    ("rows = 1_000", "rows = 0", r"tables\[1\]: rows: expected a whole number from 1"),
    ("rows = 1_000", "rows = 1.5", r"tables\[1\]: rows: expected a whole number"),
    ("rows = 1_000", 'rows = "many"', r"tables\[1\]: rows: .* got 'many'"),
    ("rows = 1_000\n", "", r"tables\[1\]: rows is missing"),
    ("count = 3", "count = 0", r"tables\[1\]: count"),
    ("count = 3", "count = 3_000_000", r"tables\[1\]: count"),
    ("rows = [10, 20]", "rows = [10, 20]\npooling = [1]", "pooling has 1 entries for 2 tables"),
    ("bottom_mlp = [8, 16]", "bottom_mlp = [8, 12]", "bottom_mlp ends in 12.* dim 16"),
    (
        "bottom_mlp = [8, 16]",
        "bottom_mlp = []",
        "bottom_mlp: expected a list of one or more",
    ),
    ("top_mlp = [8, 1]", "top_mlp = [8, 2]", "top_mlp ends in 2: expected 1"),
    ("alpha = 1.05", 'distribution = "zipf"', "alpha is missing"),
    ("alpha = 1.05", 'alpha = 1\ndistribution = "uniform"', "a uniform distribution has none"),
    ("alpha = 1.05", 'distribution = "normal"', 'expected one of "uniform", "zipf", "histogram"'),
    ("alpha = 1.05", 'distribution = "histogram"', "has pairs of shares"),
    ("alpha = 1.05", "histogram = [[0.5, 0.1, 2]]", r"histogram\[1\]: expected a pair"),
    ("alpha = 1.05", "histogram = [[0.5, -1]]", r"histogram\[1\]\[2\]: expected a number"),
    ("alpha = 1.05", "alpha = 1\nhistogram = [[1, 1]]", "a histogram distribution has none"),
    ("rows = [10, 20]\ndim = 16", "rows = [10, 20]\ndim = 8", "dims 8 to 16"),
    ("batch = 64", "batch = true", "batch: expected a whole number"),
    ("batch = 64", 'batch = 64\nschema = "perfmodel.workload/9"', "schema: expected"),
    ("[model]", "[model", "at line"),
    ("[[tables]]", "[[table]]", "unknown key table"),
    (
        "[model]",
        '[implementation]\nname = "hugctr"\n[model]',
        'implementation: name: expected one of "fbgemm", "hstu", "hugectr"',
    ),
    (
        "[model]",
        "[implementation]\ncuda_graphs = 1\n[model]",
        "cuda_graphs: expected true",
    ),
    ("[model]", '[training]\ntable_optimizer = "adam"\n[model]', "fused into the backward pass"),
    ("[model]", "[evaluation]\nincluded = true\n[model]", "every_samples is missing"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD)
def test_what_cannot_be_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(WorkloadError, match=message) as error:
        load(tmp_path, GOOD.replace(old, new))
    assert "mine.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_tables_by_classes_of_rows(tmp_path: Path) -> None:
    text = GOOD.replace("alpha = 1.05", "histogram = [[0.9, 0.1], [0.1, 0.9]]")
    found = load(tmp_path, text).tables[0].popularity()
    assert found.total_rows == 1_000
    assert float(found.covered_frac(100)) == pytest.approx(0.9)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"nowhere\.toml"):
        load_workload(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(WorkloadError, match="not a text file in UTF-8"):
        load_workload(tmp_path / "bytes.toml")
    with pytest.raises(WorkloadError, match="unknown workload 'dlrm-dcn2'; nearest: dlrm-dcnv2"):
        load_workload("dlrm-dcn2")


def test_settings_are_changed_by_their_key() -> None:
    workload = load_workload("dlrm-mlperf")
    changes = {"implementation.precision": "tf32", "table.alpha": 0, "evaluation.included": False}
    edited = workload.with_(**{key.replace(".", "__"): value for key, value in changes.items()})
    assert edited.implementation.precision == "tf32"
    assert {table.alpha for table in edited.tables} == {0}
    assert not edited.evaluation.included
    assert workload.evaluation.included
    assert workload.with_(batch=128).batch == 128
    shares = load_workload("criteo-kaggle").with_(table__histogram=[[0.9, 0.1], [0.1, 0.9]])
    assert {table.histogram for table in shares.tables} == {((0.9, 0.1), (0.1, 0.9))}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"implementation__precison": "bf16"}, "unknown key implementation.precison; expected"),
        ({"implementation__precision": "fp4"}, "expected one of"),
        ({"batch": 0}, "expected a whole number from 1"),
        ({"table__dim": 7}, "bottom_mlp ends in 128"),
        ({"model__top_mlp": [4]}, "expected 1"),
        ({"implementation__key_dtype": "int32"}, '"hugectr" sends int64 keys'),
        ({"table__histogram": [[0.9]]}, r"table.histogram\[1\]: expected a pair"),
        ({"table__histogram": [[0.9, 0.1]]}, '"hybrid" supports zipf and uniform'),
    ],
)
def test_changes_that_cannot_be_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load_workload("dlrm-mlperf").with_(**change)


def test_keys_of_four_bytes_are_for_tables_that_they_can_number() -> None:
    assert load_workload("neo-i").with_(implementation__key_dtype="int32")
    with pytest.raises(WorkloadError, match=r"a table of 4,000,000,000 rows needs int64"):
        load_workload("neo-i").with_(implementation__key_dtype="int32", table__rows=4_000_000_000)


def test_shown_as_frame(tmp_path: Path) -> None:
    workload = load(tmp_path, GOOD)
    frame = workload.to_frame()
    assert list(frame.columns) == ["rows", "dim", "pooling", "alpha", "parameters", "unique_rows"]
    assert frame["unique_rows"].iloc[3] == pytest.approx(10, abs=0.02)
