"""`collect trace -- SCRIPT`: steps found in a script that knows nothing of it."""

import gzip
import json
from pathlib import Path

import pytest

from perfmodel.collect.__main__ import main

torch = pytest.importorskip(
    "torch", reason="needs PyTorch: pip install torch (the CPU build is enough)"
)
TRAINING = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(int(sys.argv[1])):
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
INFERENCE = """
import torch
model = torch.nn.Linear(4, 4)
while True:
    model(torch.ones(2, 4))
"""
NEEDED = 2 + 2 + 2 + 2 + 2
WORDS = ["trace", "--warmup", "2", "--steps", "4", "--active", "2", "--device", "cpu"]


def captured(folder: Path, text: str, *words: str) -> int:
    script = folder / "own.py"
    script.write_text(text)
    return main([*WORDS, "-o", str(folder / "out"), "--", str(script), *words])


@pytest.mark.parametrize(("text", "products"), [(TRAINING, 4), (INFERENCE, 1)])
def test_steps_are_found(text: str, products: int, tmp_path: Path) -> None:
    assert captured(tmp_path, text, str(NEEDED + 5)) == 0
    record = json.loads((tmp_path / "out" / "own.json").read_text())
    assert len(record["unprofiled"]["before_us"]) == len(record["unprofiled"]["after_us"]) == 2
    assert len(record["profiled"]["step_us"]) == 2
    assert record["command"].endswith("-- own.py ...")
    assert str(tmp_path) not in json.dumps(record)
    packed = (tmp_path / "out" / "own_kineto.json.gz").read_bytes()
    events = json.loads(gzip.decompress(packed))["traceEvents"]
    names = [event["name"] for event in events]
    steps = [name for name in names if name.startswith("ProfilerStep#")]
    assert len(steps) == 2
    assert names.count("aten::linear") == 2 * products


def test_too_few_steps_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert captured(tmp_path, TRAINING, "5") == 2
    assert f"own.py ended after 5 steps, and {NEEDED} are needed" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_a_script_that_fails_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert captured(tmp_path, "raise SystemExit(3)") == 2
    assert "own.py ended with status 3" in capsys.readouterr().err
    assert main([*WORDS, "-o", str(tmp_path), "--", str(tmp_path / "none.py")]) == 2
    assert "there is no such script" in capsys.readouterr().err
