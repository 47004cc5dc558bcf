"""Kernels of recurrent layers whose steps follow one another, against numbers followed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfmodel.cost.contract import KERNELS
from perfmodel.cost.durations import durations_of
from perfmodel.hardware import device
from perfmodel.lowering.piece import LOWERINGS, Piece
from perfmodel.lowering.rules.attention import recurrent
from perfmodel.ops.graph import Op, Tensor
from perfmodel.ops.rows import Rows

H200 = device("h200-sxm")
X = Tensor((512, 50, 64), device="cuda:0")
FACTS = {"steps": 50, "batch": 512, "inputs": 64, "hidden": 64, "gates": 3, "layers": 2}
ABOUT = FACTS | {"directions": 1, "biases": 1, "packed": 0}
GRU = Op("aten::_cudnn_rnn", (X,), attributes={name: str(n) for name, n in ABOUT.items()})


def with_(op: Op, **changed: str) -> Op:
    return replace(op, attributes={**op.attributes, **changed})


def taken_us(name: str, **dims: float) -> float:
    usual = {"steps": 50.0, "batch": 512.0, "hidden": 64.0, "gates": 3.0}
    rows = Rows.of([{"op": name, "dtype": "fp32", "direction": "fwd", **usual, **dims}])
    estimate = KERNELS.get("gpu/recurrent/heuristic").estimate(rows, H200)
    return float(estimate.duration_us[0])


def test_a_persistent_layer_takes_its_steps_as_often_as_its_blocks_take_turns() -> None:
    """192 threads of 96 registers: three blocks on a multiprocessor of 65,536, 396 on 132."""
    one = taken_us("persistent_rnn", batch=396.0)
    assert taken_us("persistent_rnn", batch=397.0) > 1.9 * one
    assert taken_us("persistent_rnn", steps=100.0, batch=396.0) > 1.9 * one
    # 384 threads of 160 registers: one block
    wide = taken_us("persistent_rnn", batch=132.0, hidden=128.0)
    assert taken_us("persistent_rnn", batch=133.0, hidden=128.0) > 1.9 * wide
    # 50 steps of 64 values, 26.3 clocks each
    start_us = taken_us("persistent_rnn", steps=1.0, batch=1.0) - 64 * 26.3 / H200.boost_mhz
    assert one - start_us == pytest.approx(50 * 64 * 26.3 / H200.boost_mhz)


def test_gradients_of_biases_are_a_chain_over_all_steps_and_sequences() -> None:
    """Source: two kernels of 739 us on one H200."""
    assert taken_us("rnn_bias_gradient") == pytest.approx(739, rel=0.25)
    assert taken_us("rnn_bias_gradient", hidden=32.0) == taken_us("rnn_bias_gradient")


GRADIENTS = replace(GRU, name="aten::_cudnn_rnn_backward")


def names(pieces: Sequence[Piece]) -> list[str]:
    assert all(isinstance(piece, Piece) for piece in pieces)
    return [piece.op for piece in pieces]


def test_a_step_finds_the_weights_that_the_step_before_has_read() -> None:
    products = [piece for piece in recurrent(with_(GRU, packed="1")) if piece.op == "mm"]
    of_inputs, of_steps = products[:2], products[2:]
    assert not any("warm" in piece.dims for piece in of_inputs)
    assert all(piece.dims.get("warm") for piece in of_steps)
    rows = Rows.of(
        [{"op": "mm", "dtype": "tf32", "m": 10, "n": 1024, "k": 256, "warm": at} for at in (0, 1)]
    )
    cold_us, warm_us = durations_of(rows, device("l4")).duration_us
    assert warm_us < cold_us


def test_layers_of_few_units_are_one_kernel() -> None:
    assert names(recurrent(GRU)).count("persistent_rnn") == 2
    assert len(recurrent(GRU)) == 2 * 3  # of each layer a product, biases and all steps
    for other in (with_(GRU, hidden="193"), with_(GRU, packed="1")):
        assert "persistent_rnn" not in names(recurrent(other))
    assert "persistent_rnn" in names(recurrent(with_(GRU, hidden="384", gates="1")))
    miopen = tuple(LOWERINGS["rocm/aten::_cudnn_rnn"](GRU))
    assert set(names(miopen)) == {"mm", "elementwise"}


def test_gradients_know_their_own_limit_and_biases() -> None:
    found = names(recurrent(GRADIENTS))
    assert (found.count("persistent_rnn"), found.count("rnn_bias_gradient")) == (2, 2)
    assert "persistent_rnn" not in names(recurrent(with_(GRADIENTS, hidden="129")))
    assert "rnn_bias_gradient" not in names(recurrent(with_(GRADIENTS, biases="0")))
