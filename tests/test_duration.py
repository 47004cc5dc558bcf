"""Durations of rows: each to the model of its family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import perfmodel
from perfmodel.cost.durations import COLD, durations_of, explanations_of
from perfmodel.errors import HardwareError, ModelError, PerfmodelError, UsageError
from perfmodel.hardware import Nic, cluster, device, load, node
from perfmodel.ops.rows import Rows

MIXED = pd.DataFrame(
    {
        "op": ["linear", "add", "all_reduce", "linear"],
        "m": [4096, np.nan, np.nan, 64],
        "n": [1024, np.nan, np.nan, 64],
        "k": [512, np.nan, np.nan, 64],
        "rows": [np.nan, 4096, np.nan, np.nan],
        "cols": [np.nan, 1024, np.nan, np.nan],
        "size_bytes": [np.nan, np.nan, 1e8, np.nan],
        "ranks": [np.nan, np.nan, 8, np.nan],
    },
    index=["a", "b", "c", "d"],
)


def test_every_row_has_its_model_and_its_place() -> None:
    found = perfmodel.durations(MIXED, "h100-sxm")
    assert list(found.index) == ["a", "b", "c", "d"]
    assert list(found["model"].str.partition("/")[2].str.partition("/")[0])[:2] == [
        "matmul",
        "vector",
    ]
    assert found["model"]["c"].startswith("collective/")
    assert (found["low_us"] <= found["duration_us"]).all()
    assert (found["duration_us"] <= found["high_us"]).all()


def test_a_row_is_the_same_alone_and_among_others() -> None:
    together = perfmodel.durations(MIXED, "h100-sxm")
    for label in MIXED.index:
        alone = perfmodel.durations(MIXED.loc[[label]], "h100-sxm")
        assert alone["duration_us"][label] == pytest.approx(together["duration_us"][label])


def test_kernels_of_a_machine_are_those_of_its_device() -> None:
    rows = Rows.of([{"op": "linear", "m": 512, "n": 512, "k": 512}])
    found = [
        durations_of(rows, part).duration_us[0]
        for part in (device("h100-sxm"), node("dgx-h100"), cluster("dgx-h100", 4))
    ]
    assert found == pytest.approx([found[0]] * 3, rel=1e-9)


def test_collectives_of_several_nodes_are_slower() -> None:
    row = {"op": "all_reduce", "size_bytes": 1e8, "ranks": 16, "nodes": 2}
    within = Rows.of([row | {"ranks": 8, "nodes": 1}])
    across = durations_of(Rows.of([row]), cluster("dgx-h100", 2)).duration_us
    assert across[0] > durations_of(within, node("dgx-h100")).duration_us[0]


def test_cpus_of_several_nodes_meet_over_the_network() -> None:
    row = {"op": "all_reduce", "ranks": 2, "size_bytes": 1e8, "dtype": "fp32"}
    nic = load("connectx-6", "nic")
    assert isinstance(nic, Nic)
    one = replace(node("epyc-7742"), nic=nic, nics=1)
    far = Rows.of([{**row, "nodes": 2}])
    within = durations_of(Rows.of([row]), cluster(one, 2))
    across = durations_of(far, cluster(one, 2))
    assert across.duration_us[0] > within.duration_us[0] + 1e8 / 25e3
    assert across.low_us[0] < across.duration_us[0] < across.high_us[0]
    why = explanations_of(far, cluster(one, 2))[0]
    assert why.bound_by == "memory"  # of the host, which takes longer than an adapter this fast
    slow = replace(one, nic=replace(nic, gb_per_s=nic.gb_per_s / 10))
    assert explanations_of(far, cluster(slow, 2))[0].bound_by == "network"
    assert why.terms["within_host_us"] == pytest.approx(within.duration_us[0])
    with pytest.raises(ModelError):
        durations_of(far, cluster("epyc-7742", 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "linaer"}, r"unknown op 'linaer'.*linear"),
        ({"m": 0}, r"linear \(row 0\): m is 0"),
        ({"m": np.nan}, r"linear \(row 0\): m is missing"),
        ({"dtype": "fp17"}, "unknown dtype 'fp17'"),
    ],
)
def test_bad_rows_are_named(change: dict[str, object], message: str) -> None:
    frame = pd.DataFrame([{"op": "linear", "m": 8, "n": 8, "k": 8} | change])
    with pytest.raises(perfmodel.PerfmodelError, match=message):
        perfmodel.durations(frame, "h100-sxm")


def test_bad_hardware_is_named() -> None:
    frame = pd.DataFrame([{"op": "linear", "m": 8, "n": 8, "k": 8}])
    with pytest.raises(HardwareError, match="h100"):
        perfmodel.durations(frame, "h100-smx")
    with pytest.raises(UsageError, match="connectx-7"):
        perfmodel.durations(frame, "connectx-7")


def test_an_explanation_is_of_the_duration_that_is_given() -> None:
    rows = Rows.of([{"op": "add", "rows": 4096, "cols": 1024}])
    taken = durations_of(rows, device("h100-sxm")).duration_us[0]
    (why,) = explanations_of(rows, device("h100-sxm"))
    assert why.duration_us == pytest.approx(taken, rel=1e-9)
    assert why.bound_by == COLD
    assert why.terms["repeated_us"] < taken
    assert 0 < why.utilisation_frac < 1


def test_a_missing_text_is_the_usual_one() -> None:
    sizes = {"op": ["linear"] * 2, "m": [64, 64], "n": [64, 64], "k": [64, 64]}
    usual = perfmodel.durations(pd.DataFrame(sizes), "h100-sxm")
    for missing in (None, np.nan, pd.NA):
        for values in ([missing, "fp32"], pd.Categorical([missing, "fp32"])):
            found = perfmodel.durations(pd.DataFrame(sizes | {"dtype": values}), "h100-sxm")
            pd.testing.assert_frame_equal(found, usual)


@pytest.mark.parametrize(
    ("column", "words"), [({"m": ["many"]}, "column m: .*many"), ({"op": [None]}, "unknown op")]
)
def test_what_is_no_number_and_no_op(column: dict[str, list[object]], words: str) -> None:
    row = {"op": ["linear"], "m": [64], "n": [64], "k": [64]}
    with pytest.raises(PerfmodelError, match=words):
        perfmodel.durations(pd.DataFrame(row | column), "h100-sxm")
