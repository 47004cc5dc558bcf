"""Errors per op: figures that can be checked by hand, traces, tables of published lookups."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tiny import Tiny

from benchmarks.published.lookups import read_lookups
from benchmarks.published.ops import op_errors, ops_of
from perfmodel.errors import TraceError
from perfmodel.trace import Trace

TIMINGS = """op,impl,gpu,batch,tables,rows_per_table,dim,pooling,dtype,phase,time_us,full_config
TBE,FBGEMM,A100 (SXM4),512,32,100000,128,20,fp32,fwd,138,yes
TBE,FBGEMM,A100,512,32,100000,128,20,fp32,fwd,138,no
TBE,FBGEMM,GPU not stated,512,32,100000,128,20,fp32,fwd,138,yes
GPU hash table find,x,A100,512,32,100000,128,20,fp32,fwd,138,yes
batched embedding lookup,batched_embedding_x,V100,64,8,1000,64,4,fp32,bwd+sgd,20,yes
"""
KERNELS = """trace,kernel,count,total_us
trace_default,void batched_embedding_forward_kernel_1,2,1040
trace_default,volta_sgemm_128x64_tn,1,300
trace_mlperf,void batched_embedding_backward_sgd_kernel_1,1,110
"""


def measured(*pairs: tuple[float, float]) -> pd.DataFrame:
    frame = pd.DataFrame(pairs, columns=["predicted_us", "measured_us"])
    return frame.assign(source="t", device="d", name="matmul")


def trace() -> Trace:
    tiny = Tiny(device="Tesla V100-SXM2-16GB")
    tiny.step(1, 0, 1000)
    shapes = {"Input Dims": [[2048, 1024], [1024, 1024]], "Input type": ["float", "float"]}
    tiny.op("aten::mm", 10, 30, **shapes)
    tiny.launch(15, 20, kernel=(40, 440), name="volta_sgemm_128x64_nn")
    return tiny.trace()


def test_figures() -> None:
    found = op_errors(measured((110, 100), (50, 100), (1, 1)))
    (row,) = found.rows
    assert (row["n"], row["mape_pct"], row["median_pct"]) == (3, pytest.approx(20, abs=1e-3), 10)
    assert row["bias_pct"] == pytest.approx((10 - 50) / 3, abs=1e-3)
    assert row["total_pct"] == pytest.approx(100 * (161 / 201 - 1), abs=1e-3)
    assert row["gmae_pct"] == pytest.approx(100 * (0.1004 * 0.5004 * 0.0004) ** (1 / 3), abs=1e-3)
    assert found["all"]["n"] == 3


def test_nothing_has_no_errors() -> None:
    assert op_errors(pd.DataFrame())["all"] is None


def test_ops_of_a_trace_by_family_and_by_name() -> None:
    (row,) = ops_of(trace()).to_dict("records")
    assert (row["name"], row["measured_us"], row["device"]) == ("matmul", 400, "v100-sxm2-16gb")
    assert ops_of(trace(), by_op=True)["name"].tolist() == ["aten::mm"]
    assert not len(ops_of(trace(), only="*lookup*"))


def test_published_timings_with_a_full_configuration_on_a_known_gpu(tmp_path: Path) -> None:
    path = tmp_path / "timings.csv"
    path.write_text(TIMINGS)
    found = read_lookups(path)
    assert list(zip(found["device"], found["name"], found["measured_us"], strict=True)) == [
        ("a100-sxm-40gb", "TBE fwd", 138),
        ("v100-sxm2-16gb", "batched embedding lookup bwd", 20),
    ]


def test_kernels_of_traces_of_lin(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(KERNELS)
    assert read_lookups(path)[["name", "measured_us"]].to_numpy().tolist() == [
        ["lin-dlrm-default fwd", 520],
        ["lin-dlrm-mlperf bwd", 110],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column op, gpu"),
        ("", "No columns"),
        (TIMINGS.replace("512,32", "many,32"), "could not convert"),
    ],
)
def test_other_tables_are_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_lookups(path)
