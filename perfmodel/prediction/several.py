"""One or several of what a caller names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def several(given: Any) -> list[Any]:
    """The items of `given`; a text, or what has no items, is the only one."""
    return [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
