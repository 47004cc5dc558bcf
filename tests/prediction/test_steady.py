"""Workloads in steady state: what a step comes to when many follow one another."""

from __future__ import annotations

import pytest

from perfmodel.prediction import Result, predict
from perfmodel.workload import Table, Workload
from perfmodel.workload.settings import Model

MODEL = Model(13, (64, 32), (64, 1))
SMALL = Workload("small", MODEL, (Table(1000, 32, 4),) * 8)
LARGE = Workload("large", Model(512, (2048, 2048, 32), (2048, 2048, 1)), SMALL.tables)
ON = ["dgx-a100-80gb"]


def predicted(workload: Workload, batch: int = 4096, **options: object) -> Result:
    return predict(workload, hardware=ON, batch=batch, **options).results[0]  # type: ignore[arg-type]


def test_the_result_is_the_period_and_says_what_it_is_bound_by() -> None:
    found = predicted(SMALL)
    assert found.latency_us is not None
    assert found.bound_by is not None
    assert found.step_us <= found.latency_us + 1e-6
    assert sum(found.bound_by.values()) == pytest.approx(found.step_us)
    assert next(iter(found.bound_by)) == "host"
    path = sum(piece.duration_us for piece in found.critical_path)
    assert path == pytest.approx(found.step_us)


def test_large_layers_are_bound_by_the_device() -> None:
    found = predicted(LARGE, 65536)
    assert found.bound_by is not None
    assert next(iter(found.bound_by)) == "compute"
    assert found.rank.gpu_active_us == pytest.approx(found.step_us, rel=0.1)


@pytest.mark.parametrize("name", ["torchrec", "hugectr"])
def test_a_pipeline_brings_batches_beside_the_step(name: str) -> None:
    changed = LARGE.with_(implementation__name=name)
    piped = changed.with_(implementation__prefetch=True)
    assert predicted(piped, 65536).step_us < predicted(changed, 65536).step_us


def test_one_rank_of_each_class() -> None:
    uneven = Workload("uneven", MODEL, (*SMALL.tables[:7], Table(1000, 32, 200)))
    every, heaviest = predicted(uneven, every_rank=True), predicted(uneven)
    assert [rank.rank for rank in every.ranks] == [0, 7]
    assert len(heaviest.ranks) == 1
    assert every.step_us >= heaviest.step_us - 1e-6
    equal = predicted(SMALL, every_rank=True)
    assert equal.step_us == pytest.approx(predicted(SMALL).step_us)


def test_a_cpu_takes_one_step_after_the_other() -> None:
    found = predict(SMALL, hardware=["epyc-7742"], batch=256).results[0]
    assert found.step_us == pytest.approx(found.latency_us)
    assert found.bound_by == {"host": pytest.approx(found.step_us)}
