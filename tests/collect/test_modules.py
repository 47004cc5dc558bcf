"""`collect modules`: calls of modules in files, those that fail among others, and its words."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.collect.__main__ import main

torch = pytest.importorskip(
    "torch", reason="needs PyTorch: pip install torch (the CPU build is enough)"
)

LINEAR = """
import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, 8)

    def forward(self, x):
        return {"out": [self.layer(x)]}


def get_inputs():
    return [torch.rand(4, 16)]


def get_init_inputs():
    return [16]
"""
WRONG_WIDTH = LINEAR.replace("return [16]", "return [17]")
NO_PARAMETERS = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(4)]
"""


def measured(folder: Path, *options: str) -> tuple[int, list[dict[str, str]], dict[str, Any]]:
    out = folder / "out"
    words = ["modules", str(folder), "--device", "cpu", "--minutes", "0.5", "-o", str(out)]
    status = main([*words, *options])
    with (out / "modules.csv").open() as file:
        rows = list(csv.DictReader(file))
    return status, rows, json.loads((out / "modules_meta.json").read_text())


def test_a_call_is_measured_and_a_faulty_module_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(LINEAR)
    (tmp_path / "b.py").write_text(WRONG_WIDTH)
    status, (row,), record = measured(tmp_path, "--traces")
    assert status == 0
    assert (row["program"], row["mode"], row["training"]) == ("a", "eager", "0")
    assert 0 < float(row["duration_us"]) <= float(row["median_us"]) <= float(row["p90_us"])
    assert row["device_us"] == ""  # a CPU has no queue to be ahead of
    assert list(record["skipped"]) == ["b"]
    assert "4x16 and 17x8" in record["skipped"]["b"]
    assert (tmp_path / "out" / "modules_traces" / "a_kineto.json.gz").exists()
    assert str(record["command"]).endswith(f"--name modules {tmp_path.name} --traces")


def test_training_takes_parameters(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(LINEAR)
    (tmp_path / "b.py").write_text(NO_PARAMETERS)
    _, (row,), record = measured(tmp_path, "--training")
    assert (row["program"], row["training"]) == ("a", "1")
    assert "nothing to train" in record["skipped"]["b"]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--mode", "lazy"], "--mode 'lazy'; nearest: eager, compiled, graphs"),
        (["--mode", "graphs"], "--mode graphs needs --device cuda"),
        (["missing.py"], "missing.py: no such file"),
    ],
)
def test_words_that_cannot_be(
    words: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text(LINEAR)
    given = ["modules", *words, str(tmp_path / "a.py"), "--device", "cpu", "-o", str(tmp_path)]
    assert main(given) == 2
    assert fault in capsys.readouterr().err
    assert not (tmp_path / "modules.csv").exists()
