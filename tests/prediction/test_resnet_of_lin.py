"""Step times of ResNet-50 training that Lin et al. published, from shapes alone.

The ops are those of a trace on another V100; nothing was fitted to these times. They were taken
without loading data, and so is the trace one whose data other processes load.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import perfmodel

GPUS = {"V100": "v100-sxm2-16gb", "Titan XP": "titan-xp", "P100": "p100-pcie-16gb"}
BATCH = 32
MOST = {"V100": 0.14, "Titan XP": 0.29, "P100": 0.12}


@pytest.mark.slow
def test_three_gpus(reference: Path) -> None:
    table = reference / "lin2022" / "e2e_vs_habitat_mlpredict.csv"
    with table.open() as lines:
        measured = {
            row["gpu"]: 1e3 * float(row["measured_ms"])
            for row in csv.DictReader(lines)
            if (row["model"], int(row["batch_size"])) == ("ResNet50", BATCH)
        }
    trace = perfmodel.read(reference / "traces" / "train" / "v100_resnet50_workers4_a.json.gz")
    found = perfmodel.predict(trace, hardware=[*GPUS.values()], mode="model", batch=BATCH)
    errors = {
        gpu: result.step_us / measured[gpu] - 1
        for gpu, result in zip(GPUS, found.results, strict=True)
    }
    assert all(abs(errors[gpu]) < MOST[gpu] for gpu in GPUS), errors
    assert np.mean(np.abs([*errors.values()])) < 0.16
