"""Samples of kernels: which devices the trees may tell apart."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfmodel.calibrate.kernel_samples import Samples, samples
from perfmodel.cost.learned.devices import COLUMNS, describe
from perfmodel.hardware import device

PCIE, SXM2, P100 = "v100-pcie-32gb", "v100-sxm2-16gb", "p100-pcie-16gb"


def of(**rows: int) -> Samples:
    names = [name.replace("_", "-") for name, count in rows.items() for _ in range(count)]
    frame = pd.DataFrame(
        {"op": "bmm", "device": names, "dtype": "fp32", "direction": "fwd"}
        | {"timing": "profiler_kernel", "b": 1, "m": 512, "n": 512, "k": 512}
        | {"duration_us": 50.0, "flag": ""}
    )
    known = {name: device(name) for name in set(names)}
    return samples(frame, "matmul", known, {}, {})


def test_boards_of_one_chip_look_alike_and_like_the_one_with_most_rows() -> None:
    found = of(v100_pcie_32gb=3, v100_sxm2_16gb=1, p100_pcie_16gb=1)
    assert found.seen_as[SXM2] == found.seen_as[PCIE] == describe(device(PCIE))
    assert found.seen_as[P100] == describe(device(P100))
    shown = found.with_devices(COLUMNS)[:, -len(COLUMNS) :]
    assert np.unique(shown, axis=0).shape[0] == 2
