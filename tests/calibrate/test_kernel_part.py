"""Trees without physics: they are asked as far as devices left out show, and no further."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel.calibrate.estimators import trees_or
from perfmodel.calibrate.kernel_part import with_plain
from perfmodel.calibrate.kernel_samples import Samples, samples
from perfmodel.cost.learned.corrections import Plain, kinds, log_base_over_bound, uses_plain_trees
from perfmodel.cost.learned.features import Columns
from perfmodel.hardware import device

DEVICES = ("t4", "v100-pcie-32gb", "a100-pcie-40gb", "h100-sxm")


def made(by_k: float, devices: tuple[str, ...] = DEVICES) -> Samples:
    """Products that take the base on every device, times k to the power `by_k` over 1,000."""
    generator = np.random.default_rng(0)
    rows = []
    for name in devices:
        for m, n, k in np.floor(2.0 ** generator.uniform(8, 13, (300, 3))):
            rows.append({"device": name, "m": m, "n": n, "k": k})
    frame = pd.DataFrame(rows).assign(op="linear", dtype="fp32", direction="fwd", flag="")
    frame = frame.assign(timing="profiler_kernel", duration_us=1e9)
    known = {name: device(name) for name in devices}
    base = samples(frame, "matmul", known, {}, {}).base_us
    order = samples(frame, "matmul", known, {}, {}).frame
    longer = np.maximum((order["k"].to_numpy() / 256.0) ** by_k, 1.0)
    return samples(order.assign(duration_us=base * longer), "matmul", known, {}, {})


def blended(
    data: Samples, physics: np.ndarray, build: str = "matmul"
) -> tuple[Plain | None, np.ndarray]:
    make = trees_or(None, build, seed=0)
    return with_plain(data, data.weight, physics, f"{build}_fp32", build, make)


def test_trees_without_physics_are_not_asked_where_physics_is_right() -> None:
    data = made(by_k=0.0)
    plain, left_out = blended(data, data.target)
    assert plain is None
    assert left_out == pytest.approx(data.target)


def test_trees_without_physics_help_where_physics_is_off() -> None:
    data = made(by_k=0.5)
    plain, left_out = blended(data, data.target + 0.6)
    assert plain is not None
    for name in DEVICES:
        of = data.devices == name
        assert np.abs(left_out[of] - data.target[of]).mean() < 0.6


def test_two_devices_choose_for_one_another() -> None:
    data = made(by_k=0.5, devices=DEVICES[:2])
    plain, left_out = blended(data, data.target + 0.6)
    assert plain is not None
    assert np.abs(left_out - data.target).mean() < 0.5


def test_elementwise_ops_are_a_matter_of_physics() -> None:
    data = made(by_k=0.5)
    wrong = data.target + 0.6
    plain, left_out = blended(data, wrong, "stream")
    assert plain is None
    assert left_out is wrong
    assert not uses_plain_trees("stream", "add")
    assert uses_plain_trees("stream", "softmax")
    assert uses_plain_trees("matmul", "bmm")


class Always:
    """An ensemble that answers the same."""

    packed = b""
    suffix = ""

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        return np.full(len(matrix), np.log(3.0))


def test_a_blend_is_the_weighted_mean_of_logarithms() -> None:
    one = np.ones(1)
    columns = Columns(base_us=2.0 * one, bound_us=one, extra_us=one, work=one, figures={}, lift=one)
    plain = Plain(Always(), (), share=0.25)
    found = plain.blended(np.log(np.array([4.0])), columns, {})
    assert found[0] == pytest.approx(0.75 * np.log(4.0) + 0.25 * np.log(3.0 / 2.0))
    assert plain.blended(np.log(np.array([4.0])), columns, {}, 0.0)[0] == pytest.approx(np.log(4.0))
    assert log_base_over_bound(columns.base_us, columns.bound_us)[0] == pytest.approx(np.log(2.0))


def test_kinds_say_what_a_row_is_and_not_how_it_runs() -> None:
    assert kinds(("depth", "is_batched", "log_b", "loads")) == ("is_batched", "log_b")
