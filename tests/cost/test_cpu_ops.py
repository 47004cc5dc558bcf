"""Every op that a CPU model stands for has a time on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

import perfmodel
from perfmodel.cost.contract import KERNELS
from perfmodel.errors import ModelError
from perfmodel.ops.spec import OPS


def test_ops_on_a_cpu() -> None:
    rows = []
    for op in OPS:
        spec = OPS[op]
        if f"cpu/{spec.family}/heuristic" in KERNELS:
            dims = dict.fromkeys([*spec.dims, *(group[0] for group in spec.one_of)], 64.0)
            rows.append({"op": op, "dtype": "fp32", "direction": "fwd"} | dims)
    assert len(rows) > 90
    answer = perfmodel.durations(pd.DataFrame(rows), "epyc-7742")
    low, us, high = (answer[name] for name in ("low_us", "duration_us", "high_us"))
    is_right = (low >= 0) & (low <= us) & (us <= high) & (high < 1e9)
    assert not [row["op"] for row, right in zip(rows, is_right, strict=True) if not right]


@pytest.mark.parametrize("table", ["drift", "reference", "alone.matmul"])
def test_a_calibration_of_nothing_is_refused(table: str) -> None:
    """Files of versions before 0.3 may hold what would be left out without a word."""
    cpu = perfmodel.hardware.device("cpu-epyc")
    cpu = replace(cpu, name="mine", calibration={**cpu.calibration, table: {"stream_frac": 1.1}})
    ops = pd.DataFrame([{"op": "add", "rows": 64, "cols": 64}])
    with pytest.raises(ModelError, match=rf"^mine: calibration\.{table}: unknown key"):
        perfmodel.durations(ops, cpu)
