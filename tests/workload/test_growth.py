"""Graphs of many tables take work and ops in proportion."""

from __future__ import annotations

import pytest
from counting import calls_of

from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.settings import Model

MODEL = Model(13, (512, 256, 128), (1024, 1024, 512, 256, 1))


def workload(tables: int) -> Workload:
    return Workload("many", MODEL, (Table(100_000, 128, 1),) * tables)


def ops(tables: int) -> int:
    return len(op_graph(workload(tables), 256, target="cpu"))


def calls(tables: int) -> int:
    return calls_of(lambda: op_graph(workload(tables), 256, target="cpu"))


def test_every_table_has_its_ops() -> None:
    assert ops(400) - ops(200) == 2 * (ops(200) - ops(100))


@pytest.mark.slow
def test_every_table_takes_the_same_work() -> None:
    calls(100)
    assert calls(400) - calls(200) == pytest.approx(2 * (calls(200) - calls(100)), rel=0.05)
