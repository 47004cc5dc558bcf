"""The backward pass of single ops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload.backward_ops import FORWARD, backward_ops

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import Op, Tensor

SIZE = st.integers(1, 64)


def product_shapes(op: Op) -> list[tuple[tuple[int, ...], ...]]:
    return [
        tuple(tensor.shape for tensor in each.tensors)
        for each in backward_ops(op)
        if each.name in ("aten::mm", "aten::bmm")
    ]


@given(SIZE, SIZE, SIZE)
def test_a_product_has_two(m: int, n: int, k: int) -> None:
    op = Op("aten::mm", (Tensor((m, k)), Tensor((k, n))))
    left, right = sorted(product_shapes(op)), sorted([((m, n), (n, k)), ((k, m), (m, n))])
    assert left == right


@given(SIZE, SIZE, SIZE)
def test_a_linear_layer_keeps_the_layout_of_its_weight(m: int, n: int, k: int) -> None:
    op = Op("aten::linear", (Tensor((m, k)), Tensor((n, k)), Tensor((n,))))
    names = [each.name for each in backward_ops(op)]
    assert names.count("torch::autograd::AccumulateGrad") == 3
    assert "aten::sum" in names or m == 1, "the bias was broadcast over the batch"
    assert ((m, n), (n, k)) in product_shapes(op)
    assert ((n, m), (m, k)) in product_shapes(op)


def test_a_batched_product() -> None:
    op = Op("aten::bmm", (Tensor((5, 2, 3)), Tensor((5, 3, 4))))
    assert product_shapes(op) == [((5, 3, 2), (5, 2, 4)), ((5, 2, 4), (5, 4, 3))]


def test_views_run_views_and_elementwise_ops_one_kernel() -> None:
    x = Tensor((4, 6))
    names = {each.name for each in backward_ops(Op("aten::cat", ((x, x), 1)))}
    assert {"CatBackward0", "aten::narrow"} <= names
    assert "aten::threshold_backward" in [o.name for o in backward_ops(Op("aten::relu", (x,)))]


def test_every_op_named_has_a_rule() -> None:
    square, batch = Tensor((3, 3)), Tensor((2, 3, 3))
    inputs = {
        "aten::linear": (square, square, Tensor((3,))),
        "aten::addmm": (Tensor((3,)), square, square, 1, 1),
        "aten::bmm": (batch, batch),
        "aten::cat": ((square, square), 1),
        "aten::stack": ((square, square), 1),
        "aten::transpose": (batch, 1, 2),
        "aten::reshape": (square, (9,)),
        "aten::unsqueeze": (square, 1),
    }
    for name in FORWARD:
        many = (square,) if name in ("aten::relu", "aten::sigmoid", "aten::t") else (square, square)
        ops = backward_ops(Op(name, inputs.get(name, many)))
        assert any(op.name.startswith("autograd::engine") for op in ops), name
        assert all(op.parent < index for index, op in enumerate(ops))


def test_an_op_without_a_rule_is_named() -> None:
    with pytest.raises(WorkloadError, match="no autograd rule for aten::nonsense"):
        backward_ops(Op("aten::nonsense", ()))
