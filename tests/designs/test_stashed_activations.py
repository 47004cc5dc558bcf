"""Activations in host memory: what is copied, what that takes, and what device memory it spares."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import pairwise

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.training_systems import StashedActivations
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.ops.graph import BACKWARD, FORWARD, NO_OP, Op
from perfmodel.ops.spec import item_bytes
from perfmodel.prediction import predict
from perfmodel.prediction.step import steps_of
from perfmodel.prediction.types import Result
from perfmodel.workload import load_workload
from perfmodel.workload.stashed import STASH_STREAM

GIB = 2**30


@cache
def start(*, train: bool = True) -> Deployment:
    machine = cluster("dgx-a100-80gb")
    return deployment_of(load_workload("dlrm-dcnv2"), machine, 65_536 * 8, train=train)


@cache
def result(most_gib: float, nodes_ahead: int = 2) -> Result:
    design = StashedActivations(most_gib=most_gib, nodes_ahead=nodes_ahead)
    return predict(design.apply(start())).results[0]


def ops(most_gib: float) -> tuple[Op, ...]:
    ((_, step),) = steps_of(StashedActivations(most_gib=most_gib).apply(start()))
    return step.graph(0).ops


def copied_bytes(every: Iterable[Op], phase: str, stream: str) -> float:
    found = [op for op in every if op.attributes.get("stream") == stream and op.phase == phase]
    moved = [op.tensors[0] for op in found if op.name == "aten::copy_"]
    return sum(x.elements * item_bytes(x.dtype) for x in moved)


def temporary_bytes(of: Result) -> float:
    return (of.memory or {})["temporary_bytes"]


def test_with_nothing_stashed_it_is_the_step_as_it_is() -> None:
    assert StashedActivations(most_gib=0.0).apply(start()) == start()


@pytest.mark.parametrize("most_gib", [0.5, 2.0])
def test_what_goes_out_comes_back_and_is_no_more_than_asked_for(most_gib: float) -> None:
    every = ops(most_gib)
    out = copied_bytes(every, FORWARD, STASH_STREAM)
    assert 0 < out <= most_gib * GIB
    assert out == copied_bytes(every, BACKWARD, "copy")


def test_the_backward_pass_reads_what_came_back() -> None:
    """Of a stashed activation nothing is read between its copy out and the one back, and the
    callers of ops are where they were."""
    every = ops(2.0)
    away = {}
    for op in every:
        stream = op.attributes.get("stream")
        if op.name == "aten::copy_" and stream == STASH_STREAM:
            away[op.tensors[1].storage_id] = op
            continue
        assert not {x.storage_id for x in op.tensors} & set(away)
    assert len(away) > 1
    plain = [op.name for op in ops(0.0) if op.parent == NO_OP]
    added = ("aten::copy_", "aten::empty_strided")
    left = [op.name for op in every if op.parent == NO_OP and op.name not in added]
    assert left == [name for name in plain if name not in added]


def test_more_stashed_is_less_memory_and_no_shorter_a_step() -> None:
    found = [result(gib) for gib in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert temporary_bytes(found[2]) < temporary_bytes(found[1]) < temporary_bytes(found[0])
    for fewer, more in pairwise(found):  # in the end gradients on their way to rows take most
        assert temporary_bytes(more) <= temporary_bytes(fewer)
        assert more.step_us >= fewer.step_us * (1 - 1e-9)


def test_what_the_bus_cannot_hide_takes_as_long_as_its_copies() -> None:
    """All that is stashed goes out, and the part that is needed first comes back, one after the
    other, at no more than the bus's 31.5 GB/s."""
    every = ops(64.0)
    out = copied_bytes(every, FORWARD, STASH_STREAM)
    assert result(64.0).step_us > 2 * out / 31.5e9 * 1e6
    assert (
        result(0.5).step_us
        < result(0.0).step_us + 2 * copied_bytes(ops(0.5), FORWARD, STASH_STREAM) / 15e9 * 1e6
    )


def test_coming_back_earlier_is_no_slower_and_takes_no_less_memory() -> None:
    early, late = result(0.5, 30), result(0.5, 2)
    assert early.step_us < late.step_us
    assert temporary_bytes(early) >= temporary_bytes(late)


def test_a_model_of_sequences_that_did_not_fit_fits() -> None:
    """Of 88.4 GB on 85.9, 4 GiB of activations are away."""
    nodes = deployment_of(load_workload("dlrm-v4-hstu"), cluster("dgx-a100-80gb", 2))
    with pytest.raises(WorkloadError, match="more than the"):
        predict(nodes)
    found = predict(StashedActivations(most_gib=4.0).apply(nodes)).results[0]
    assert (found.memory or {})["fits"]


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (start(train=False), "keep no activations"),
        (deployment_of(load_workload("hotline-rm3"), cluster("cpu-epyc")), "CPUs keep no"),
    ],
)
def test_what_keeps_no_activations_on_a_device_is_refused(
    deployment: Deployment, message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        StashedActivations().apply(deployment)
