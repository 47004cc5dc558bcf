"""Every op that a CPU model stands for has a time on a CPU."""

from __future__ import annotations

import pandas as pd
import pytest

import perfmodel
from perfmodel.cost.contract import KERNELS
from perfmodel.ops.spec import OPS


@pytest.mark.parametrize("op", [op for op in OPS if f"cpu/{OPS[op].family}/heuristic" in KERNELS])
def test_ops_on_a_cpu(op: str) -> None:
    choices = [group[0] for group in OPS[op].one_of]
    dims = dict.fromkeys([*OPS[op].dims, *choices], 64.0)
    rows = pd.DataFrame([{"op": op, "dtype": "fp32", "direction": "fwd"} | dims])
    answer = perfmodel.durations(rows, "epyc-7742").iloc[0]
    assert 0 <= answer["low_us"] <= answer["duration_us"] <= answer["high_us"] < 1e9
