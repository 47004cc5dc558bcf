"""Configurations of DLRMs that a file lists, and the figures of their steps."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from collect.tiny_config import TINY

from perfmodel.collect.cli import main
from perfmodel.collect.configurations import dims_of, figures_of
from perfmodel.collect.models.dlrm import DlrmConfig, read_configs
from perfmodel.errors import UsageError


def listed(path: Path, *items: Any) -> Path:
    path.write_text(json.dumps(items))
    return path


def tiny(path: Path, **changes: Any) -> DlrmConfig:
    return read_configs(listed(path / "c.json", {**TINY, **changes}))[0]


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
        assert main(["steps", "--configs", str(tmp_path / name), "-o", str(tmp_path / "o")]) == 2
        assert capsys.readouterr().err.startswith("perfmodel: --configs")


def test_figures_are_robust_and_tell_their_own_spread() -> None:
    found = figures_of([[10.0] * 5, [10.5] * 5, [10.0, 400.0]])
    assert found["p10_us"] == pytest.approx(10.0)
    assert (found["rounds"], found["steps"]) == (3, 12)
    assert math.isclose(found["halves_frac"], 0.05)
    assert figures_of([[1.0]])["halves_frac"] is None
