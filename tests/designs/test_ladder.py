"""Steps of designs one on top of the other: their order, their gains, and those without effect."""

from __future__ import annotations

import pytest

from perfmodel import api
from perfmodel.designs import DESIGNS, Deployment, deployment_of
from perfmodel.designs.composed import composed, plain, rungs, without_effect
from perfmodel.errors import UsageError
from perfmodel.hardware import cluster
from perfmodel.prediction.comparison import Comparison
from perfmodel.workload import load_workload

NEO = ["sharding balanced", "rows fp16", "wire fp16", "cache frac 0.2", "input ahead", "rows ahead"]


def start(name: str = "criteo-kaggle") -> Deployment:
    return deployment_of(load_workload(name), cluster("dgx-a100-80gb"))


def test_steps_come_in_the_order_of_a_designs_fields() -> None:
    assert [rung.name for rung in rungs(composed("neo"))] == ["+ neo", *(f"+ {it}" for it in NEO)]


@pytest.mark.parametrize("name", list(DESIGNS))
def test_every_design_has_steps_that_can_be(name: str) -> None:
    whole = composed(name)
    assert list(rungs(whole))[-1].designs.designs == whole.designs


def test_a_step_that_is_not_asked_for_is_none() -> None:
    whole = composed("neo", {"neo": {"input_ahead": False}})
    names = [rung.name for rung in rungs(whole)]
    assert "+ input ahead" not in names


def test_the_last_step_is_the_design_and_of_several_each_is_on_top_of_the_one_before() -> None:
    whole = composed("low_precision+software_memory")
    found = list(rungs(whole))
    assert found[-1].designs.designs == whole.designs
    at = [rung.name for rung in found].index("+ software_memory")
    assert found[at - 1].designs.designs == whole.designs[:1]
    assert [rung.is_plain for rung in found].count(True) == 2


def test_a_plain_start_has_none_of_what_steps_do() -> None:
    own = load_workload("neo-a")
    about = plain(own, composed("neo")).implementation
    kept = (about.sharding, about.table_precision, about.exchange_precision, about.prefetch)
    assert kept == ("table_wise", "fp32", "fp32", False)
    assert plain(own, composed("software_cache")) == own


@pytest.fixture(scope="module")
def ladder() -> Comparison:
    return api.compare("dlrm-dcnv2", "dgx-a100-80gb", "neo", ladder=True)


def test_gains_multiply_to_the_gain_over_the_first(ladder: Comparison) -> None:
    rows = ladder.to_dict()["designs"]
    product = 1.0
    for row in rows:
        product *= row["gain"]
        assert row["gain_over_first"] == pytest.approx(product)
        assert row["gain_over_first"] == pytest.approx(rows[0]["step_us"] / row["step_us"])
    assert list(ladder.to_frame()["step"]) == [row["step"] for row in rows]


def test_neos_steps_are_as_the_paper_has_them(ladder: Comparison) -> None:
    """Balanced shards, 16-bit rows and input ahead each gain. Rows in 16 bits take half the memory
    at most (with 4 bytes of state, 260 of 516): tables are laid out anew, with fewer replicas.
    Within a node a 16-bit exchange costs in casts what its links save. Nothing lies outside device
    memory, so that the cache does nothing."""
    rows = {row["step"]: row for row in ladder.to_dict()["designs"]}
    assert list(rows) == ["plain", "+ neo", *(f"+ {step}" for step in NEO)]
    for step in ("+ sharding balanced", "+ rows fp16", "+ input ahead"):
        assert rows[step]["gain"] > 1, step
    assert rows["+ wire fp16"]["gain"] == pytest.approx(1, abs=0.02)
    in_32, in_16 = (rows[step]["memory"][0] for step in ("+ sharding balanced", "+ rows fp16"))
    assert in_16["tables_bytes"] < 1.02 * 260 / 516 * in_32["tables_bytes"]
    for step in ("+ cache frac 0.2", "+ rows ahead"):
        assert rows[step]["gain"] == 1
        assert "acts on tables that device memory does not hold" in rows[step]["notes"][-1]


@pytest.mark.slow
def test_a_start_that_does_not_fit_says_so_and_gains_are_over_the_first_that_does() -> None:
    found = api.compare("neo-f", "zionex-16", "neo", ladder=True).to_dict()["designs"]
    assert "of device memory" in found[0]["why_not"]
    first = next(row for row in found if row["feasible"])
    assert first["gain"] == first["gain_over_first"] == 1
    cache = next(row for row in found if row["step"] == "+ cache frac 0.2")
    assert cache["gain_over_first"] == pytest.approx(first["step_us"] / cache["step_us"])
    assert found[-1]["gain_over_first"] > 1


def test_a_design_that_cannot_be_applied_says_why() -> None:
    links = api.compare("criteo-kaggle", "dgx-a100-80gb", "smartnic", ladder=True)
    why = links.rows[-1].without_gain[0]
    assert why.startswith("+ smartnic changes nothing here")
    assert why.endswith("links join all devices, no lookup crosses an adapter")


def test_a_ladder_is_of_designs() -> None:
    with pytest.raises(UsageError, match="ladder: "):
        api.compare("criteo-kaggle", "dgx-a100-80gb", "default", ladder=True)


def test_a_setting_that_changes_nothing_says_on_what_it_would_act() -> None:
    set_ = composed("neo", {"neo": {"cache_frac": 0.4, "wire": "fp32"}})
    assert without_effect(set_, start()) == [
        "neo.cache_frac=0.4 changes nothing here: "
        "it acts on tables that device memory does not hold"
    ]
    assert without_effect(composed("neo"), start()) == []
    adapter = composed("software_cache+smartnic", {"smartnic": {"cache_gib": 2.0}})
    (why,) = without_effect(adapter, start())
    assert why.startswith("smartnic.cache_gib=2 changes nothing here: not applied")
    assert why.endswith("links join all devices, no lookup crosses an adapter")
