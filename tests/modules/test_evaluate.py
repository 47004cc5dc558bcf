"""Measured calls of a module beside what its source predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli.samples import check_schema

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")

from perfmodel.validate.evaluate.tables import MeasuredCall, evaluate_modules  # noqa: E402

SOURCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(1024)]
"""


def test_a_slower_host_is_predicted_with_the_speed_that_was_found(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    call = MeasuredCall("net", "Model", "eager", False, "NVIDIA H200", 60.0, 50.0, 3.0)
    missing = MeasuredCall("gone", "Model", "eager", False, "NVIDIA H200", 60.0, 50.0, 3.0)
    found = evaluate_modules([call, missing], tmp_path)
    check_schema("evaluation.modules", found.to_dict())
    assert [line for line in found.warnings if "gone.py" in line]
    (row,) = found.rows
    assert row["hardware"] == "h200-sxm"
    assert row["host_predicted_us"] < row["host_us"]
    speed = found["measured_host_speed_ratio"]
    again = evaluate_modules([call], tmp_path, settings=[f"host.single_thread_ratio={speed}"]).rows[
        0
    ]
    assert again["host_predicted_us"] == pytest.approx(50.0, rel=1e-6)
