"""Compiled functions work where no cache can be written."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import perfmodel.base.compiled
from perfmodel.base.compiled import compiled


def test_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = perfmodel.base.compiled.numba.njit

    def refused(**options: Any) -> Callable[[Any], Any]:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return usual(**options)

    monkeypatch.setattr(perfmodel.base.compiled, "numba", SimpleNamespace(njit=refused))

    @compiled()
    def double(value: float) -> float:
        return 2.0 * value

    assert double(21.0) == 42.0
