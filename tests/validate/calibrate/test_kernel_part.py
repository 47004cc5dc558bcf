"""Fits of parts: whole chips are left out to choose how others are answered, and by how much."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel import hardware
from perfmodel.cost.learned.features import streaming_features
from perfmodel.cost.learned.model import Part
from perfmodel.cost.learned.store import models_of
from perfmodel.errors import ModelError
from perfmodel.ops.rows import Rows
from perfmodel.validate.calibrate.kernel_data import Table, launch_floors, without_excluded
from perfmodel.validate.calibrate.kernel_part import fit_part

DEVICES = ("t4", "v100-pcie-32gb", "v100-sxm2-16gb", "a100-pcie-40gb", "h100-sxm", "mi100")


@cache
def made(by_cols: float, sign: int = 0, devices: tuple[str, ...] = DEVICES) -> Part:
    """A fit to softmax that takes the base on every device, times (cols / 1448) to the power
    `by_cols`, whose sign alternates between chips with `sign` 1."""
    generator, frames = np.random.default_rng(0), []
    for place, name in enumerate(devices):
        sides = np.floor(2.0 ** generator.uniform(8, 13, (300, 2)))
        frame = pd.DataFrame(sides, columns=["rows", "cols"]).assign(op="softmax", device=name)
        rows = Rows.from_frame(frame)
        base_us = streaming_features(rows, hardware.device(name)).base_us
        power = by_cols * (-1.0) ** (sign * (place + (place > 1)))
        frames.append(frame.assign(duration_us=4.0 * base_us * (sides[:, 1] / 1448.0) ** power))
    frame = pd.concat(frames).assign(dtype="fp32", direction="fwd", flag="")
    known = {name: hardware.device(name) for name in devices}
    frame = frame.assign(timing="profiler_kernel")
    return fit_part("vector_rows", frame, known, launch_floors(frame), is_of_ops=True, seed=0)


def test_a_device_that_was_not_measured_has_what_others_of_its_maker_show() -> None:
    part = made(0.5, 0, tuple(name for name in DEVICES if name != "a100-pcie-40gb"))
    model = models_of([(part.fitted, part.trees)])["vector"]
    sides = {"rows": 4096.0, "cols": 2048.0}
    rows = Rows.of([{"op": "softmax", **sides, "timing": "profiler_kernel"}])
    found = model.estimate(rows, hardware.device("a100-pcie-40gb"))
    base_us = streaming_features(rows, hardware.device("a100-pcie-40gb")).base_us
    true_us = 4.0 * base_us * (2048.0 / 1448.0) ** 0.5
    assert abs(np.log(found.duration_us / true_us)) < 0.35
    assert found.low_us < true_us < found.high_us


@pytest.mark.parametrize(("sign", "shares"), [(0, (1.0, 1.0)), (1, (0.25, 0.75))])
def test_trees_answer_as_far_as_devices_left_out_are_nearer_by_them(
    sign: int, shares: tuple[float, float]
) -> None:
    share = made(0.5, sign).fitted.share
    assert shares[0] <= share <= shares[1]


def test_boards_of_one_chip_say_nothing_of_others() -> None:
    alone = made(0.5, 0, ("v100-pcie-32gb", "v100-sxm2-16gb")).fitted
    assert not [key for key in alone.intervals if key.startswith("*//")]


def test_what_was_measured_is_kept_with_the_part() -> None:
    fitted = made(0.5).fitted
    assert fitted.ops == ("softmax",)
    assert set(fitted.measured) == {f"{name}/softmax/fp32" for name in DEVICES}
    assert {"*//long", "softmax/t4/long", "softmax/t4/beyond"} <= set(fitted.intervals)


def test_rows_that_tell_of_their_host_alone_are_an_error() -> None:
    frame = pd.DataFrame({"op": "add", "device": "t4", "rows": 8.0, "cols": np.arange(8.0, 308.0)})
    frame = frame.assign(dtype="fp32", direction="fwd", flag="", duration_us=25.0)
    with pytest.raises(ModelError, match="vector_flat: no row takes longer than its launch"):
        fit_part(
            "vector_flat",
            frame.assign(timing="event_single_call"),
            {"t4": hardware.device("t4")},
            launch_floors(frame.assign(timing="event_single_call")),
            is_of_ops=True,
            seed=0,
        )


def test_rows_that_a_published_table_has_wrong_are_left_out_of_it_alone(tmp_path: Path) -> None:
    frame = pd.DataFrame({"device": ["Tesla P4", "Tesla T4"], "op": "linear", "dtype": "fp32"})
    published = "bfc292d514798e3d974dbc33bb5c2f9e6442493badffeb457c26eb2c2e450985"
    tables = [Table(tmp_path, sha256, frame) for sha256 in (published, "another")]
    kept = [each.frame["device"].tolist() for each in without_excluded(tables)]
    assert kept == [["Tesla T4"], ["Tesla P4", "Tesla T4"]]
