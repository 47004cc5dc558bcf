"""Achieved rates: products and additions whose FLOP and bytes are known by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import Tiny, trace_of

from perfmodel.errors import PerfmodelError
from perfmodel.prediction.breakdown import rates
from perfmodel.prediction.breakdown.hotspots import NamedSums
from perfmodel.prediction.breakdown.job import breakdown
from perfmodel.prediction.breakdown.tables import rate_rows

FLOATS = {"Input type": ["float", "float"]}


def product(t: Tiny, at: float, us: float, dims: list[Any] | None = None, **more: Any) -> None:
    shapes = dims or [[1024, 512], [512, 2048]]
    t.op("aten::mm", at, at + 10, **{"Input Dims": shapes} | FLOATS | more)
    t.launch(at + 2, at + 4, (at + 10, at + 10 + us))


def found(t: Tiny) -> NamedSums:
    return breakdown(t.trace()).ranks[0].sums("rates")


def test_a_product_reaches_what_its_shapes_and_time_say() -> None:
    t = Tiny()
    t.step(0, 0, 1000)
    product(t, 0, 200)
    product(t, 300, 300)
    rates = found(t)
    (row,) = rate_rows(rates)
    flop = 2 * 2 * 1024 * 512 * 2048
    moved = 2 * 4 * (1024 * 512 + 512 * 2048 + 1024 * 2048)
    assert (row["operator"], row["shapes"], row["dtype"]) == (
        "aten::mm",
        "1024x512 512x2048",
        "fp32",
    )
    assert (row["count"], row["device_us"], row["flop"], row["moved_bytes"]) == (
        2,
        500,
        flop,
        moved,
    )
    assert row["tflop_per_s"] == pytest.approx(flop / 500e-6 / 1e12)
    assert row["gb_per_s"] == pytest.approx(moved / 500e-6 / 1e9)
    # A V100's vector units: 15.7 TFLOP/s (fp32 matrix products do not use its tensor cores).
    assert rates.device == "v100-sxm2-16gb"
    assert row["bound_by"] == "compute"
    assert row["roofline_frac"] == pytest.approx(flop / 15.7e12 / 500e-6, rel=0.01)
    assert rates.named_frac == pytest.approx(1)


def test_what_moves_bytes_is_bound_by_memory() -> None:
    t = Tiny()
    t.step(0, 0, 1000)
    t.op(
        "aten::add",
        0,
        10,
        **{"Input Dims": [[1 << 20], [1 << 20], []]}
        | {"Input type": ["float", "float", "Scalar"], "Concrete Inputs": ["", "", "1"]},
    )
    t.launch(2, 4, (10, 30))
    (row,) = rate_rows(found(t))
    assert row["moved_bytes"] == 3 * 4 * (1 << 20)
    assert row["bound_by"] == "memory"
    assert row["roofline_frac"] == pytest.approx(row["gb_per_s"] / 900, rel=0.01)


def test_a_device_that_the_catalogue_lacks_has_rates_but_no_roofline() -> None:
    t = Tiny(device="Quantum 9000")
    t.step(0, 0, 1000)
    product(t, 0, 200)
    rates = found(t)
    assert rate_rows(rates)[0]["tflop_per_s"] > 0
    assert (
        rate_rows(rates)[0]["roofline_frac"],
        rate_rows(rates)[0]["bound_by"],
        rates.device,
    ) == (
        None,
        None,
        "",
    )
    assert "Quantum 9000 is not in the catalogue" in rates.note


def test_an_operator_whose_shapes_are_no_numbers_has_no_rate() -> None:
    t = Tiny()
    t.step(0, 0, 1000)
    product(t, 0, 200)
    product(t, 300, 300, [["many", 512], [512, 2048]])
    rates = found(t)
    assert [row["device_us"] for row in rate_rows(rates)] == [200]
    assert rates.named_frac == pytest.approx(0.4)


def test_without_shapes_or_a_device_it_says_why() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.op("aten::mm", 0, 10)
    t.launch(2, 4, (10, 50))
    assert "record_shapes=True" in found(t).note
    host = Tiny()
    host.step(0, 0, 100)
    host.op("aten::mm", 0, 10, **{"Input Dims": [[8, 8], [8, 8]]} | FLOATS)
    assert found(host).note == "no device operations"


def test_operators_that_no_rule_knows_have_no_rate() -> None:
    t = Tiny()
    t.step(0, 0, 1000)
    t.op("mine::unheard_of", 0, 10, **{"Input Dims": [[1 << 20]], "Input type": ["float"]})
    t.launch(2, 4, (10, 110))
    product(t, 300, 300)
    rates = found(t)
    assert [row["operator"] for row in rate_rows(rates)] == ["aten::mm"]
    assert rates.named_frac == pytest.approx(0.75)


def test_of_several_ranks_the_mean() -> None:
    ranks = [Tiny(number, 2) for number in range(2)]
    for t, us in zip(ranks, (200, 400), strict=True):
        t.step(0, 0, 1000)
        product(t, 0, us)
    (row,) = breakdown(trace_of(*ranks)).rows("rates")
    assert (row["count"], row["device_us"], row["flop"]) == (1, 300, 2 * 1024 * 512 * 2048)


@pytest.mark.parametrize("error", [IndexError("tuple index"), PerfmodelError("a.json: no shape")])
def test_arguments_that_no_rule_expects_cost_the_rates_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def unfit(*_: object) -> NamedSums:
        raise error

    monkeypatch.setattr(rates, "_rated", unfit)
    t = Tiny()
    t.step(0, 0, 1000)
    product(t, 0, 200)
    answer = breakdown(t.trace()).to_dict()
    assert str(error) in answer["rates"]["note"]
    assert answer["rates"]["rows"] == []
    assert answer["top_kernels"][0]["device_us"] == 200


@pytest.mark.parametrize("dims", [[[], [64], [8, 4]], [[8, 4], [], []], [[], [], []]])
def test_operands_without_dimensions_beside_indices(dims: list[Any]) -> None:
    """A table, indices and a scalar in any order, of an operator that has no rule."""
    t = Tiny()
    t.step(0, 0, 1000)
    t.op(
        "mylib::write", 0, 10, **{"Input Dims": dims, "Input type": ["float", "long int", "float"]}
    )
    t.launch(2, 4, (10, 30))
    assert found(t).note == ""
