"""Measured calls of modules: tables that are none, host and device apart, the host's speed."""

from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import UsageError
from perfmodel.validate.evaluate.results import compared, error_pct
from perfmodel.validate.evaluate.tables import module_errors, read_calls

HEAD = "program,class,mode,training,device,median_us,host_us,device_us"


def table(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "modules.csv"
    path.write_text("\n".join((head, *rows)) + "\n")
    return path


def call(host_us: float = 80.0, device_us: float = 20.0) -> dict[str, Any]:
    times = {"host_predicted_us": 40.0, "host_us": host_us, "device_us": device_us}
    errors = {"host_error_pct": error_pct(40.0, host_us), "device_error_pct": None}
    about = {"program": "net", "mode": "eager", "is_training": False}
    return about | compared(90.0, 80.0, 120.0, 100.0) | times | errors


def test_rows_are_read(tmp_path: Path) -> None:
    first, second = read_calls(
        table(tmp_path, "a,Model,eager,0,NVIDIA H200,10,8,2.5", "a,Model,eager,1,Some CPU,10,10,")
    )
    assert (first.program, first.is_training, first.call_us, first.device_us) == (
        "a",
        False,
        10,
        2.5,
    )
    assert (second.is_training, second.device_us) == (True, None)


@pytest.mark.parametrize(
    ("rows", "head", "fault"),
    [
        ([], "program,class", "no column mode, training"),
        (["a,Model,eager,0,NVIDIA H200,x,8,2"], HEAD, "row 1: a time is no number"),
        (["a,Model,eager,0,NVIDIA H200,0,8,2"], HEAD, "row 1: a time is not above 0"),
        (["a,Model,eager,0,NVIDIA H200,inf,8,2"], HEAD, "row 1: a time is not above 0"),
        (["a,Model,lazy,0,NVIDIA H200,10,8,2"], HEAD, "row 1: mode 'lazy': one of eager"),
        (["a,Model,eager"], HEAD, "row 1: a time is no number"),
        (["a,Model,eager,0,NVIDIA H200,10,8,0"], HEAD, "row 1: a time is not above 0"),
        (["a,Model,eager,yes,NVIDIA H200,10,8,2"], HEAD, "row 1: training 'yes': 0 or 1"),
        (["../a,Model,eager,0,NVIDIA H200,10,8,2"], HEAD, "expected the name of a file"),
        (['"a,Model,eager,0,X,10,8,2'], HEAD, "cannot be read as a table"),
        (["a,Model,eager,0,NVIDIA H200,10,8,2,5"], HEAD, "rows have more fields"),
        (["a,Model,eager,0,,10,8,2"], HEAD, "row 1: no device"),
        ([], HEAD + ",mode", "column 'mode' is there twice"),
        ([], HEAD, "the table has no rows"),
    ],
)
def test_a_table_that_is_none(rows: list[str], head: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=fault):
        read_calls(table(tmp_path, *rows, head=head))


def test_errors_of_a_call() -> None:
    found = call()
    assert found["error_pct"] == pytest.approx(-10.0)
    assert found["host_error_pct"] == pytest.approx(-50.0)
    assert found["within"]
    assert error_pct(10.0, None) is None


def test_the_hosts_speed_is_that_of_calls_it_bounds() -> None:
    calls = [call(), call(host_us=160.0), call(host_us=10.0, device_us=90.0)]
    errors = module_errors(calls, [], host_speed_ratio=1.6)
    assert errors["host_bound"] == 2
    # hosts took 2 and 4 times as long as predicted: half of 1/2 + 1/4
    assert errors["measured_host_speed_ratio"] == pytest.approx(1.6 * 0.375)
    assert errors["summary"][0]["n"] == 3
    assert module_errors(calls, [], None)["measured_host_speed_ratio"] is None
