"""Every op that a CPU model stands for has a time on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

import perfmodel
from perfmodel.cost.contract import KERNELS
from perfmodel.errors import ModelError
from perfmodel.ops.spec import OPS


@pytest.mark.parametrize("op", [op for op in OPS if f"cpu/{OPS[op].family}/heuristic" in KERNELS])
def test_ops_on_a_cpu(op: str) -> None:
    choices = [group[0] for group in OPS[op].one_of]
    dims = dict.fromkeys([*OPS[op].dims, *choices], 64.0)
    rows = pd.DataFrame([{"op": op, "dtype": "fp32", "direction": "fwd"} | dims])
    answer = perfmodel.durations(rows, "epyc-7742").iloc[0]
    assert 0 <= answer["low_us"] <= answer["duration_us"] <= answer["high_us"] < 1e9


@pytest.mark.parametrize("table", ["drift", "reference", "alone.matmlu"])
def test_a_calibration_of_nothing_is_refused(table: str) -> None:
    """Files of versions before 0.3 may hold a drift, which would be left out without a word."""
    cpu = perfmodel.hardware.device("cpu-epyc")
    cpu = replace(cpu, name="mine", calibration={**cpu.calibration, table: {"stream_frac": 1.1}})
    ops = pd.DataFrame([{"op": "add", "rows": 64, "cols": 64}])
    with pytest.raises(ModelError, match=rf"^mine: calibration\.{table}: unknown key"):
        perfmodel.durations(ops, cpu)
