"""Measurement tables as they are read: what cannot be used is named, with file and row."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.errors import ModelError
from perfmodel.ops.rows import FRAMEWORKS, Rows
from perfmodel.validate.calibrate.kernel_data import (
    devices_of,
    family_rows,
    few_of_each,
    joined,
    launch_floors,
    launched_late,
    read_table,
    some_unnamed,
)

HEAD = "op,device,dtype,timing,m,n,k,duration_us"
ROW = "linear,NVIDIA L4,fp16,cuda_graph_replay,64,32,16,3.5"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_and_where_it_came_from(tmp_path: Path) -> None:
    found = read_table(table(tmp_path, HEAD, ROW, ROW.replace("linear", "some_other_op")))
    assert found.frame["op"].tolist() == ["linear", "some_other_op"]
    assert len(found.sha256) == 64


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((HEAD,), "the table is empty"),
        (("a,b", "1,2"), "is not a measurement table: it has no column op"),
        ((HEAD, ROW, ROW.replace("linear", "")), "row 1: op is missing"),
        ((HEAD, ROW.replace("NVIDIA L4", "")), "row 0: device is missing"),
        ((HEAD, ROW, ROW.replace(",64,", ",many,")), "row 1: m is 'many'; expected a number"),
        ((HEAD, ROW.replace("3.5", "fast")), "row 0: duration_us is 'fast'; expected a number"),
        ((HEAD, ROW.replace("3.5", "-1")), "row 0: duration_us is -1; expected above 0"),
        ((HEAD, ROW.replace("3.5", "inf")), "row 0: duration_us is inf; expected above 0"),
        ((HEAD, ROW, ROW.replace(",64,", ",,")), "linear (row 1): m is missing"),
        ((HEAD, ROW.replace(",64,", ",0,")), "linear (row 0): m is 0; expected at least 1"),
        ((HEAD, ROW.replace(",64,", ",1e99,")), "m is 1e+99; expected at most 1e+15"),
        ((HEAD, ROW.replace("fp16", "fp3")), "unknown dtype 'fp3'"),
        ((HEAD, ROW.replace("cuda_graph_replay", "guess")), "unknown timing 'guess'"),
        (
            (HEAD + ",direction", ROW + ",sideways"),
            "unknown direction 'sideways'; one of bwd, bwd_",
        ),
        ((HEAD, ROW.replace("3.5", "1e13")), "row 0: duration_us is 1e+13; expected above 0"),
        ((HEAD, ROW.replace(",64,", f",{'9' * 400},")), "column m: a whole number beyond"),
        ((HEAD + ",m", ROW + ",64"), "column 'm' is there twice"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(ModelError, match=rf"t\.csv: .*{re.escape(message)}"):
        read_table(table(tmp_path, *lines))


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\0\0", b"PAR1 cut"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_is_no_table_is_named(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"t\{suffix}: "):
        read_table(path)


def adds(shortest_us: float, piled_frac: float) -> pd.DataFrame:
    """1,000 adds: so many of them at `shortest_us`, the others up to a hundred times longer."""
    us = shortest_us * 100.0 ** np.linspace(0.0, 1.0, 1000)
    us[: int(1000 * piled_frac)] = shortest_us * 1.01
    frame = pd.DataFrame({"duration_us": us, "device": "NVIDIA L4", "op": "add", "dtype": "fp32"})
    return frame.assign(timing="event_single_call", rows=1e4 * us, cols=1.0)


def test_a_floor_is_where_short_kernels_pile_up() -> None:
    found = launch_floors(adds(26.0, 0.3))
    assert found == {"NVIDIA L4/event_single_call/add/fp32": pytest.approx(26.0, rel=0.02)}


def test_the_shortest_of_long_kernels_are_no_floor() -> None:
    assert launch_floors(adds(882.0, 0.0)) == {}


def test_half_of_the_rows_of_a_fit_lose_their_framework() -> None:
    frame = pd.DataFrame({"framework": ["vllm"] * 3000, "op": "linear", "dtype": "fp16"})
    frame = frame.assign(device="NVIDIA H200", duration_us=1.0)
    codes = Rows.from_frame(some_unnamed(frame, 0)).in_framework()
    assert set(codes.astype(int).tolist()) == {0, 1 + FRAMEWORKS.index("vllm")}
    assert (codes == 0.0).mean() == pytest.approx(0.5, abs=0.05)


def test_a_framework_that_nobody_fitted_is_not_known() -> None:
    frame = pd.DataFrame({"op": "linear", "framework": ["trtllm", "cublas/cudnn", None]})
    assert Rows.from_frame(frame).in_framework().tolist() == [1, 0, 0]
    records = [{"op": "linear", "framework": "sglang"}, {"op": "linear"}]
    assert Rows.of(records).in_framework().tolist() == [3, 0]


def test_what_the_collector_needs_for_timing_is_no_kernel(tmp_path: Path) -> None:
    path = tmp_path / "collected.csv"
    path.write_text(
        "op,device,dtype,timing,cache,rows,cols,duration_us\n"
        "clock_floor,X,fp32,event_single_call,cold,,,1.5\n"
        "clock_floor,X,fp32,event_single_call,warm,,,1.0\n"
        "launch_floor,X,fp32,event_single_call,cold,,,3\n"
        "add,X,fp32,event_single_call,cold,8,8,4\n"
        "add,X,fp32,event_single_call,warm,8,8,3\n"
        "add,X,fp32,event_single_call,warm,8,8,0.5\n"
        "add,X,fp32,profiler_kernel,cold,8,8,2\n"
    )
    frame = read_table(path).frame
    assert frame["duration_us"].tolist() == pytest.approx([2.5, 2.0, 2.0])
    behind = "event_behind_work"
    assert frame["timing"].tolist() == [behind, behind, "profiler_kernel"]
    assert frame["launched_us"].tolist() == pytest.approx([1.5, np.nan, np.nan], nan_ok=True)
    path.write_text(path.read_text().replace("cold,,,1.5", "cold,,,soon"))
    with pytest.raises(ModelError, match="row 0: duration_us is 'soon'"):
        read_table(path)


def test_rows_whose_launches_came_late_tell_of_their_host(tmp_path: Path) -> None:
    """Behind a flush of 1,024 MB at 4.08 TB/s, 251 us: a host of 400 us had the device wait for it,
    unless the call kept it busy; on warm caches a call before took as long twice."""
    path = tmp_path / "collected.csv"
    head = "op,device,dtype,timing,cache,rows,cols,duration_us,host_us"
    kind = "NVIDIA H200,fp32,event_single_call"
    calls = [("cold", 150, 400), ("cold", 300, 400), ("cold", 5, 240), ("warm", 5, 240)]
    floors = [
        f"{op},{kind},{cache},,,2,1"
        for op in ("clock_floor", "launch_floor")
        for cache in ("cold", "warm")
    ]
    rows = [f"sgd,{kind},{cache},8,8,{us},{host}" for cache, us, host in calls]
    path.write_text("\n".join([head, *floors, *rows]).replace("sgd", "add") + "\n")
    table = read_table(path)
    late = launched_late(table.frame, devices_of(table.frame["device"]))
    assert late.tolist() == [True, False, False, True]
    assert joined([table])["duration_us"].tolist() == pytest.approx([298, 3])


def test_what_the_collector_calls_has_the_dims_of_its_kernels(tmp_path: Path) -> None:
    path = tmp_path / "collected.csv"
    path.write_text(
        "op,device,dtype,timing,cache,rows,cols,hash_size,duration_us\n"
        "clock_floor,X,fp32,event_single_call,cold,,,,1\n"
        "batch_norm,X,fp32,event_single_call,cold,8,4,,9\n"
        "gather,X,fp32,event_single_call,cold,8,4,,9\n"
    )
    frame = read_table(path).frame
    assert frame[["rows", "cols"]].to_numpy().tolist() == [[8, 4], [32, 1]]
    assert frame["hash_size"].tolist() == pytest.approx([np.nan, 32], nan_ok=True)


def test_products_are_layers_without_bias() -> None:
    frame = pd.DataFrame({"op": ["mm", "linear"], "bias": [np.nan, 1.0], "m": 1, "n": 2, "k": 3})
    frame = frame.assign(dtype="fp32")
    for given in (frame, frame.astype({"bias": object}), frame.iloc[:1].drop(columns="bias")):
        rows = Rows.from_frame(family_rows(given, "matmul"))
        assert set(rows.op) == {"linear"}
        assert rows.dims_of("linear", np.arange(1))["bias"].tolist() == [0.0]


def test_benchmarks_of_8_bit_products_tell_of_layers_that_round_nothing() -> None:
    frame = pd.DataFrame({"op": "bmm", "b": [1.0, 2.0, 1.0], "dtype": ["int8", "int8", "fp32"]})
    rows = family_rows(frame.assign(m=1, n=2, k=3, framework="cublas/cudnn"), "matmul")
    assert rows["op"].tolist() == ["linear", "bmm", "bmm"]
    assert rows["framework"].tolist() == ["torch", "cublas/cudnn", "cublas/cudnn"]
    assert rows["bias"].tolist()[0] == 0
    served = family_rows(frame.assign(m=1, n=2, k=3, framework="vllm"), "matmul")
    assert served["framework"].tolist() == ["vllm"] * 3


def test_few_rows_of_each_framework_are_drawn() -> None:
    names = ["vllm"] * 50 + ["torch"] * 3 + ["trtllm"] * 20
    frame = pd.DataFrame({"framework": names, "device": "d", "op": "linear", "dtype": "fp8"})
    few = few_of_each(frame, np.arange(73), 9, 0)
    assert frame["framework"].iloc[few].value_counts().to_dict() == {
        "vllm": 9,
        "trtllm": 9,
        "torch": 3,
    }
    assert few.tolist() == sorted(few)
    assert len(few_of_each(frame.drop(columns="framework"), np.arange(73), 21, 0)) == 21
