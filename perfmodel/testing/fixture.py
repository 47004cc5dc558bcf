"""The plug-in of pytest: it remembers what passed, so that a failure says what changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from perfmodel.testing import assert_step_within

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction


@pytest.fixture
def step_within(request: pytest.FixtureRequest) -> Callable[..., Prediction]:
    """`assert_step_within` beside the answer when this test passed last, in pytest's cache."""

    def within(source: Any, *, hardware: Any, ms: float, **options: Any) -> Prediction:
        __tracebackhide__ = True
        named = re.sub(r"[^\w.-]+", "_", f"{request.node.nodeid} {source} {hardware}")
        cache, key = getattr(request.config, "cache", None), f"perfmodel/{named[-200:]}"
        if cache is not None:
            options.setdefault("before", cache.get(key, None))
        found = assert_step_within(source, hardware=hardware, ms=ms, **options)
        if cache is not None:
            cache.set(key, found.to_dict())
        return found

    return within
