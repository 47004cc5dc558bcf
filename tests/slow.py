"""Which cases of a test everyone runs, and which are left to `pytest -m slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(count: int, cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`: all but the first `count` are marked slow."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    rest = (pytest.param(*value, marks=pytest.mark.slow) for value in values[count:])
    return [*(pytest.param(*value) for value in values[:count]), *rest]
