"""Recurrent layers are products step after step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from perfmodel.lowering.rules.attention import recurrent
from perfmodel.ops.graph import Op, Tensor

X = Tensor((512, 50, 64), device="cuda:0")
FACTS = {"steps": 50, "batch": 512, "inputs": 64, "hidden": 64, "gates": 3, "layers": 2}
ABOUT = FACTS | {"directions": 1, "biases": 1}
GRU = Op("aten::_cudnn_rnn", (X,), attributes={name: str(n) for name, n in ABOUT.items()})


def names(op: Op) -> Counter[str]:
    return Counter(piece.op for piece in recurrent(op))


def test_each_step_of_each_layer_is_a_product() -> None:
    assert names(GRU) == {"mm": 2 + 2 * 50, "elementwise": 2 * 50}


def test_gradients_of_biases_are_sums_over_all_steps_and_sequences() -> None:
    backward = replace(GRU, name="aten::_cudnn_rnn_backward")
    assert names(backward) == {"mm": 2 * 50 + 2 * 3, "elementwise": 2 * 50, "sum_rows": 2}
    without = replace(backward, attributes={**backward.attributes, "biases": "0"})
    assert "sum_rows" not in names(without)
