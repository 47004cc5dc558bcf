"""Kernel models of users: one line for what cannot be, whoever asks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel
from perfmodel.cost.contract import Estimate, Explanation, checked
from perfmodel.hardware import Device, device
from perfmodel.ops.rows import Rows

SHAPES = pd.DataFrame({"op": ["mm", "mm"], "m": [8, 16], "n": [8, 8], "k": [8, 8]})


class TenMicroseconds:
    """10 us, whatever it is."""

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        us = np.full(len(rows), 10.0)
        return Estimate(us, us, us, "ten", "made up", measured_frac=1.0)

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        return [Explanation(10.0, "latency", 0.0, 0.0, 0.0, 1.0) for _ in range(len(rows))]


def answering(found: Callable[[Rows], Any]) -> TenMicroseconds:
    class Other(TenMicroseconds):
        def estimate(self, rows: Rows, device: Device) -> Estimate:
            us = found(rows)
            return Estimate(us, us, us, "other", "made up")

    return Other()


def test_a_model_of_ones_own_answers_and_explains() -> None:
    model = checked(TenMicroseconds(), "mine")
    rows = Rows.from_frame(SHAPES)
    assert model.estimate(rows, device("t4")).duration_us == pytest.approx([10.0, 10.0])
    told = [each.duration_us for each in model.explain(rows, device("t4"))]
    assert told == pytest.approx([10.0, 10.0])
    asked = perfmodel.durations(SHAPES, "t4", models={"matmul": TenMicroseconds()})
    assert asked["model"].tolist() == ["ten", "ten"]
    assert (asked["duration_us"] >= 10.0).all()


def test_one_object_per_model_so_that_its_answers_are_kept() -> None:
    own = TenMicroseconds()
    assert checked(own, "mine") is checked(own, "mine")
    assert checked(own, "mine") is not checked(TenMicroseconds(), "mine")
    with pytest.raises(perfmodel.PerfmodelError, match=r"^kernel model other: "):
        checked(own, "other").estimate(None, device("t4"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (TenMicroseconds, "TenMicroseconds is a class, expected an object"),
        (object(), "object has no method estimate"),
        (answering(lambda rows: np.full(1, 10.0)), r"columns of \(1,\) values for 2 rows"),
        (answering(lambda rows: 10.0), r"columns of \(\) values for 2 rows"),
        (answering(lambda rows: np.array([10.0, 0.0])), "mm .*m 16.*: expected microsecon"),
        (answering(lambda rows: np.array([np.nan, 10.0])), "mm .*m 8.*: expected microsecond"),
        (answering(lambda rows: rows.dims["nothing"]), "KeyError: 'nothing'"),
    ],
)
def test_what_cannot_be_names_the_model(model: Any, said: str) -> None:
    with pytest.raises(perfmodel.PerfmodelError, match=f"kernel model matmul: {said}"):
        perfmodel.durations(SHAPES, "t4", models={"matmul": model})


def test_explanations_are_as_many_as_rows() -> None:
    class Silent(TenMicroseconds):
        def explain(self, rows: Rows, device: Device) -> list[Explanation]:
            return []

    rows = Rows.from_frame(SHAPES)
    with pytest.raises(perfmodel.PerfmodelError, match="mine: 0 explanations of 2 rows"):
        checked(Silent(), "mine").explain(rows, device("t4"))
