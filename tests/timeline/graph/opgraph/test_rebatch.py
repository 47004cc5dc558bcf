"""A captured graph at another batch is what was captured at that batch, op for op."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opgraph_nodes import TRACES, Et, op, profile, tensor

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits import rebatch
from perfmodel.ops.edits.batch import batch_of, viewed
from perfmodel.ops.graph import OpGraph, tensors_in
from perfmodel.ops.read import op_graph
from perfmodel.trace import read


def captured(model: str, batch: int) -> OpGraph:
    return op_graph(read(TRACES / f"{model}_batch{batch}_et.json.gz"))[0]


def tensors_of(graph: OpGraph) -> list[tuple[str, list[tuple[object, ...]]]]:
    return [
        (o.name, [(t.shape, t.dtype, t.strides) for t in tensors_in((o.inputs, o.outputs))])
        for o in graph.ops
    ]


@pytest.mark.parametrize(
    ("model", "old", "new"),
    [
        ("dlrm", 8, 12),
        ("dlrm", 12, 8),
        ("resnet", 4, 6),
        ("resnet", 6, 4),
        ("transformer", 4, 6),
        ("transformer", 6, 4),
    ],
)
def test_rescaled_is_captured(model: str, old: int, new: int) -> None:
    graph = captured(model, old)
    assert batch_of(graph) == old
    found, _ = rebatch(graph, new)
    assert tensors_of(found) == tensors_of(captured(model, new))


def test_the_same_batch_changes_nothing() -> None:
    graph = captured("dlrm", 8)
    found = rebatch(graph, 8).graph
    assert found.ops == graph.ops
    assert (found.data == graph.data).all()
    assert found.notes == ("batch 8 rescaled to 8",)


def layer(batch: int, parts: int = 0) -> OpGraph:
    """A linear layer of width `batch`, whose weight has the batch's size; perhaps split after."""
    et = Et()
    x, y = tensor(1, batch, 3), tensor(4, batch, batch)
    et.add("aten::linear", [x, tensor(2, batch, 3), tensor(3, batch)], [y])
    if parts:
        out = tensor(5, parts, batch // parts, batch, storage=1004)
        et.add("aten::view", [y, parts], [out])
    return et.graph()


def test_a_weight_of_the_batch_s_size_stays() -> None:
    (linear,) = rebatch(layer(8), 20).graph.ops
    assert [t.shape for t in linear.tensors] == [(20, 3), (8, 3), (8,)]
    assert [t.shape for t in tensors_in(linear.outputs)] == [(20, 8)]


def test_parts_of_the_batch_must_come_out_whole() -> None:
    graph = layer(12, parts=4)
    with pytest.raises(WorkloadError, match=r"op 1 \(aten::view\).*10 samples"):
        rebatch(graph, 10)
    assert rebatch(graph, 24).graph.ops[1].outputs[0].shape == (8, 3, 12)


def test_a_constant_of_the_batch_s_size_contradicts_another_batch() -> None:
    et = Et()
    et.add("aten::linear", [tensor(1, 8, 3), tensor(2, 5, 3), tensor(3, 5)], [tensor(4, 8, 5)])
    et.add("aten::neg", [tensor(4, 8, 5)], [tensor(5, 8, 5)])
    constant = et.label("Optimizer.step#SGD.step")
    et.add("aten::add_", [tensor(6, 8, 8)], [tensor(6, 8, 8)], at=constant)
    et.add("aten::mm", [tensor(6, 8, 8), tensor(5, 8, 5)], [tensor(7, 8, 5)])
    graph = et.graph()
    with pytest.raises(
        WorkloadError, match=r"op 3 \(aten::mm\): operands of \[8, 8\] and \[16, 5\]"
    ):
        rebatch(graph, 16)


def test_what_begins_with_the_batch_before_any_input_is_the_batch_s() -> None:
    """The first state of a recurrent layer, a class token for each sample."""
    et = Et()
    tokens, patches = tensor(3, 8, 1, 4, storage=1002), tensor(4, 8, 5, 4)
    both = tuple(map(list, zip(tokens, patches, strict=True)))
    et.add("aten::zeros", outputs=[tensor(1, 8, 4)])
    et.add("aten::expand", [tensor(2, 1, 1, 4)], [tokens])
    types = ["GenericList[Tensor(float),Tensor(float)]", "Int"]
    et.add("aten::cat", [both, 1], [tensor(5, 8, 6, 4)], types=types)
    et.add("aten::linear", [tensor(1, 8, 4), tensor(6, 4, 4), tensor(7, 4)], [tensor(8, 8, 4)])
    made = [[t.shape for t in tensors_in(o.outputs)] for o in rebatch(et.graph(), 20, 8).graph.ops]
    assert made == [[(20, 4)], [(20, 1, 4)], [(20, 6, 4)], [(20, 4)]]


def test_memory_that_an_optimizer_has_for_a_while_is_not_its_parameters() -> None:
    """Adam's roots lie where gradients of activations lay; its weights stay."""
    et = Et()
    x, w = tensor(1, 8, 3), tensor(2, 8, 3)
    et.add("aten::linear", [x, w, tensor(3, 8)], [tensor(4, 8, 8)])
    et.add("aten::relu", [tensor(4, 8, 8)], [tensor(5, 8, 8, storage=1009)])
    step = et.label("Optimizer.step#Adam.step")
    et.add("aten::sqrt", [tensor(6, 8, 3)], [tensor(7, 8, 3, storage=1001)], at=step)
    et.add("aten::addcdiv_", [w, tensor(6, 8, 3), tensor(7, 8, 3, storage=1001)], [w], at=step)
    linear, relu, *_ = rebatch(et.graph(), 20, 8).graph.ops
    assert [t.shape for t in linear.tensors] == [(20, 3), (8, 3), (8,)]
    assert [t.shape for t in tensors_in(relu.outputs)] == [(20, 8)]


@pytest.mark.parametrize("batch", [0, -4, 2.5])
def test_impossible_batches_are_refused(batch: int) -> None:
    with pytest.raises(WorkloadError, match="expected an integer of at least 1"):
        rebatch(layer(8), batch)


def test_a_graph_without_inputs_names_no_batch() -> None:
    et = Et()
    et.add("aten::rand", outputs=[tensor(1, 3)])
    with pytest.raises(WorkloadError, match="no input shows the batch"):
        rebatch(et.graph(), 4)


def test_a_profile_alone_is_told_by_its_layers() -> None:
    """Width, weight and batch are all 8: rows of layers are the batch, weights are not."""
    square = {"types": ["float"] * 2, "dims": [[8, 8], [8, 8]]}
    trace = profile(
        op("aten::linear", 0, 9, **square),
        op("aten::mm", 1, 3, **square),
        op("aten::relu", 10, 3, dims=[[8, 8]], types=["float"]),
        op("aten::neg", 20, 3, dims=[[3, 8]], types=["float"]),
    )
    found, skipped = rebatch(op_graph(trace)[0], 20)
    assert [[t.shape for t in o.tensors] for o in found.ops] == [
        *[[(20, 8), (8, 8)]] * 2,
        [(20, 8)],
        [(3, 8)],
    ]
    assert "an execution trace shows them exactly" in skipped[0]


def test_weights_of_convolutions_stay_in_their_backward_of_a_profile() -> None:
    """Without ids, and of as many channels as 8 times the batch."""
    x, weight = [4, 32, 8, 8], [32, 32, 3, 3]
    given = {"types": ["float"] * 3, "dims": [x, x, weight]}
    trace = profile(
        op("aten::conv2d", 0, 9, types=["float"] * 2, dims=[x, weight]),
        op("aten::cudnn_convolution_backward", 10, 9, **given),
    )
    found = rebatch(op_graph(trace)[0], 12).graph.ops[1]
    assert [t.shape for t in found.tensors] == [(12, 32, 8, 8)] * 2 + [tuple(weight)]


def test_collectives_scale_with_their_tensors() -> None:
    et = Et()
    et.add("aten::linear", [tensor(1, 8, 3), tensor(2, 5, 3), tensor(3, 5)], [tensor(4, 8, 5)])
    et.add("c10d::allreduce_", [tensor(4, 8, 5)], [tensor(4, 8, 5)])
    found = rebatch(et.graph(), 16).graph.ops[1].attributes
    assert (found["in_elements"], found["collective"]) == ("80", "all_reduce")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(2, 7), st.data())
def test_views_keep_the_batch(rest: list[int], batch: int, data: st.DataObject) -> None:
    old = (batch, *rest)
    cut = data.draw(st.integers(1, len(old)))
    new = (prod(old[:cut]), *old[cut:])
    powers = viewed(old, (1, *(0 for _ in rest)), new, batch)
    assert powers == (1, *(0 for _ in new[1:]))
    back = viewed(new, powers, old, batch)
    assert back is not None
    assert sum(back) == 1


def test_views_want_as_many_elements() -> None:
    assert viewed((4,), (1,), (5,), 4) is None
