"""A GPU's file: what its measurements reached."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from perfmodel.hardware import device
from perfmodel.validate.calibrate.any_device import fit_any_device


def test_long_streams_tell_the_share_of_the_memorys_peak(tmp_path: Path) -> None:
    """12 bytes an element at 0.6 of a T4's 320 GB/s."""
    rows = [50_000 + 1000 * place for place in range(30)]
    frame = pd.DataFrame({"op": "add", "device": "Tesla T4", "rows": rows, "cols": 100})
    frame["duration_us"] = 12 * 100 * frame["rows"] / (0.6 * 320e3)
    frame = frame.assign(dtype="fp32", direction="fwd", timing="cuda_graph_replay")
    table, target = tmp_path / "kernels.csv", tmp_path / "mine.toml"
    frame.to_csv(table, index=False)
    fit, text = fit_any_device([table], "t4", stem="mine")
    target.write_text(text)
    assert fit.device.stream_peak_frac == pytest.approx(0.6)
    assert device(target).stream_gb_per_s == pytest.approx(0.6 * 320)
