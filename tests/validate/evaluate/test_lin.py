"""Lin et al.'s steps: the GPU-active time that follows from the paper's own errors."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from benchmarks.published.lin import COLUMNS, evaluate_lin
from perfmodel.errors import PerfmodelError


def table(folder: Path, *rows: str) -> Path:
    path = folder / "steps.csv"
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return path


def test_active_time_by_hand(tmp_path: Path) -> None:
    """A prediction of the active time 20 % below the step of 10 ms, and 25 % above that time:
    8 ms were predicted, 6.4 ms were active."""
    rows = ("V100,DLRM_default,2048,10,25,-8,-20", "V100,DLRM_default,512,5,2,-8,<-35")
    found = evaluate_lin(table(tmp_path, *rows))
    first, second = found.rows
    assert first["measured_active_us"] == pytest.approx(6_400)
    expected = 100 * (first["predicted_active_us"] / 6_400 - 1)
    assert first["active_error_pct"] == pytest.approx(expected)
    assert second["measured_active_us"] is None
    sums = {each["of"]: each for each in found["summary"]}
    assert sums["active error"]["n"] == 1
    assert sums["paper error"]["mean_pct"] == pytest.approx(8)
    schema = Path(__file__).parents[3] / "docs" / "schemas" / "evaluation.lin.json"
    jsonschema.validate(found.to_dict(), json.loads(schema.read_text()))


@pytest.mark.parametrize("row", ["K80,DLRM_default,512,5,2,-8,-9", "V100,DLRM_DDP,512,x,2,-8,-9"])
def test_rows_that_are_none(tmp_path: Path, row: str) -> None:
    with pytest.raises(PerfmodelError, match=r"steps\.csv.*expected a"):
        evaluate_lin(table(tmp_path, row))
