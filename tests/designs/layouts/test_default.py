"""The deployment that a workload's settings mean, and the searched one where that does not fit."""

import pickle
import re
from dataclasses import replace

import pytest

from perfmodel.designs import deployment_of
from perfmodel.errors import DoesNotFit, WorkloadError
from perfmodel.hardware import Cluster, cluster
from perfmodel.prediction import Prediction, predict
from perfmodel.prediction.compare import DesignResult, compare_designs, with_default
from perfmodel.workload import Workload, load_workload

GB = 10**9


def machine(hbm_gb: float, gpus: int = 8) -> Cluster:
    found = cluster("dgx-a100-80gb")
    device = replace(found.node.device, hbm_bytes=int(hbm_gb * GB))
    return replace(found, node=replace(found.node, device=device, gpus=gpus))


def workload(sharding: str = "table_wise") -> Workload:
    found = load_workload("criteo-terabyte")
    return found.with_(implementation__name="torchrec", implementation__sharding=sharding)


def test_what_fits_is_left_as_it_is() -> None:
    found = deployment_of(workload(), machine(90))
    assert {table.sharding for table in found.placement.tables} == {"table_wise"}
    assert not found.notes


@pytest.mark.parametrize("hbm_gb", [40, 32])
def test_what_does_not_fit_is_searched_for(hbm_gb: float) -> None:
    """226 GB of tables on 8 devices, the largest table 51 GB: in parts 28 GB each."""
    found = deployment_of(workload(), machine(hbm_gb))
    assert found.fits
    assert found.notes[0].startswith("implementation.sharding 'table_wise' does not fit")
    assert {table.tier for table in found.placement.tables} == {"hbm"}
    assert found.own_layout == deployment_of(workload(), machine(90)).placement


def test_of_what_fits_nowhere_the_settings_stay() -> None:
    found = deployment_of(workload(), machine(20))
    assert not found.fits
    assert {table.sharding for table in found.placement.tables} == {"table_wise"}
    assert not found.notes


def test_the_optimizers_state_takes_room_in_training_alone() -> None:
    adam = workload().with_(training__table_optimizer="adam")
    assert not deployment_of(adam, machine(40)).fits
    assert deployment_of(adam, machine(40), train=False).fits


def _asked_twice(asked: Workload, here: Cluster) -> tuple[Prediction, dict[str, DesignResult]]:
    compared = compare_designs(asked, here, with_default([], asked))
    return predict(asked, hardware=[here]), {each.design: each for each in compared.rows}


@pytest.mark.parametrize("hbm_gb", [90, 40])
def test_all_who_ask_for_a_workload_get_one_answer(hbm_gb: int) -> None:
    found, rows = _asked_twice(workload().with_(implementation__name="torchrec"), machine(hbm_gb))
    assert (same := rows["default"].result) is not None
    assert same.step_us == found.results[0].step_us
    assert found.source["implementation"] == ("torchrec" if hbm_gb == 90 else "tiered")
    told = "\n".join(found.warnings)
    assert ("implementation.sharding 'table_wise' does not fit" in told) == (hbm_gb == 40)


def test_software_of_whole_tables_is_answered_where_they_fit_and_refused_elsewhere() -> None:
    """Designs, which TorchRec runs, spread the rows."""
    asked = workload().with_(implementation__name="reference")
    found, rows = _asked_twice(asked, machine(90))
    assert (same := rows["own"].result) is not None
    assert same.step_us == found.results[0].step_us
    with pytest.raises(
        DoesNotFit, match=r"^rank \d needs \d\d\.\d GB.*tables.*\"torchrec\"$"
    ) as raised:
        predict(asked, hardware=[machine(40)])
    compared = compare_designs(asked, machine(40), with_default([], asked))
    rows = {each.design: each for each in compared.rows}
    assert rows["own"].why_not == str(raised.value)
    assert rows["default"].result is not None


def test_what_fits_nowhere_says_by_how_much_and_what_would_do() -> None:
    """226.0 GB of tables, 8 x (20 - about 1) GB. With 40 GB fp16 rows would be enough, and 16
    devices hold 16 x 19 GB."""
    with pytest.raises(WorkloadError) as raised:
        predict(workload(), hardware=[machine(20)])
    said = str(raised.value)
    assert re.search(r"tables need 226\.0 GB of device memory, 7\d\.\d GB more than the 15\d", said)
    assert re.search(r"6\d\.\d % of the rows", said)
    assert "fp16 rows" in said
    assert "host memory behind a cache" in said
    assert said.endswith("2 nodes")
    one = machine(20)
    enough = replace(one, nodes=2)
    assert deployment_of(workload(), enough).fits
    fewer = workload().with_(implementation__table_precision="fp16")
    assert deployment_of(fewer, one).fits
    compared = compare_designs(workload(), one, with_default([], workload()))
    assert compared.rows[0].why_not == said


@pytest.mark.slow
def test_activations_that_do_not_fit_ask_for_a_smaller_batch() -> None:
    one = machine(2)
    small = load_workload("nvidia-dlrm-small").with_(batch=1 << 20)
    small = replace(small, tables=small.tables[:4])
    with pytest.raises(WorkloadError, match=r"what would do: a batch of [\d,]+;") as raised:
        predict(small, hardware=[one])
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    batch = int(re.search(r"a batch of ([\d,]+)", str(raised.value))[1].replace(",", ""))  # type: ignore[index]
    assert predict(small.with_(batch=batch), hardware=[one]).results
    with pytest.raises(WorkloadError):
        predict(small.with_(batch=int(batch * 1.3)), hardware=[one])


def test_of_more_devices_than_tables_some_have_none() -> None:
    few = workload().with_(batch=2048 * 4)
    found = deployment_of(few, cluster("dgx-a100-80gb", 4))
    assert [table.ranks for table in found.placement.tables] == [(rank,) for rank in range(26)]
    assert not found.notes


def test_batches_that_devices_share_unequally_and_none() -> None:
    assert deployment_of(workload(), machine(80), 2049).samples == 257
    with pytest.raises(WorkloadError, match="a global batch of 0: expected 1 or more"):
        deployment_of(workload(), machine(80), 0)
