"""A DLRM of the user's own is predicted as the same model is from a workload file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel import predict, predict_module
from perfmodel.lowering import lower
from perfmodel.ops.read.module import Call
from perfmodel.prediction.types import Result
from perfmodel.workload import load_workload

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")

from perfmodel.ops.read.module import graph_of_module  # noqa: E402

BATCH, ROWS, DIM, POOLING = 8192, 1_000_000, 64, 20
WORKLOAD = f"""
title = "mine"
batch = {BATCH}

[model]
dense_features = 13
bottom_mlp = [512, {DIM}]
top_mlp = [1024, 1]

[interaction]
kind = "cat"

[[tables]]
count = 2
rows = {ROWS}
dim = {DIM}
pooling = {POOLING}

[training]
loss = "bce"
dense_optimizer = "sgd"
table_optimizer = "sgd"

[implementation]
name = "pytorch"
precision = "fp32"
optimizer_style = "loop"
"""


class Dlrm(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, *, sparse: bool = True, rows: int = ROWS) -> None:
        super().__init__()
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        tables = [torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=sparse) for _ in range(2)]
        self.tables = torch.nn.ModuleList(tables)
        self.bottom = torch.nn.Sequential(linear(13, 512), relu(), linear(512, DIM), relu())
        top = (linear(3 * DIM, 1024), relu(), linear(1024, 1), torch.nn.Sigmoid())
        self.top = torch.nn.Sequential(*top)

    def forward(self, dense: Any, indices: Any) -> Any:
        rows = [table(each) for table, each in zip(self.tables, indices, strict=True)]
        return self.top(torch.cat([self.bottom(dense), *rows], 1))


def given(batch: int = BATCH) -> list[Any]:
    return [torch.rand(batch, 13), [torch.zeros(batch, POOLING, dtype=torch.int64)] * 2]


def kernels_us(result: Result) -> float:
    """A workload's step also brings its batch to the device; a module is given it there."""
    brought = sum(row["time_us"] for row in result.families if row["family"] == "memcpy_host")
    return float(result.rank.gpu_active_us - brought)


@pytest.fixture(scope="module")
def dlrm() -> Any:
    with torch.device("meta"):
        return Dlrm()


@pytest.mark.parametrize("training", [False, True])
def test_within_5_pct_of_the_workload(dlrm: Any, training: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(WORKLOAD)
    workload = load_workload(tmp_path / "mine.toml")
    hardware = ["h100-sxm", "l4", "v100-sxm2-16gb", "mi300x"]
    call = {"train": True, "optimizer": "SGD"} if training else {}
    ours = predict_module(dlrm, given(), hardware=hardware, **call)  # type: ignore[arg-type]
    theirs = predict(workload, hardware=hardware, train=training)
    for a, b in zip(ours.results, theirs.results, strict=True):
        assert kernels_us(a) == pytest.approx(kernels_us(b), rel=0.05), a.hardware


def pieces(module: Any, inputs: list[Any], **call: Any) -> list[tuple[str, dict[str, float]]]:
    graph = graph_of_module(module, inputs, Call(**call))
    return [(piece.op, dict(piece.dims)) for piece in lower(graph, "cuda").pieces]


def test_a_sparse_gradient_is_the_rows_that_were_looked_up(dlrm: Any) -> None:
    found = pieces(dlrm, given(100), training=True, optimizer="SGD")
    for name in ("index_select", "index_add"):
        assert [dims["rows"] for op, dims in found if op == name] == [2000, 2000]
    assert max(dims.get("elements", 0) for _, dims in found) < ROWS


def test_a_dense_gradient_is_the_whole_table() -> None:
    found = pieces(Dlrm(sparse=False, rows=1000), given(100), training=True, optimizer="SGD")
    filled = [dims["rows"] for op, dims in found if op == "fill" and dims["cols"] == 64]
    added = [(dims["rows"], dims["hash_size"]) for op, dims in found if op == "embedding"]
    assert filled == [1000, 1000]
    assert added == [(2000, 1000), (2000, 1000)]


def test_bags_of_one_length_are_known_as_such() -> None:
    bag, ids = torch.nn.EmbeddingBag(100, 8), torch.zeros(50, 4, dtype=torch.int64)
    for given_ids in ([ids], [ids.flatten(), torch.arange(50) * 4]):
        found = pieces(bag, given_ids)
        assert [dims["longest_bag"] for op, dims in found if op == "embedding_bag"] == [4]


def test_gradients_are_kept_and_not_copied() -> None:
    found = pieces(torch.nn.Linear(32, 64), [torch.rand(8, 32)], training=True)
    assert "copy" not in [op for op, _ in found]
