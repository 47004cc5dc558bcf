"""Gradient accumulation: what is done once, what with every micro-batch, and memory."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.training_systems import GradientAccumulation
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.prediction import predict
from perfmodel.prediction.step import steps_of
from perfmodel.prediction.types import Result
from perfmodel.workload import load_workload


def start(*, train: bool = True, batch: int = 65_536) -> Deployment:
    workload = load_workload("hotline-rm3")
    return deployment_of(workload, cluster("dgx-a100-80gb"), batch, train=train)


@cache
def result(micro_batches: int) -> Result:
    found = GradientAccumulation(micro_batches=micro_batches).apply(start())
    return predict(found).results[0]


def calls(deployment: Deployment) -> Counter[str]:
    ((_, step),) = steps_of(deployment)
    said = (
        op.attributes.get("collective", "") for op in step.graph(0).ops if op.name[:5] == "c10d:"
    )
    return Counter(said)


def test_one_micro_batch_is_the_step_as_it_is() -> None:
    assert GradientAccumulation(micro_batches=1).apply(start()) == start()


def test_rows_are_exchanged_with_each_and_dense_gradients_reduced_once() -> None:
    plain = calls(start())
    found = calls(GradientAccumulation(micro_batches=4).apply(start()))
    assert found["all_to_all"] == 4 * plain["all_to_all"]
    assert found["all_reduce"] == plain["all_reduce"] > 0


def test_memory_of_activations_falls_and_the_step_becomes_longer() -> None:
    """Of n micro-batches one n-th of the activations lives at a time: with 4 about a quarter."""
    held = [(result(n).memory or {})["temporary_bytes"] for n in (1, 2, 4, 8)]
    assert held == sorted(held, reverse=True)
    assert held[2] == pytest.approx(held[0] / 4, rel=0.1)
    steps = [result(n).step_us for n in (1, 2, 4, 8)]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("deployment", "micro_batches", "message"),
    [
        (start(train=False), 4, "inference has no gradients"),
        (start(batch=16), 4, "4 micro-batches of the 2 samples of a rank"),
    ],
)
def test_what_cannot_be_is_refused(
    deployment: Deployment, micro_batches: int, message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        GradientAccumulation(micro_batches=micro_batches).apply(deployment)
