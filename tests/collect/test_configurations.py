"""What a table says of a DLRM, and the figures of its steps."""

import math
from dataclasses import replace

import pytest
from collect.tiny_config import TINY

from perfmodel.collect.configurations import dims_of, figures_of


def test_tables_of_equal_rows_are_told_together() -> None:
    assert TINY.table_bytes == 3 * 50 * 4 * 4
    assert dims_of(TINY)["rows_per_table"] == "3x50"
    assert dims_of(replace(TINY, rows=(7, 7, 9)))["rows_per_table"] == "2x7 1x9"


def test_figures_are_robust_and_tell_their_own_spread() -> None:
    found = figures_of([[10.0] * 5, [10.5] * 5, [10.0, 400.0]])
    assert found["p10_us"] == pytest.approx(10.0)
    assert (found["rounds"], found["steps"]) == (3, 12)
    assert math.isclose(found["halves_frac"], 0.05)
    assert figures_of([[1.0]])["halves_frac"] is None
