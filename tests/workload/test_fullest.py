"""Memory is that of the rank with most bytes, which need not be one that decides the step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel import predict
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster, load
from perfmodel.workload import load_workload

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
    torchrec = load_workload(path).with_(implementation__name="torchrec")
    node = replace(load("dgx-1"), gpus=2)

    def memory(*, every_rank: bool = False, **device: float) -> dict[str, Any]:
        machine = cluster(replace(node, device=replace(node.device, **device)))
        asked = torchrec if device else path
        (result,) = predict(asked, hardware=[machine], every_rank=every_rank).results
        return result.memory or {}

    few = memory()
    assert few == memory(every_rank=True)
    assert few["tables_bytes"] >= ROWS * 64 * 4
    halves = memory(hbm_bytes=5e9)["tiers"][0]  # 5.1 GB do not fit whole
    assert ROWS * 64 * 4 / 2 < halves["total_bytes"] < 5e9
    with pytest.raises(WorkloadError, match=r"tables need 5\.1 GB of device memory"):
        memory(hbm_bytes=2e9)
