"""Trees without physics: they are asked as far as devices left out show, and no further."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel.fit.kernel_blend import fitted_blend
from perfmodel.fit.kernel_samples import Samples, samples
from perfmodel.hardware import device
from perfmodel.kernels.learned.columns import Columns
from perfmodel.kernels.learned.plain import Plain, above_bound, has_say, kinds

DEVICES = ("t4", "v100-pcie-32gb", "a100-pcie-40gb", "h100-sxm")


def made(by_k: float) -> Samples:
    """Products that take the base on every device, times k to the power `by_k` over 1,000."""
    generator = np.random.default_rng(0)
    rows = []
    for name in DEVICES:
        for m, n, k in np.floor(2.0 ** generator.uniform(8, 13, (300, 3))):
            rows.append({"device": name, "m": m, "n": n, "k": k})
    frame = pd.DataFrame(rows).assign(op="linear", dtype="fp32", direction="fwd", flag="")
    frame = frame.assign(timing="profiler_kernel", duration_us=1e9)
    known = {name: device(name) for name in DEVICES}
    base = samples(frame, "matmul", known, {}, {}).base_us
    order = samples(frame, "matmul", known, {}, {}).frame
    longer = np.maximum((order["k"].to_numpy() / 256.0) ** by_k, 1.0)
    return samples(order.assign(duration_us=base * longer), "matmul", known, {}, {})


def of_physics(data: Samples, off: float) -> dict[str, np.ndarray]:
    return {name: data.target[data.devices == name] + off for name in data.known}


def test_trees_without_physics_are_not_asked_where_physics_is_right() -> None:
    data = made(by_k=0.0)
    found = fitted_blend(
        data, data.weight, of_physics(data, 0.0), "matmul_fp32", "matmul", seed=0, asks=True
    )
    assert found.plain is None
    assert all(np.array_equal(found.left_out[n], data.target[data.devices == n]) for n in DEVICES)


def test_trees_without_physics_help_where_physics_is_off() -> None:
    data = made(by_k=0.5)
    wrong = of_physics(data, 0.6)
    found = fitted_blend(data, data.weight, wrong, "matmul_fp32", "matmul", seed=0, asks=True)
    assert found.plain is not None
    for name in DEVICES:
        target = data.target[data.devices == name]
        assert np.abs(found.left_out[name] - target).mean() < 0.6


def test_trees_are_not_asked_where_they_transfer_nothing() -> None:
    data = made(by_k=0.5)
    wrong = of_physics(data, 0.6)
    found = fitted_blend(data, data.weight, wrong, "matmul_fp32", "matmul", seed=0, asks=False)
    assert found.plain is None
    assert found.left_out is wrong


def test_elementwise_ops_are_a_matter_of_physics() -> None:
    data = made(by_k=0.5)
    wrong = of_physics(data, 0.6)
    found = fitted_blend(data, data.weight, wrong, "vector_flat", "stream", seed=0, asks=True)
    assert found.plain is None
    assert not has_say("stream", "add")
    assert has_say("stream", "softmax")
    assert has_say("matmul", "bmm")


class Always:
    """An ensemble that answers the same."""

    packed = b""

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        return np.full(len(matrix), np.log(3.0))


def test_a_blend_is_the_weighted_mean_of_logarithms() -> None:
    one = np.ones(1)
    columns = Columns(base_us=2.0 * one, bound_us=one, extra_us=one, work=one, figures={}, lift=one)
    plain = Plain(Always(), (), share=0.25)
    found = plain.blended(np.log(np.array([4.0])), columns, {})
    assert found[0] == pytest.approx(0.75 * np.log(4.0) + 0.25 * np.log(3.0 / 2.0))
    assert plain.blended(np.log(np.array([4.0])), columns, {}, 0.0)[0] == pytest.approx(np.log(4.0))
    assert above_bound(columns.base_us, columns.bound_us)[0] == pytest.approx(np.log(2.0))


def test_kinds_say_what_a_row_is_and_not_how_it_runs() -> None:
    assert kinds(("depth", "is_batched", "log_b", "loads")) == ("is_batched", "log_b")
