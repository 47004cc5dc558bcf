"""Whole chips are left out: how much trees say of others, and how wide their intervals are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from perfmodel.calibrate import kernel_part
from perfmodel.calibrate.estimators import KNOWN_TREES, trees_or
from perfmodel.calibrate.kernel_left_out import (
    Mixture,
    centres,
    chips_left_out,
    chips_of,
    ends_left_out,
    error_left_out,
    nearest_mixture,
    physics_left_out,
    quantiles,
)
from perfmodel.calibrate.kernel_part import HeldOut, fit_part, set_aside, spreads
from perfmodel.calibrate.kernel_samples import Samples, samples
from perfmodel.cost.learned.devices import COLUMNS
from perfmodel.cost.learned.part import known_device_columns
from perfmodel.hardware import device

DEVICES = ("t4", "v100-pcie-32gb", "v100-sxm2-16gb", "a100-pcie-40gb", "h100-sxm", "mi100")


def made(by_k: float, devices: tuple[str, ...] = DEVICES, sign: int = 0) -> Samples:
    """Products that take the base on every device, times (k / 1448) to the power `by_k`.

    1448 is the median of k.

    With `sign` +1 or -1 the power's sign alternates between devices.
    """
    generator = np.random.default_rng(0)
    rows = []
    for name in devices:
        for m, n, k in np.floor(2.0 ** generator.uniform(8, 13, (300, 3))):
            rows.append({"device": name, "m": m, "n": n, "k": k})
    frame = pd.DataFrame(rows).assign(op="linear", dtype="fp32", direction="fwd", flag="")
    frame = frame.assign(timing="profiler_kernel", duration_us=1e9)
    known = {name: device(name) for name in devices}
    first = samples(frame, "matmul", known, {}, {})
    power = np.full(len(frame), by_k)
    if sign:
        places = {name: place for place, name in enumerate(devices)}
        power *= np.array([(-1.0) ** places[name] for name in first.devices])
    longer = (first.frame["k"].to_numpy() / 1448.0) ** power
    return samples(
        first.frame.assign(duration_us=4.0 * first.base_us * longer), "matmul", known, {}, {}
    )


def test_boards_of_one_chip_are_left_out_together() -> None:
    data = made(0.0)
    chip = {name: set(chips_of(data)[data.devices == name]) for name in DEVICES}
    assert chip["v100-pcie-32gb"] == chip["v100-sxm2-16gb"]
    assert len(set().union(*chip.values())) == len(DEVICES) - 1


def test_a_device_left_out_is_asked_about_as_the_nearest_of_its_maker() -> None:
    data = made(0.5)
    trees = trees_or(None, "matmul", 0)(KNOWN_TREES, known_device_columns(data.figures))
    asked = np.ones(len(data.target), bool)
    found = chips_left_out(data, asked, chips_of(data), trees)[True]
    others = data.devices != "mi100"
    assert np.isnan(found[~others]).all()
    assert np.abs(found - data.target)[others].mean() < 0.25
    assert np.abs(data.power_log - data.target)[others].mean() > 1.0


def test_one_chip_alone_says_nothing_of_others() -> None:
    data = made(0.5, ("v100-pcie-32gb", "v100-sxm2-16gb"))
    trees = trees_or(None, "matmul", 0)(KNOWN_TREES, known_device_columns(data.figures))
    asked = np.ones(len(data.target), bool)
    for found in chips_left_out(data, asked, chips_of(data), trees).values():
        assert np.isnan(found).all()


@pytest.mark.parametrize(("sign", "shares"), [(0, (0.75, 1.0)), (1, (0.0, 0.5))])
def test_trees_answer_as_far_as_devices_left_out_are_nearer_by_them(
    sign: int, shares: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = KNOWN_TREES | {"n_estimators": 50}
    for name in ("KNOWN_TREES_OF_PART", "OWN_TREES_OF_PART"):
        monkeypatch.setattr(kernel_part, name, {"matmul_fp32": few})
    data = made(0.9, ("t4", "v100-pcie-32gb", "a100-pcie-40gb", "h100-sxm"), sign)
    data = samples(
        data.frame.assign(duration_us=data.frame["duration_us"] / (4.0 if sign else 1.0)),
        "matmul",
        data.known,
        {},
        {},
    )
    part = fit_part("matmul", "matmul_fp32", "matmul", (), data, {}, seed=0).part
    assert shares[0] <= part.share <= shares[1]
    assert data.with_devices(COLUMNS).shape[1] == len(data.figures) + len(COLUMNS)


@pytest.mark.parametrize(("dtype", "separate"), [("int8", [4]), ("fp16", [])])
def test_products_alone_are_learned_apart_from_layers_that_round_first(
    dtype: str, separate: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's take twice the base, those of a serving library, which round in fewer bits, half of
    theirs."""
    few = {"n_estimators": 20, "max_depth": 3, "learning_rate": 0.2}
    for name in ("KNOWN_TREES", "OWN_TREES", "SEPARATE_TREES"):
        monkeypatch.setattr(kernel_part, name, few)
    sides = np.floor(2.0 ** np.random.default_rng(0).uniform(9, 13, (1500, 3)))
    frame = pd.DataFrame(sides, columns=["m", "n", "k"]).assign(op="linear", dtype=dtype)
    frame = frame.assign(device="h100-sxm", direction="fwd", flag="", timing="profiler_kernel")
    frame = frame.assign(framework=np.where(np.arange(1500) < 150, "torch", "vllm"))
    known = {"h100-sxm": device("h100-sxm")}
    data = samples(frame.assign(duration_us=1e9), "matmul", known, {}, {})
    factor = np.where(data.frame["framework"] == "torch", 2.0, 0.5)
    frame = data.frame.assign(duration_us=factor * data.base_us + data.extra_us)
    part = fit_part(
        "matmul", "part", "matmul", (), samples(frame, "matmul", known, {}, {}), {}, seed=0
    ).part
    assert [each.framework for each in part.separate] == separate
    if separate:
        (own,) = part.separate
        assert (own.kinds, own.places) == (frozenset({("linear", "int8")}), (0,))
        found = own.trees.predict(data.with_devices(COLUMNS)[:150])
        assert np.exp(found) == pytest.approx(np.full(150, 2.0), rel=0.1)


def test_physics_has_what_it_is_off_on_other_chips() -> None:
    """All chips are slower than physics says by one factor: each learns it of the others."""
    data = made(0.0)
    chips, asked = chips_of(data), np.ones(len(data.target), bool)
    slower = replace(data, target=data.power_log + np.log(2.0))
    _, (centred, centre) = physics_left_out(slower, asked, chips)
    assert centred == pytest.approx(slower.target)
    assert centre["*"] == pytest.approx(np.log(2.0))
    assert centre["linear"] == pytest.approx(np.log(2.0))


def test_the_mixture_is_what_is_nearest_to_chips_left_out() -> None:
    """Physics is off by 0.4, up on one chip and down on the next, and trees by as much to the other
    side: the truth is half way. Trees that are right are all of the answer where they say any."""
    data = made(0.0)
    chips, asked = chips_of(data), np.ones(len(data.target), bool)
    off = np.where(chips % 2 == 0, 0.4, -0.4)
    data = replace(data, target=data.power_log + off)
    half = nearest_mixture(data, asked, chips, {True: data.power_log + 2.0 * off})
    assert half.share == pytest.approx(0.5)
    assert half.as_nearest
    assert half.answer == pytest.approx(data.target)
    some = np.where(np.arange(len(asked)) % 2 == 0, data.target, np.nan)
    alone = nearest_mixture(data, asked, chips, {True: data.power_log + 2.0, False: some})
    assert alone.share == pytest.approx(1.0)
    assert not alone.as_nearest
    assert alone.answer[::2] == pytest.approx(data.target[::2])
    assert alone.answer[1::2] == pytest.approx(alone.physics[1::2])


def test_each_chip_counts_once_in_what_physics_is_off() -> None:
    off, ops = np.array([0.0, 0.0, 0.0, 1.0, 3.0]), np.array(["mm"] * 4 + ["add"])
    chips, among = np.array([0, 0, 0, 1, 1]), np.ones(5, bool)
    found = centres(off, np.ones(5), ops, chips, among)
    assert found == pytest.approx({"mm": 0.5, "add": 3.0, "*": 1.0})


def test_rows_near_their_floor_say_little_of_what_physics_is_off() -> None:
    """Eight of ten rows tell a hundredth of what the others tell: the two are the median."""
    off, support = np.repeat([2.0, 0.1], [8, 2]), np.repeat([0.01, 1.0], [8, 2])
    ops, chips = np.array(["softmax"] * 10), np.zeros(10, int)
    found = centres(off, support, ops, chips, np.ones(10, bool))
    assert found["softmax"] == pytest.approx(0.1)
    assert centres(off, np.ones(10), ops, chips, np.ones(10, bool))["softmax"] == pytest.approx(2.0)
    assert error_left_out(off, support, chips) == pytest.approx(2.0 * (0.16 + 0.2) / 2.08)


def test_quantiles_count_by_weight() -> None:
    values = np.array([3.0, 1.0, 2.0])
    assert quantiles(values, np.ones(3), 0.5) == pytest.approx(2.0)
    assert quantiles(values, np.array([1.0, 1.0, 2.0]), np.array([0.125, 0.5])) == pytest.approx(
        [1, 2]
    )


def test_intervals_are_wider_than_what_few_chips_show() -> None:
    """Four chips, each off by its own constant, and the same four twice."""
    generator = np.random.default_rng(0)
    chips = np.repeat(np.arange(8), 500)
    off = np.array([-0.3, -0.1, 0.1, 0.3])[chips % 4] + generator.normal(0, 0.01, 4000)
    few, many = (chips < count for count in (4, 8))
    for own, count in ((few, 4), (many, 8)):
        low, high = ends_left_out(off[own], np.ones(own.sum()), chips[own])
        shown = np.quantile(off[own], (0.05, 0.95))
        wider = np.sqrt(1.0 + 1.0 / count)
        assert high - low == pytest.approx(wider * (shown[1] - shown[0]), rel=1e-3)
        assert high + low == pytest.approx(shown.sum(), abs=1e-3)


def test_rows_near_their_floor_do_not_widen_what_kernels_are_off() -> None:
    """What a floor is off is told by hosts: counted here too, it would be counted twice."""
    off = np.tile(np.concatenate([np.linspace(-2.0, 2.0, 100), np.linspace(-0.1, 0.1, 100)]), 2)
    support, chips = np.tile(np.repeat([0.01, 1.0], 100), 2), np.repeat([0, 1], 200)
    assert ends_left_out(off, support, chips)[1] < 0.15
    assert ends_left_out(off, np.ones(400), chips)[1] > 1.5


def test_chips_that_had_physics_alone_do_not_widen_what_trees_answer_for() -> None:
    data = made(0.0)
    is_alone = data.devices == "mi100"
    answer = data.target - 1.5 * is_alone
    nothing = np.full(len(answer), np.nan)
    mixture = Mixture(1.0, True, {}, answer, answer, ~is_alone)
    found = spreads(data, HeldOut(nothing, nothing, {}), mixture, chips_of(data))["linear"]
    assert found.unseen == pytest.approx((0.0, 0.0)), "no more than the other chips show"
    assert found.physics[1] > 1.0
    all_by_trees = replace(mixture, by_trees=np.ones(len(answer), bool))
    wide = spreads(data, HeldOut(nothing, nothing, {}), all_by_trees, chips_of(data))
    assert wide["linear"].unseen[1] > 1.0


def test_each_chip_counts_once_however_many_rows_it_has() -> None:
    residual = np.concatenate([np.zeros(5000), np.linspace(0.5, 1.0, 50), np.linspace(0.5, 1, 50)])
    chips = np.repeat([0, 1, 2], [5000, 50, 50])
    assert ends_left_out(residual, np.ones(5100), chips)[1] >= 0.9


def test_rows_that_nobody_asked_about_do_not_count() -> None:
    residual = np.concatenate([np.full(100, np.nan), np.linspace(-0.2, 0.2, 100)])
    low, high = ends_left_out(residual, np.ones(200), np.repeat([0, 1], 100))
    assert (low, high) == pytest.approx((-0.18, 0.18), abs=0.01)


def test_a_table_that_contradicts_all_others_of_its_maker_is_set_aside() -> None:
    data = made(0.0)
    wrong = data.frame["device"] == "t4"
    slow = data.frame.assign(duration_us=data.frame["duration_us"] * np.where(wrong, 3.0, 1.0))
    found = samples(slow, "matmul", data.known, {}, {})
    assert set_aside(found) == ("t4/linear/fp32",)
    other_maker = data.frame["device"] == "mi100"
    slow = data.frame.assign(duration_us=data.frame["duration_us"] * np.where(other_maker, 3.0, 1))
    assert set_aside(samples(slow, "matmul", data.known, {}, {})) == ()
