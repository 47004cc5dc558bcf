"""The deployment that a workload's settings mean, and the one by size where that does not fit."""

from dataclasses import replace

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster, cluster
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.memory_tiers import greedy_placement, tier_use

GB = 10**9


def machine(hbm_gb: float, gpus: int = 8) -> Cluster:
    found = cluster("dgx-a100-80gb")
    device = replace(found.node.device, hbm_bytes=int(hbm_gb * GB))
    return replace(found, node=replace(found.node, device=device, gpus=gpus))


def workload(sharding: str = "table_wise") -> Workload:
    found = load_workload("criteo-terabyte")
    return found.with_(implementation__name="torchrec", implementation__sharding=sharding)


def most_bytes(found: Deployment) -> float:
    return tier_use(found.workload, found.placement, found.machine)[0].total_bytes


def test_what_fits_is_left_as_it_is() -> None:
    found = deployment_of(workload(), machine(90))
    assert {table.sharding for table in found.placement.tables} == {"table_wise"}
    assert not found.notes


@pytest.mark.parametrize("hbm_gb", [40, 32])
def test_what_does_not_fit_is_laid_out_by_size(hbm_gb: float) -> None:
    small = machine(hbm_gb)
    found = deployment_of(workload(), small)
    assert most_bytes(found) <= 0.9 * small.node.device.hbm_bytes
    assert "laid out by size" in found.notes[0]
    kinds = [table.sharding for table in found.placement.tables]
    assert 0 < kinds.count("row_wise") < len(kinds)


def test_of_what_fits_nowhere_the_settings_stay() -> None:
    assert greedy_placement(workload(), machine(20), train=True) is None
    found = deployment_of(workload(), machine(20))
    assert {table.sharding for table in found.placement.tables} == {"table_wise"}


def test_the_optimizers_state_takes_room_in_training_alone() -> None:
    adam = workload().with_(training__table_optimizer="adam")
    assert greedy_placement(adam, machine(40), train=True) is None
    assert greedy_placement(adam, machine(40), train=False) is not None


def test_of_more_devices_than_tables_some_have_none() -> None:
    few = workload().with_(batch=2048 * 4)
    found = deployment_of(few, cluster("dgx-a100-80gb", 4))
    assert [table.ranks for table in found.placement.tables] == [(rank,) for rank in range(26)]
    assert not found.notes


def test_batches_that_devices_share_unequally_and_none() -> None:
    assert deployment_of(workload(), machine(80), 2049).samples == 257
    with pytest.raises(WorkloadError, match="a global batch of 0: expected 1 or more"):
        deployment_of(workload(), machine(80), 0)
