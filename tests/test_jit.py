"""Compiled functions work where no cache can be written."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.base import registry


def test_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = registry.library("numba").njit

    def refused(**options: Any) -> Callable[[Any], Any]:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return usual(**options)

    monkeypatch.setattr(registry, "library", lambda _: SimpleNamespace(njit=refused))

    @registry.compiled()
    def double(value: float) -> float:
        return 2.0 * value

    assert double(21.0) == 42.0
