"""Programmes are solved silently, and in the same way however fast the machine is."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest

from perfmodel.explore.planner.programme import RUNTIME, Rows, silenced_output, solve


def test_what_compiled_code_prints_does_not_reach_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also what lies in the C library's buffer, before and after."""
    runtime = ctypes.CDLL(RUNTIME)
    runtime.puts(b"before")
    with silenced_output():
        runtime.puts(b"a line of the solver")
        os.write(1, b"and another\n")
    runtime.puts(b"after")
    runtime.fflush(None)
    assert capfd.readouterr().out.split() == ["before", "after"]


def test_standard_output_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), silenced_output():
        os.write(1, bytes(1 // 0))
    os.write(1, b"back\n")
    assert capfd.readouterr().out == "back\n"


def halves(nodes: int) -> Any:
    """Numbers in two parts whose sums differ least: no relaxation says anything."""
    size = np.random.default_rng(3).integers(10**6, 10**7, 40).astype(float)
    rows = Rows()
    for sign in (1.0, -1.0):
        values = np.append(2 * sign * size, -1.0)
        rows.add(np.arange(41), values, -np.inf, sign * (size.sum() - 1.0))
    upper, whole = np.append(np.ones(40), np.inf), np.append(np.ones(40), 0.0)
    cost = np.append(np.zeros(40), 1.0)
    return solve(rows, cost, np.zeros(41), upper, whole, nodes=nodes, gap=1e-9)


def test_nodes_end_a_search_and_it_is_the_same_again() -> None:
    first, second = halves(20), halves(20)
    assert first.mip_node_count == second.mip_node_count == 20
    np.testing.assert_array_equal(first.x, second.x)
