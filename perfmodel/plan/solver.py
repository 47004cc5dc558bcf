"""Programmes as rows, and their solution: the same one on any machine, and silently."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from perfmodel.plan.problem import Floats, Ints

RUNTIME = None if os.name == "posix" else "ucrtbase"
"""The C library whose standard output is flushed."""
_ONE_AT_A_TIME = Lock()


@dataclass
class Rows:
    """Constraints low <= A x <= high, as triplets."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, columns: Ints, values: Floats, low: float, high: float) -> None:
        """The sum of `values` times `columns` lies between `low` and `high`."""
        self.row += [len(self.low)] * len(columns)
        self.column += columns.tolist()
        self.value += values.tolist()
        self.low.append(low)
        self.high.append(high)

    def at_most(self, column: int, columns: Ints, values: Floats) -> None:
        """The sum of `values` times `columns` is at most what stands in `column`."""
        self.add(np.append(columns, column), np.append(values, -1.0), -np.inf, 0.0)


def solved(
    rows: Rows,
    goal: int,
    lower: Floats,
    upper: Floats,
    whole: Floats,
    *,
    nodes: int,
    gap_frac: float,
) -> Any:
    """SciPy's answer: the least value of column `goal` within all rows and bounds, columns in
    whole numbers where `whole` is 1.

    It ends after so many `nodes` of its search tree, never after a time: a plan must not depend on
    how fast the machine is.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    least = np.zeros(len(upper))
    least[goal] = 1.0
    matrix = csr_array((rows.value, (rows.row, rows.column)), shape=(len(rows.low), len(upper)))
    with silent():
        return milp(
            least,
            constraints=LinearConstraint(matrix, rows.low, rows.high),
            integrality=whole,
            bounds=Bounds(lower, upper),
            options={"node_limit": nodes, "mip_rel_gap": gap_frac},
        )


@contextmanager
def silent() -> Iterator[None]:
    """Nothing that compiled code writes to standard output gets there.

    HiGHS 1.12, SciPy's solver, prints a line of its own whenever it repairs a solution in whole
    numbers, whatever its options say (ERGO-Code/HiGHS issue 2783).
    """
    with _ONE_AT_A_TIME:
        runtime = ctypes.CDLL(RUNTIME)
        try:
            kept = os.dup(1)
        except OSError:
            yield
            return
        try:
            runtime.fflush(None)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)
            yield
        finally:
            runtime.fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
