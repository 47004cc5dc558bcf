"""The plug-in of pytest: it remembers what passed, so that a failure says what changed."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from perfmodel.testing import assert_step_within

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction


@pytest.fixture
def step_within(request: pytest.FixtureRequest) -> Callable[..., Prediction]:
    """`assert_step_within` beside the answer when this test passed last, in pytest's cache."""
    calls = count()  # of one test each remembers its own

    def within(source: Any, *, hardware: Any, ms: float, **options: Any) -> Prediction:
        __tracebackhide__ = True
        from perfmodel.prediction.types import SCHEMA

        # No answer of another schema.
        asked = f"{SCHEMA} {request.node.nodeid} {next(calls)} {source} {hardware}"
        key = f"perfmodel/{sha256(asked.encode()).hexdigest()[:32]}"
        if cache := getattr(request.config, "cache", None):  # none under -p no:cacheprovider
            options.setdefault("before", cache.get(key, None))
        found = assert_step_within(source, hardware=hardware, ms=ms, **options)
        if cache:
            cache.set(key, found.to_dict())
        return found

    return within
