"""One operator of a trace as a PyTorch file: what it says, and that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kineto_documents import document, event

from perfmodel import export
from perfmodel.errors import UsageError

ARGUMENTS: dict[str, dict[str, Any]] = {
    "aten::mm": {
        "Input Dims": [[4, 8], [8, 3]],
        "Input type": ["float", "float"],
        "Concrete Inputs": ["", ""],
        "Input Strides": [[8, 1], [1, 8]],
    },
    "aten::addmm": {
        "Input Dims": [[3], [4, 8], [8, 3], [], []],
        "Input type": ["c10::BFloat16"] * 3 + ["Scalar", "Scalar"],
        "Concrete Inputs": ["", "", "", "1", "1"],
        "Input Strides": [[1], [8, 1], [3, 1], [], []],
    },
    "aten::add": {
        "Input Dims": [[4, 8], [4, 8], []],
        "Input type": ["float", "long int", "Scalar"],
        "Concrete Inputs": ["", "", "2"],
        "Input Strides": [[8, 1], [0, 1], []],
    },
    "aten::cat": {
        "Input Dims": [[[2, 3], [4, 3]], []],
        "Input type": ["TensorList", "Scalar"],
        "Concrete Inputs": ["", "0"],
        "Input Strides": [[[3, 1], [3, 1]], []],
    },
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Each of the operators twice, and one without shapes."""
    events = [
        event(name, "cpu_op", 100 * number + 50 * again, 20 + number, args=arguments)
        for number, (name, arguments) in enumerate(ARGUMENTS.items())
        for again in range(2)
    ]
    events.append(event("aten::relu", "cpu_op", 900, 5, args={}))
    path = tmp_path / "trace.json"
    path.write_bytes(document(*events))
    return path


def written(trace: Path, name: str) -> Path:
    (path,) = export(trace, trace.with_name("op.py"), name=name)
    return path


def test_strides_types_and_numbers_are_those_recorded(trace: Path) -> None:
    text = written(trace, "aten::add").read_text()
    assert (
        "(2, lambda: [tensor([4, 8], [8, 1], torch.float32), "
        "tensor([4, 8], [0, 1], torch.int64), 2])," in text
    )
    assert str(trace.parent) not in text
    text = written(trace, "aten::addmm").read_text()
    assert "tensor([8, 3], [3, 1], torch.bfloat16), 1, 1]" in text


def test_most_time_is_first(tmp_path: Path) -> None:
    other = ARGUMENTS["aten::mm"] | {"Input Dims": [[64, 8], [8, 3]]}
    path = tmp_path / "trace.json"
    mm = [("aten::mm", 0, 5, ARGUMENTS["aten::mm"]), ("aten::mm", 50, 40, other)]
    path.write_bytes(document(*(event(n, "cpu_op", ts, us, args=a) for n, ts, us, a in mm)))
    lines = written(path, "aten::mm").read_text().splitlines()
    cases = [line.strip() for line in lines if "lambda: [tensor" in line]
    assert [case.startswith("(1, lambda: [tensor([64, 8]") for case in cases] == [True, False]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_runs_on_a_cpu(trace: Path, name: str) -> None:
    why = "needs PyTorch: pip install torch (the CPU build is enough)"
    pytest.importorskip("torch", reason=why)
    command = [sys.executable, "-W", "error", str(written(trace, name)), "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{name} [[")
    assert "us on cpu (2 calls recorded)" in done.stdout


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_is_python(trace: Path, name: str) -> None:
    path = written(trace, name)
    compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aten::admm", r"no operator 'aten::admm'; nearest: aten::addmm, "),
        ("aten::relu", "records no shapes of it: profile with record_shapes=True"),
        ("", "give name, such as aten::addmm"),
    ],
)
def test_what_cannot_be_written_is_one_line(trace: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        export(trace, trace.with_name("op.py"), name=name)
    assert "\n" not in str(caught.value)
    assert not trace.with_name("op.py").exists()


def test_names_that_are_no_operators_of_pytorch(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    name = '"""\nimport os'
    path.write_bytes(document(event(name, "cpu_op", 0, 5, args=ARGUMENTS["aten::mm"])))
    with pytest.raises(UsageError, match="not one of PyTorch's operators"):
        written(path, name)


def test_a_name_is_of_an_operator_alone(trace: Path) -> None:
    with pytest.raises(UsageError, match="name: a graph is of the whole trace"):
        export(trace, trace.with_name("graph.graphml"), name="aten::mm")
