"""A module of the user's own is a workload: a DLRM by settings, any other by recorded layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel import compare
from perfmodel.workload import Table, load_workload
from perfmodel.workload.load import workload_of
from perfmodel.workload.model import toml_of

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(rows, 16, mode="sum") for rows in (1000, 300)])
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 3, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())

    def joined(self, dense, ids):
        rows = [bag(each) for bag, each in zip(self.bags, ids)]
        return torch.stack([self.bottom(dense), *rows], 1)

    def forward(self, dense, ids):
        joined = self.joined(dense, ids)
        products = torch.bmm(joined, joined.transpose(1, 2))
        rows, columns = torch.tril_indices(3, 3, -1)
        return self.top(torch.cat([joined[:, 0], products[:, rows, columns]], 1))

class Attention(Net):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = nn.Linear(48, 1)

    def forward(self, dense, ids):
        joined = self.joined(dense, ids)
        return self.last(self.attention(joined, joined, joined)[0].flatten(1))

def get_inputs():
    return [torch.rand(256, 13), torch.randint(0, 300, (2, 256, 5))]
"""
TABLES = (Table(1000, 16, 5.0), Table(300, 16, 5.0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_module_that_is_a_dlrm_has_its_settings(file: Path) -> None:
    found = load_workload(f"{file}:Net")
    assert (found.tables, found.batch, found.recorded) == (TABLES, 256, None)
    assert (found.model.bottom_mlp, found.model.top_mlp) == ((32, 16), (64, 1))
    assert found.interaction.kind == "dot"


def test_any_other_is_carried_and_written_with_its_source(file: Path) -> None:
    found = workload_of(f"{file}:Attention")
    assert found.workload.tables == TABLES
    assert found.workload.recorded is not None
    why = next(each.why for each in found.facts if each.setting == "recorded.source")
    assert why.startswith("not a DLRM: a layer is given 768 rows of 256 samples")  # 3 vectors each
    path = file.with_name("mine.toml")
    path.write_text(toml_of(found.workload, []))
    again = load_workload(path)
    assert (again.tables, again.batch, again.implementation) == (
        found.workload.tables,
        found.workload.batch,
        found.workload.implementation,
    )
    assert again.dense_parameters == found.workload.dense_parameters


def test_designs_are_asked_of_either(file: Path) -> None:
    for name in ("Net", "Attention"):
        found = compare(f"{file}:{name}", "dgx-a100-80gb", "hotline", batch=2048)
        answered = {row.design: row.result for row in found.rows if row.result is not None}
        assert answered["hotline"].step_us < answered["default"].step_us
