"""Steps on a CPU: one chain, every step between its own marks."""

from __future__ import annotations

import numpy as np

from perfmodel.lowering.rules.cpu import cpu_graph, cpu_steps
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.timeline.schedule import schedule

X = Tensor((8, 32))


def relu(step: int) -> Op:
    return Op("aten::relu", (X,), (X,), step=step)


def test_each_step_holds_its_own_pieces() -> None:
    steps = cpu_steps(OpGraph((relu(-1), relu(0), relu(1), relu(1))))
    assert [[piece.op for piece in step].count("relu") for step in steps] == [1, 2]
    assert [step[-1].op for step in steps] == ["host_step", "host_step"]


def test_ops_before_any_step_are_one_step() -> None:
    assert len(cpu_steps(OpGraph((relu(-1), relu(-1))))) == 1


def test_steps_follow_one_another() -> None:
    steps = cpu_steps(OpGraph((relu(0), relu(1), relu(1))))
    count = sum(map(len, steps))
    built = cpu_graph(steps, np.full(count, 10.0))
    found = schedule(built.graph)
    assert found.step_us.tolist() == [10.0 * len(step) for step in steps]
    assert found.end_us.max() == 10.0 * count
    assert built.piece.tolist()[1 : 1 + len(steps[0])] == list(range(len(steps[0])))
