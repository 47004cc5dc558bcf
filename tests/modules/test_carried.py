"""Modules that are no DLRM: their layers carried beside tables, on any number of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import PerfmodelError

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")

from perfmodel import compare, predict  # noqa: E402
from perfmodel.ops.read.module import Call, graph_of_program, program_of  # noqa: E402
from perfmodel.workload import Workload, load_workload, op_graph  # noqa: E402

SOURCE = """\
import torch
from torch import nn


class Mmoe(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(9000, 32, mode="sum") for _ in range(4))
        self.experts = nn.ModuleList(nn.Linear(4 * 32 + 16, 256) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(4 * 32 + 16, 3) for _ in range(2))
        self.towers = nn.ModuleList(nn.Linear(256, 1) for _ in range(2))

    def forward(self, dense, ids):
        rows = [bag(ids[:, at]) for at, bag in enumerate(self.bags)]
        x = torch.cat([dense, *rows], 1)
        found = torch.stack([torch.relu(expert(x)) for expert in self.experts], 1)
        mixed = [(gate(x).softmax(1).unsqueeze(2) * found).sum(1) for gate in self.gates]
        return [tower(each) for tower, each in zip(self.towers, mixed)]


class Din(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.shops = nn.Embedding(9000, 32), nn.EmbeddingBag(500, 32, mode="sum")
        self.unit = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))
        self.top = nn.Linear(96, 1)

    def forward(self, dense, ids):
        past, item = self.items(ids.flatten(1)), self.items(ids[:, 0, 0])
        each = item.unsqueeze(1).expand_as(past)
        weight = self.unit(torch.cat([past, each, past * each], 2)).softmax(1)
        return self.top(torch.cat([(weight * past).sum(1), item, self.shops(ids[:, 1])], 1))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.places = nn.Embedding(9000, 64), nn.Embedding(20, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.layers, self.top = nn.TransformerEncoder(layer, 2), nn.Linear(64 + 16, 1)

    def forward(self, dense, ids):
        x = self.items(ids.flatten(1)) + self.places(torch.arange(20))
        return self.top(torch.cat([self.layers(x).mean(1), dense], 1))


def get_inputs():
    return [torch.rand(256, 16), torch.randint(0, 500, (256, 4, 5))]
"""
TABLES = {
    "Mmoe": "rows = 5_000_000\ndim = 32\npooling = 5\ncount = 4",
    "Din": "rows = 5_000_000\ndim = 32\npooling = 20\npooled = false\n[[tables]]\n"
    "rows = [5_000_000, 500]\ndim = 32\npooling = [1, 5]",
    "Tower": "rows = 5_000_000\ndim = 64\npooling = 20\npooled = false",
}
OF_LAYERS = ("matmul", "attention", "softmax", "norm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("carried")
    (where / "model.py").write_text(SOURCE)
    for name, tables in TABLES.items():
        text = f'batch = 256\n[recorded]\nsource = "model.py:{name}"\n'
        text += f'[implementation]\nsharding = "balanced"\n[[tables]]\n{tables}\n'
        (where / f"{name}.toml").write_text(text)
    return where


@pytest.fixture(params=list(TABLES))
def workload(request: pytest.FixtureRequest, folder: Path) -> Workload:
    return load_workload(folder / f"{request.param}.toml")


def families(source: Any, **how: Any) -> dict[str, float]:
    found = predict(source, hardware="h100", **how).results[0].families
    return {row["family"]: row["time_us"] for row in found if row["family"] in OF_LAYERS}


def test_layers_take_what_they_take_in_the_module(folder: Path) -> None:
    """What is beside the layers differs: the module's rows and optimizer are PyTorch's."""
    for name, train in (("Mmoe", True), ("Din", False), ("Tower", True)):
        program = program_of(f"{folder / 'model.py'}:{name}")
        assert program is not None
        alone = families(graph_of_program(program, Call(training=train)))
        carried = families(load_workload(folder / f"{name}.toml"), train=train)
        assert carried == pytest.approx(alone, rel=1e-6)


def test_every_parameter_but_rows_is_carried(folder: Path) -> None:
    """By hand: three experts, two gates, two towers; each layer's weights and bias."""
    expected = 3 * (144 * 256 + 256) + 2 * (144 * 3 + 3) + 2 * (256 + 1)
    assert load_workload(folder / "Mmoe.toml").dense_parameters == expected


def test_places_are_a_layer_and_items_are_not(folder: Path) -> None:
    layers = load_workload(folder / "Tower.toml").recorded
    assert layers is not None
    assert [each.shape for each in layers.rows] == [(256, 20, 64)]
    assert (20, 64) in [each.shape for each in layers.parameters]
    assert [each.shape for each in layers.inputs] == [(256, 16)]


def test_designs_work_for_any_layers(workload: Workload) -> None:
    """On 32 GPUs; what is no faster is not taken, so that no design but a cache can lose."""
    designs = ["default", "hotline", "neo", "software_cache", "low_precision"]
    found = compare(workload, "dgx-h100", designs, batch=256 * 32, nodes=4)
    assert not [row.why_not for row in found.rows if row.why_not]
    steps = {row.design: row.result.step_us for row in found.rows if row.result}
    assert all(100 < step < 1e5 for step in steps.values())
    assert steps["neo"] <= steps["default"] * (1 + 1e-9)
    assert steps["low_precision"] <= steps["default"] * (1 + 1e-9)


def step_us(workload: Workload, hardware: str, batch: int, train: bool = True) -> float:
    return predict(workload, hardware=hardware, batch=batch, train=train).results[0].step_us


def test_more_lookups_and_more_ranks_are_not_faster(workload: Workload) -> None:
    busy = replace(
        workload, tables=tuple(replace(t, pooling=40 * t.pooling) for t in workload.tables)
    )
    for train in (True, False):
        alone = step_us(workload, "h100", 256, train)
        assert step_us(workload, "h100", 1024, train) >= alone * 0.97
        assert step_us(busy, "h100", 256, train) >= alone * 0.97
        assert step_us(workload, "dgx-h100", 8 * 256, train) >= alone


def test_rows_of_sequences_are_exchanged_one_by_one(folder: Path) -> None:
    """20 rows of 64 values of each of 2,048 samples, an eighth of them of each rank's own."""
    graph = op_graph(load_workload(folder / "Tower.toml"), 8 * 256, ranks=8)
    sent = [
        int(op.attributes["out_elements"])
        for op in graph.ops
        if op.name == "c10d::alltoall_base_" and op.attributes["dtype"] == "fp32"
    ]
    assert sent[:1] == [256 * 20 * 64]


MLPS = "[model]\ndense_features = 1\nbottom_mlp = [4]\ntop_mlp = [1]"
OTHER = '[implementation]\nname = "hugectr"'
HALF = '[implementation]\nprecision = "bf16"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('source = "absent.py:Net"', "absent.py: cannot be read"),
        ('source = "absent.json"', "absent.json"),
        ('source = "model.py:Absent"', "no torch.nn.Module 'Absent'"),
        ('source = "plain.py:Net"', "plain.py:Net: no op looks up rows"),
        ('source = "model.py:Din"\nbatch = 0', "recorded: batch"),
        ("layers = 3", "unknown key layers"),
        (f'source = "model.py:Din"\n{MLPS}', "leave model"),
        (f'source = "model.py:Din"\n{OTHER}', "recorded layers need torchrec"),
        (f'source = "model.py:Din"\n{HALF}', "precision: recorded layers"),
    ],
)
def test_bad_files_are_told_in_a_line(folder: Path, text: str, said: str) -> None:
    (folder / "plain.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n\n\n"
        "def get_init_inputs():\n    return [4, 2]\n\n\n"
        "def get_inputs():\n    return [torch.rand(8, 4)]\n"
    )
    path = folder / "bad.toml"
    path.write_text(f"[recorded]\n{text}\n[[tables]]\nrows = 9\ndim = 4\n")
    with pytest.raises(PerfmodelError) as raised:
        load_workload(path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
