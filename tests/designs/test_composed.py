"""Designs by name, with settings, one on top of the other."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest

from perfmodel.cost.tiers.host_memory import cpu_of
from perfmodel.designs import DESIGNS, Deployment, deployment_of
from perfmodel.designs.baselines import hosts_of
from perfmodel.designs.composed import Composed, composed, settings_of
from perfmodel.embedding import Pipeline
from perfmodel.errors import PerfmodelError, UsageError, WorkloadError
from perfmodel.hardware import cluster, host
from perfmodel.workload import load_workload


@dataclass(frozen=True)
class _Ahead:
    """Input ahead."""

    on: bool = True
    share: float = 0.5
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = (1,)
    limit: float | None = None
    widths: tuple[int, ...] | None = None

    def apply(self, deployment: Deployment) -> Deployment:
        return deployment.with_(pipeline=Pipeline(input_ahead=self.on))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    list(DESIGNS)
    monkeypatch.setitem(DESIGNS._items, "ahead", _Ahead)


def start() -> Deployment:
    workload = load_workload("criteo-kaggle").with_(implementation__prefetch=False)
    return deployment_of(workload, cluster("dgx-a100-80gb"))


def test_the_default_is_what_the_workload_says() -> None:
    assert composed("default").apply(start()) == start()
    assert start().pipeline == Pipeline()
    assert {table.tier for table in start().placement.tables} == {"hbm"}


def test_settings_reach_their_design() -> None:
    texts = ["ahead.on=false", "ahead.share=1", "ahead.kind=b", "ahead.sizes=[2, 3]"]
    found = composed("ahead", settings_of([*texts, "ahead.limit=none"])).designs[0]
    assert found == _Ahead(on=False, share=1.0, kind="b", sizes=(2, 3), limit=None)


@pytest.mark.parametrize(("text", "sizes"), [("ahead.sizes=2,3", (2, 3)), ("ahead.sizes=4", (4,))])
def test_lists_need_no_brackets(text: str, sizes: tuple[int, ...]) -> None:
    assert composed("ahead", settings_of([text])).designs[0] == _Ahead(sizes=sizes)


@pytest.mark.parametrize(
    ("text", "widths"), [("8,16", (8, 16)), ("8", (8,)), ("[8, 16]", (8, 16)), ("none", None)]
)
def test_a_list_may_be_optional(text: str, widths: tuple[int, ...] | None) -> None:
    found = composed("ahead", settings_of([f"ahead.widths={text}"])).designs[0]
    assert found == _Ahead(widths=widths)


@pytest.mark.parametrize(
    "text",
    [
        "ahead.on=1",
        "ahead.sizes=2,,3",
        "ahead.share=much",
        "ahead.share=nan",
        "ahead.share=inf",
        "ahead.kind=c",
        "ahead.limit=x",
        "ahead.sizes=[1.5]",
        "ahead.sizes=[inf]",
    ],
)
def test_values_of_another_type_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"ahead\."):
        composed("ahead", settings_of([text]))


@pytest.mark.parametrize("text", ["ahead+", "+ahead", "ahead++behind"])
def test_a_join_without_a_design_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="both sides"):
        composed(text)


@pytest.mark.parametrize("text", ["nothing=1", "ahead.off=1", "behind.on=true", "ahead.on"])
def test_unknown_settings_are_refused(text: str) -> None:
    with pytest.raises(PerfmodelError):
        settings_of([text])


def test_designs_that_undo_one_another_make_no_sense() -> None:
    with pytest.raises(WorkloadError, match="ahead has no effect"):
        composed("ahead+cpu_only").apply(start())
    both = composed("cpu_only+ahead").apply(start())
    assert both.pipeline.input_ahead
    assert both.machine.node.device.target == "cpu"


def test_nothing_lies_beside_the_memory_of_cpus() -> None:
    there = composed("cpu_only").apply(start())
    aside = there.with_(placement=there.placement.edited(lambda _n, _t: {"tier": "host"}))
    with pytest.raises(WorkloadError, match="without GPUs there is one memory"):
        Composed("default", ()).apply(aside)


def test_hosts_are_devices_with_their_memory() -> None:
    machine = cluster("dgx-a100-80gb", 2)
    hosts = hosts_of(machine)
    assert hosts.gpus == 4
    assert hosts.node.device.name == "epyc-7742"
    assert hosts.node.device.hbm_bytes == machine.node.host_memory_bytes / 2  # type: ignore[operator]
    assert hosts_of(machine, 3, 1).gpus == 3


def test_an_unknown_host_is_a_generic_cpu_of_its_size() -> None:
    plain, double = host("epyc-7742"), replace(host("epyc-7742"), name="mine", cores=128)
    known, found = cpu_of(plain), cpu_of(double)
    assert known.name == "epyc-7742"
    assert found.name == "mine"
    assert found.sm_count == 128
    assert found.hbm_gb_per_s == plain.dram_gb_per_s


def test_a_batch_that_sockets_share_unequally() -> None:
    odd = composed("cpu_only").apply(replace(start(), batch=2047))
    assert (odd.ranks, odd.samples) == (2, 1024)
