"""Memory is that of the rank with most bytes, which need not be one that decides the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel import predict
from perfmodel.errors import WorkloadError

ROWS = 20_000_000
TEXT = f"""
schema = "perfmodel.workload/1"
batch = 1024
[model]
dense_features = 13
bottom_mlp = [64, 64]
top_mlp = [64, 1]
[[tables]]
rows = 100
dim = 64
pooling = 200
[[tables]]
rows = {ROWS}
dim = 64
pooling = 1
"""


def test_the_fullest_rank_is_shown_and_decides_what_fits(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(TEXT)
    asked = {"workload": path, "hardware": "dgx-1", "batch": 1024}
    settings = ["node.gpus=2"]
    few = predict(**asked, settings=settings).results[0].memory
    every = predict(**asked, settings=settings, every_rank=True).results[0].memory
    assert few == every
    assert few["tables_bytes"] >= ROWS * 64 * 4
    with pytest.raises(WorkloadError, match=f"rank {few['rank']} needs"):
        predict(**asked, settings=[*settings, "device.hbm_bytes=5e9"])
