"""The configurations measured as truth, and the table of their step times."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from collect.tiny_config import TINY

from perfmodel.collect.cli import build_parser, main
from perfmodel.collect.models.dlrm import ONE_RANK, DlrmConfig, read_configs
from perfmodel.collect.turns import DIMS, TRUTH_COLUMNS, Samples, dims_of
from perfmodel.errors import UsageError


def listed(path: Path, *items: Any) -> Path:
    path.write_text(json.dumps(items))
    return path


def tiny(path: Path, **changes: Any) -> DlrmConfig:
    return read_configs(listed(path / "c.json", {**TINY, **changes}))[0]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_bundled_list_is_long_and_its_names_unique() -> None:
    assert len({config.name for config in ONE_RANK}) == len(ONE_RANK) >= 24
    assert sum(config.held_bytes for config in ONE_RANK) < 9e9


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
    "items",
    [
        [],
        ["x"],
        [TINY, TINY],
        [{**TINY, "colour": 1}],
        [{**TINY, "dim": 0}],
        [{**TINY, "dim": 8}],
        [{**TINY, "rows": "x"}],
        [{**TINY, "bottom": 4}],
        [{**TINY, "name": "../x"}],
        [{**TINY, "zipf_alpha": "1"}],
        [{**TINY, "tables": -1}],
        [{key: TINY[key] for key in TINY if key != "dim"}],
    ],
)
def test_a_bad_list_is_a_usage_error(items: list[Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="configs "):
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
    assert (parsed.minutes, parsed.rounds, parsed.configs) == (6.0, 200, None)


def test_figures_are_robust_and_tell_their_own_spread() -> None:
    found = Samples([[10.0] * 5, [10.5] * 5, [10.0, 400.0]]).figures()
    assert found["p10_us"] == 10.0
    assert (found["rounds"], found["steps"]) == (3, 12)
    assert math.isclose(found["halves_frac"], 0.05)
    assert Samples([[1.0]]).figures()["halves_frac"] is None


def test_a_tiny_measurement(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    path = listed(tmp_path / "c.json", TINY, {**TINY, "name": "two"})
    words = ["truth", "--configs", str(path), "--minutes", "5", "--rounds", "2"]
    assert main([*words, "--device", "cpu", "-o", str(tmp_path), "--name", "t"]) == 0
    for row in rows_of(tmp_path / "t.csv"):
        assert int(row["rounds"]) == 2
        assert 0 < float(row["p10_us"]) <= float(row["median_us"]) <= float(row["p90_us"])
        assert tuple(row) == TRUTH_COLUMNS
        assert all(row[name] for name in DIMS)
    meta = json.loads((tmp_path / "t_meta.json").read_text())
    assert meta["command"].endswith(
        "--configs c.json --device cpu --minutes 5.0 --name t --rounds 2"
    )
    assert meta["rows"] == 2
