"""TorchRec's pipeline of three stages: which step does what, in which order."""

from __future__ import annotations

from collections import Counter

from perfmodel.ops.graph import Op
from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.settings import Model

PLAIN = Workload("piped", Model(13, (64, 32), (64, 1)), (Table(1000, 32, 4),) * 8).with_(
    implementation__name="torchrec"
)
PIPED = PLAIN.with_(implementation__prefetch=True)
EXCHANGE = "c10d::alltoall_base_"


def ops(workload: Workload, *, train: bool = True) -> list[Op]:
    return list(op_graph(workload, 64, ranks=4, train=train).ops)


def test_the_pipeline_does_the_same_in_another_order() -> None:
    assert Counter(op.name for op in ops(PIPED)) == Counter(op.name for op in ops(PLAIN))


def test_sizes_go_before_the_forward_pass_and_keys_after_it() -> None:
    found = ops(PIPED)
    order = [
        (op.attributes.get("pipeline", "own"), op.phase) for op in found if op.name == EXCHANGE
    ]
    assert order == [
        ("distribute", "input"),  # how many keys of the next batch come
        ("own", "forward"),  # pooled rows
        ("distribute", "input"),  # lengths of the next batch
        ("distribute", "input"),  # its keys
        ("own", "backward"),  # gradients of pooled rows
    ]
    backward = next(at for at, op in enumerate(found) if op.phase == "backward")
    keys = [at for at, op in enumerate(found) if op.name == EXCHANGE][3]
    assert keys < backward


def test_without_a_pipeline_keys_go_first() -> None:
    phases = [op.phase for op in ops(PLAIN) if op.name == EXCHANGE]
    assert phases == ["input", "input", "input", "forward", "backward"]
    assert not any("pipeline" in op.attributes for op in ops(PLAIN))


def test_a_step_reads_nothing_that_its_pipeline_makes() -> None:
    graph = op_graph(PIPED, 64, ranks=4)
    piped = ["pipeline" in op.attributes for op in graph.ops]
    assert [pair for pair in graph.data.tolist() if piped[pair[0]] and not piped[pair[1]]] == []


def test_inference_has_the_pipeline_too() -> None:
    kinds = [op.attributes.get("pipeline") for op in ops(PIPED, train=False)]
    assert {"prefetch", "distribute"} <= set(kinds)
    assert kinds[-1] == "distribute"
