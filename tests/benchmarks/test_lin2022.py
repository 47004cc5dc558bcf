"""The published formulas against the original functions' outputs."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
lin2022 = SimpleNamespace(**run_path(str(ROOT / "traces" / "published" / "lin2022.py")))
REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE", ROOT / "../shared/data")) / "lin2022"
GPUS = {"V100": lin2022.V100, "A100": lin2022.A100}


def golden(name: str) -> list[dict[str, str]]:
    path = REFERENCE / name
    if not path.exists():
        pytest.skip(f"reference data not found: {path} (set PERFMODEL_REFERENCE)")
    with open(path) as file:
        return list(csv.DictReader(file))


def test_curves_equal_the_original_functions() -> None:
    rows = [row for row in golden("golden_bw_curves.csv") if row["gpu"] in GPUS]
    for row in rows:
        size = np.array([float(row["size_B"])])
        curve = GPUS[row["gpu"]].dram
        assert curve.gb_per_s(size)[0] == pytest.approx(float(row["dram_bus_bw_GBps"]), rel=1e-5)
        assert curve.time_us(size)[0] == pytest.approx(float(row["dram_time_us"]), rel=1e-5)
        cache = lin2022.L2_CURVE.gb_per_s(size)[0]
        assert cache == pytest.approx(float(row["l2_bw_GBps_V100_fit"]), rel=1e-5)
    assert len(rows) > 40


def test_lookups_equal_the_original_functions() -> None:
    rows = [row for row in golden("golden_embedding_heuristics.csv") if row["gpu"] in GPUS]
    for row in rows:
        lookup = lin2022.Lookup(*(int(row[name]) for name in ("B", "E", "T", "L", "D")))
        gpu = GPUS[row["gpu"]]
        warps = None if row["rows_per_block"] == "fbgemm" else float(row["rows_per_block"])
        forward = lin2022.FBGEMM_WARPS if warps is None else warps
        found = {
            "cached_rows_per_table": lin2022.cached_rows(lookup, gpu, forward),
            "fwd_hitrate_us": lin2022.forward_us(lookup, gpu, forward),
            "bwd_sgd_hitrate_us": lin2022.backward_us(lookup, gpu, warps),
        }
        for name, value in found.items():
            assert value == pytest.approx(float(row[name]), rel=1e-5), (name, row)
    assert len(rows) > 40
