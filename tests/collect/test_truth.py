"""The configurations measured as truth, and the table of their step times."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collect.tiny_config import TINY

from perfmodel.collect.cli import build_parser, main
from perfmodel.collect.models.configuration import (
    ONE_RANK,
    TWO_RANKS,
    TruthConfig,
    bundled_configs,
    read_configs,
)
from perfmodel.collect.records import REFERENCE_COLUMNS
from perfmodel.collect.samples import DIMS, TRUTH_COLUMNS, Ledger, Samples, dims_of
from perfmodel.errors import UsageError

SETTING = {"device": "X", "ranks": 1, "threads_per_rank": 2, "torch": "2.13.0"}


def listed(path: Path, *items: Any) -> Path:
    path.write_text(json.dumps(items))
    return path


def tiny(path: Path, **changes: Any) -> TruthConfig:
    return read_configs(listed(path / "c.json", {**TINY, **changes}))[0]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("ranks", "least"), [(1, 24), (2, 6)])
def test_the_bundled_list_is_long_and_its_names_unique(ranks: int, least: int) -> None:
    configs = bundled_configs(ranks)
    assert len({config.name for config in configs}) == len(configs) >= least
    assert all(len(config.rows) >= ranks for config in configs)
    assert sum(config.held_bytes(8) for config in configs) < 9e9
    assert 0 < sum(config.keep_trace for config in configs) <= 4


def test_the_list_spans_what_a_prediction_must() -> None:
    assert {min(map(len, (c.rows for c in ONE_RANK))), max(len(c.rows) for c in ONE_RANK)} == {
        1,
        26,
    }
    sizes = [max(config.rows) for config in ONE_RANK]
    assert min(sizes) <= 1_000
    assert max(sizes) >= 2_000_000
    assert {config.dim for config in ONE_RANK} >= {16, 32, 64, 128, 256}
    assert {config.pooling for config in ONE_RANK} >= {1, 5, 20, 100}
    assert {config.batch for config in ONE_RANK} >= {64, 256, 512, 2048, 4096}
    assert {config.zipf_alpha for config in ONE_RANK} == {0.0, 1.05, 1.2}
    assert {config.zipf_alpha for config in TWO_RANKS} > {0.0}


def test_configurations_are_read_from_a_file(tmp_path: Path) -> None:
    config = tiny(tmp_path, zipf_alpha=1.05)
    assert config.rows == (50, 50, 50)
    assert config.table_bytes == 3 * 50 * 4 * 4
    assert dims_of(config)["rows_per_table"] == "3x50"
    mixed = {**TINY, "rows": [7, 7, 9]}
    del mixed["tables"]
    assert dims_of(read_configs(listed(tmp_path / "m.json", mixed))[0])["rows_per_table"] == (
        "2x7 1x9"
    )


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "at least one configuration"),
        (["x"], "must be an object"),
        ([TINY, TINY], "two configurations are named tiny"),
        ([{**TINY, "colour": 1}], "unknown field 'colour'"),
        ([{**TINY, "dim": 0}], "dim must be integers above 0"),
        ([{**TINY, "dim": 8}], "must end in dim"),
        ([{**TINY, "rows": "x"}], "rows must be integers"),
        ([{**TINY, "bottom": 4}], "bottom must be a list"),
        ([{**TINY, "name": "../x"}], "configuration name"),
        ([{**TINY, "zipf_alpha": "1"}], "zipf_alpha"),
        ([{**TINY, "tables": -1}], "tables must lie"),
        ([{key: TINY[key] for key in TINY if key != "batch"}], "batch"),
    ],
)
def test_a_bad_list_is_a_usage_error(items: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        read_configs(listed(tmp_path / "c.json", *items))


def test_a_list_that_is_no_json_or_not_there_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.json").write_text("{")
    for name in ("c.json", "none.json"):
        assert main(["truth", "--configs", str(tmp_path / name), "-o", str(tmp_path / "o")]) == 2
        assert capsys.readouterr().err.startswith("perfmodel: --configs")


def test_the_defaults_of_the_verb() -> None:
    parsed = build_parser().parse_args(["truth"])
    assert (parsed.minutes, parsed.ranks, parsed.configs) == (6.0, 1, None)


def test_figures_are_robust_and_tell_their_own_spread() -> None:
    found = Samples([[10.0] * 5, [10.5] * 5, [10.0, 400.0]], [20.0] * 4).figures()
    assert found["p10_us"] == 10.0
    assert (found["rounds"], found["steps"], found["profiled_steps"]) == (3, 12, 4)
    assert math.isclose(found["halves_frac"], 0.05)
    assert found["profiler_cost_frac"] == 1.0
    assert Samples([[1.0]]).figures()["halves_frac"] is None
    assert Samples().figures() == {}


def test_the_table_has_every_column_and_goes_on(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    other = replace(config, name="other")
    ledger = Ledger(tmp_path / "t", (config, other), SETTING)
    ledger.samples["tiny"].rounds_us.append([3.0, 4.0])
    ledger.samples["tiny"].reference_us.append([1.0, 2.0, 3.0, 4.0, 50.0])
    ledger.save()
    (row,) = rows_of(tmp_path / "t.csv")
    assert tuple(row) == TRUTH_COLUMNS
    assert len(set(TRUTH_COLUMNS)) == len(TRUTH_COLUMNS)
    assert row["profiled_p10_us"] == ""
    assert all(row[name] for name in DIMS)
    assert [row[name] for name in REFERENCE_COLUMNS] == ["1.0", "2.0", "3.0", "4.0"]

    again = Ledger(tmp_path / "t", (config, other), SETTING)
    assert again.rounds_resumed == 1
    again.samples["tiny"].rounds_us.append([5.0])
    again.samples["other"].rounds_us.append([6.0])
    again.save()
    assert [row["steps"] for row in rows_of(tmp_path / "t.csv")] == ["3", "1"]


def test_what_was_measured_otherwise_is_not_mixed_in(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    ledger = Ledger(tmp_path / "t", (config,), SETTING)
    ledger.samples["tiny"].rounds_us.append([3.0])
    ledger.save()
    with pytest.raises(UsageError, match="another machine"):
        Ledger(tmp_path / "t", (config,), {**SETTING, "torch": "2.0.0"})
    with pytest.raises(UsageError, match="had other dims"):
        Ledger(tmp_path / "t", (replace(config, batch=9),), SETTING)
    for damage in ("{", "[]", '{"schema": "x"}'):
        (tmp_path / "t_steps.json").write_text(damage)
        with pytest.raises(UsageError, match=r"damaged|another version"):
            Ledger(tmp_path / "t", (config,), SETTING)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_tiny_measurement(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    path = listed(tmp_path / "c.json", {**TINY, "keep_trace": True}, {**TINY, "name": "two"})
    words = ["truth", "--configs", str(path), "--minutes", "5", "--rounds", "2"]
    words += ["--ranks", str(ranks)]
    assert main([*words, "--device", "cpu", "-o", str(tmp_path), "--name", "t"]) == 0
    first, second = rows_of(tmp_path / "t.csv")
    for row in (first, second):
        assert int(row["rounds"]) == 2
        assert all(float(row[name]) > 0 for name in REFERENCE_COLUMNS)
        assert 0 < float(row["p10_us"]) <= float(row["median_us"]) <= float(row["p90_us"])
    assert int(first["profiled_steps"]) == 8
    meta = json.loads((tmp_path / "t_meta.json").read_text())
    assert meta["command"].endswith(
        f"--configs c.json --device cpu --minutes 5.0 --name t --ranks {ranks} --rounds 2"
    )
    assert meta["reference"]["readings"] == 4
    suffixes = ["_rank0", "_rank1"] if ranks == 2 else [""]
    for suffix in suffixes:
        for kind in (".json", "_kineto.json.gz", "_et.json.gz"):
            assert (tmp_path / "t_tiny" / f"trace{suffix}{kind}").exists()
    assert not list(tmp_path.glob("t_two*"))
