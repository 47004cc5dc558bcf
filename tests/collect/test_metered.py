"""Steps of tiny models whose operators are metered, with PyTorch on a CPU."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collect.tiny_config import TINY, a_run

from perfmodel.collect import ops
from perfmodel.collect.backend import Backend, open_backend
from perfmodel.collect.cli import main
from perfmodel.collect.models import MODELS, Options, Ranks
from perfmodel.collect.models.dlrm import DlrmConfig, read_configs, train_dlrm
from perfmodel.collect.ops import Turns, describe_mode, hidden_accumulation, meter_mode

torch = pytest.importorskip(
    "torch", reason="needs PyTorch: pip install torch (the CPU build is enough)"
)


@pytest.fixture
def cpu() -> Backend:
    return open_backend("cpu")


def described(cpu: Backend) -> list[dict[str, Any]]:
    training = MODELS["dlrm"](cpu, Ranks(), Options(preset="tiny", batch=8))
    training.step(0)
    mode = describe_mode(torch)
    with mode:
        training.step(1)
    with hidden_accumulation(torch, mode.leaves.values()), describe_mode(torch) as again:
        training.step(2)
    found: list[dict[str, Any]] = again.seen
    return found


def test_all_phases_are_seen(cpu: Backend) -> None:
    seen = described(cpu)
    phases = [op["phase"] for op in seen]
    assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index)
    assert set(phases) == {"forward", "backward", "optimizer"}
    assert all(bool(op["node"]) == (op["phase"] == "backward") for op in seen)
    assert all(
        len(op["input_shapes"]) == len(op["input_dtypes"]) == len(op["input_layouts"])
        for op in seen
    )
    json.dumps(seen)


def test_what_a_dlrm_runs(cpu: Backend) -> None:
    seen = described(cpu)
    lookup = next(op for op in seen if op["op"] == "aten::_embedding_bag")
    assert lookup["input_shapes"][:2] == [[100, 4], [16]]
    assert 1 <= lookup["unique_rows"] <= 16
    update = [op for op in seen if "sparse_coo" in op["input_layouts"]]
    assert [op["op"] for op in update] == ["aten::add_.Tensor"] * 3
    assert update[0]["scalars"]["nnz"] == 16
    product = next(op for op in seen if op["op"] == "aten::addmm")
    assert product["input_layouts"] == ["contiguous", "contiguous", "transposed"]
    joined = next(op for op in seen if op["op"] == "aten::stack")
    assert joined["input_shapes"] == [[[8, 4]] * 3]


def test_a_sparse_gradient_is_taken_and_not_cloned() -> None:
    table = torch.nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
    indices = torch.tensor([[1, 2], [3, 1]])
    table(indices).sum().backward()
    seen_bare = _backward(table, indices, [])
    seen = _backward(table, indices, [table.weight])
    assert "aten::clone" in seen_bare
    assert "aten::clone" not in seen
    assert not table.weight._post_accumulate_grad_hooks


def _backward(table: Any, indices: Any, leaves: list[Any]) -> list[str]:
    mode = meter_mode()
    with hidden_accumulation(torch, leaves):
        table.weight.grad = None
        with mode:
            table(indices).sum().backward()
    assert len(mode.readings) == 2 * len(mode.operators)
    table.weight.grad = table.weight.grad.coalesce()
    return [func.name() for func in mode.operators]


def test_a_model_out_of_memory_is_noted_and_the_rest_goes_on(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(backend: Backend, ranks: Ranks, config: DlrmConfig) -> Any:
        if config.name == "gone":
            raise MemoryError
        return train_dlrm(backend, ranks, config)

    monkeypatch.setattr(ops, "train_dlrm", trained)
    (tmp_path / "c.json").write_text(json.dumps([TINY]))
    (tiny,) = read_configs(tmp_path / "c.json")
    listed = [
        replace(tiny, name="gone"),
        replace(tiny, name="vast", rows=(10**14,)),
        tiny,
    ]
    metered = Turns(a_run("ops", cpu, tmp_path), listed)
    metered.take(1)
    assert metered.run.skipped == {"gone": "out of memory", "vast": "needs 1600000.0 GB"}
    assert metered.samples["tiny"].figures()["ops_per_step"] > 50
    nothing = Turns(a_run("ops", cpu, tmp_path), listed[:1])
    nothing.take(2)
    assert nothing.rows() == []


def tables(folder: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    packed = gzip.decompress((folder / "t.csv.gz").read_bytes()).decode()
    with (folder / "t_steps.csv").open() as file:
        return list(csv.DictReader(packed.splitlines())), list(csv.DictReader(file))


def test_a_tiny_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MAX_ROUNDS", 2)
    (tmp_path / "c.json").write_text(json.dumps([TINY, {**TINY, "name": "two"}]))
    words = ["ops", "--configs", str(tmp_path / "c.json"), "--minutes", "5", "--device", "cpu"]
    assert main([*words, "-o", str(tmp_path), "--name", "t"]) == 0
    rows, steps = tables(tmp_path)
    assert [step["name"] for step in steps] == ["tiny", "two"]
    assert {step["rounds"] for step in steps} == {"2"}
    for step in steps:
        total = sum(
            float(row["duration_us"]) * int(row["count"])
            for row in rows
            if row["configuration"] == step["name"]
        )
        assert total > 0
        # of steps, each of which holds its operators
        assert 0 < float(step["ops_sum_p10_us"]) < float(step["metered_p10_us"])
        assert float(step["p10_us"]) > 0
    meta = json.loads((tmp_path / "t_meta.json").read_text())
    assert meta["rounds"] == 4
    assert meta["command"].endswith("--configs c.json --device cpu --minutes 5.0 --name t")


def test_an_interrupted_run_has_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, rounds = Turns.measure, iter(range(2))

    def interrupted(*arguments: Any) -> None:
        if next(rounds):
            raise KeyboardInterrupt
        measure(*arguments)

    monkeypatch.setattr(Turns, "measure", interrupted)
    (tmp_path / "c.json").write_text(json.dumps([TINY]))
    words = ["ops", "--configs", str(tmp_path / "c.json"), "--minutes", "5", "--device", "cpu"]
    assert main([*words, "-o", str(tmp_path), "--name", "t"]) == 130
    rows, (step,) = tables(tmp_path)
    assert rows
    assert step["rounds"] == "1"
